"""Slipstream's own command on a far machine, its answer read as a record, and files there.

A far machine is another's: what it prints is bounded, and shown by nobody unescaped.
"""

import json
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from pydantic import ValidationError

from slipstream.errors import InvalidInputError, MissingPartError, SlipstreamError, UnreachableError
from slipstream.fleet.record import Fleet, Machine
from slipstream.records import Record, describe_faults

# Processes of ssh at a time; each takes about 10 MB and, while it connects, a core for 20 ms.
MOST_WORKERS = 32
Result = TypeVar("Result")
Words = Sequence[str]
# What a machine does now: its name, a state and a line about it.
Show = Callable[[str, str, str], None]


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What a command on a machine left behind; all of it is a stranger's text."""

    code: int
    stdout: bytes
    stderr: bytes

    @property
    def document(self) -> bytes:
        """Return its JSON document, empty if it printed none: logins print something first."""
        return _skip_chatter(self.stdout)

    @property
    def complaint(self) -> str:
        """Return the message of Slipstream's own error, or the last line, safe to show."""
        with suppress(ValueError, KeyError, TypeError):
            return escape(str(json.loads(_skip_chatter(self.stderr))["error"]["message"]))
        lines = [line for line in self.stderr.decode(errors="replace").splitlines() if line.strip()]
        own = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        return escape((own[:1] or lines[-1:] or [f"exit code {self.code}"])[0])


class Stream(Protocol):
    """A command that runs on a machine while its output is read."""

    def lines(self) -> Iterator[bytes]:
        """Yield its lines as they come, each of bounded length."""

    def close(self) -> int | None:
        """End it, and return its exit code if it had ended by itself."""


class Transport(Protocol):
    def run(
        self, machine: str, argv: Words, *, stdin: bytes | None = None, timeout: float
    ) -> CommandResult:
        """Run a command to its end."""

    def send(self, machine: str, local: Path | bytes, remote: str) -> None:
        """Put a file there in one step; a relative path is below the user's home."""

    def start(self, machine: str, argv: Words, *, stdin: bytes | None = None) -> Stream:
        """Begin a command whose output is read as it comes."""

    def relay(
        self, source: str, giving: Words, machine: str, taking: Words, *, timeout: float
    ) -> CommandResult:
        """Hand one machine's output to another's input, and return what the taker said."""


def _skip_chatter(output: bytes) -> bytes:
    document = re.search(rb"^\{", output, re.M)
    return output[document.start() :] if document else b""


def escape(text: str, most: int = 300) -> str:
    """Return a stranger's text on one line that cannot move a cursor or hide a word."""
    shown = "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text
    )
    return shown if len(shown) <= most else f"{shown[:most]}..."


def ask_all(
    machines: Iterable[str], ask: Callable[[str], Result], *, workers: int = MOST_WORKERS
) -> dict[str, Result | SlipstreamError]:
    """Do the same for every machine concurrently; a machine that fails does not stop the others."""

    def ask_one(machine: str) -> Result | SlipstreamError:
        try:
            return ask(machine)
        except SlipstreamError as fault:
            return fault

    names = list(machines)
    with ThreadPoolExecutor(max_workers=max(1, min(workers, len(names)))) as pool:
        return dict(zip(names, pool.map(ask_one, names), strict=True))


VENV = ".local/share/slipstream/fleet/venv"
INSTALL_HINT = "set python in its table of the fleet's file, or slipstream fleet probe --install"
VERSION_HINT = "to compare versions: slipstream fleet probe"
NOT_FOUND = (126, 127)
MOST_RECORD_BYTES = 4 << 20
READ_SECONDS = 30.0
_RUN = (
    f'p="$HOME/{VENV}/bin/python"; if [ -x "$p" ]; then exec "$p" -m slipstream "$@"; fi; '
    'exec slipstream "$@"'
)
# What a login prints comes before the word that nobody else knows.
_READ = '[ -f "$1" ] || exit 3; echo "$2"; cat "$1"'
_ABSENT = 3
AnyRecord = TypeVar("AnyRecord", bound=Record)


@dataclass(frozen=True, slots=True)
class Machines:
    """A fleet's machines and the way to them; names of files are those in the fleet's folder."""

    fleet: Fleet
    transport: Transport

    def call(
        self,
        machine: str,
        words: Words,
        *,
        stdin: bytes | None = None,
        timeout: float = 60,
        variables: Words = (),
    ) -> CommandResult:
        """Run Slipstream on a machine; one that does not have it is an error."""
        command = name_command(self.fleet.machines[machine], words, variables)
        answer = self.transport.run(machine, command, stdin=stdin, timeout=timeout)
        if answer.code in NOT_FOUND:
            raise MissingPartError(
                f"{machine}: slipstream is not installed, or not found", hint=INSTALL_HINT
            )
        return answer

    def ask(
        self,
        machine: str,
        request: Record,
        kind: type[AnyRecord],
        *,
        timeout: float = 60,
        variables: Words = (),
        fault: type[SlipstreamError] = UnreachableError,
        hint: str = VERSION_HINT,
    ) -> AnyRecord:
        """Have a machine carry out a request of `far_side`, and return what it answers."""
        # A machine whose version is one behind does not know what is new, nor needs it by default.
        stdin = request.model_dump_json(exclude_defaults=True).encode()
        words = name_request(request)
        answer = self.call(machine, words, stdin=stdin, timeout=timeout, variables=variables)
        if answer.code:
            raise fault(f"{machine}: {answer.complaint}", hint=hint)
        return read_answer(machine, answer, kind)

    def start(
        self, machine: str, words: Words, *, stdin: bytes | None = None, variables: Words = ()
    ) -> Stream:
        """Begin Slipstream on a machine; its output is read as it comes."""
        command = name_command(self.fleet.machines[machine], words, variables)
        return self.transport.start(machine, command, stdin=stdin)

    def send(self, machine: str, content: bytes, name: str) -> None:
        """Put a file there in one step, readable by its user alone."""
        self.transport.send(machine, content, f"{self.fleet.folder}/{name}")

    def read(self, machine: str, name: str) -> bytes | None:
        path, mark = f"{self.fleet.folder}/{name}", secrets.token_hex(16)
        command = ["sh", "-c", _READ, "sh", path, mark]
        answer = self.transport.run(machine, command, timeout=READ_SECONDS)
        _, found, content = answer.stdout.partition(f"{mark}\n".encode())
        if found and not answer.code:
            return content
        if answer.code == _ABSENT:
            return None
        raise UnreachableError(
            f"{machine}: cannot read {path}: {answer.complaint}",
            hint=self.fleet.hint_ssh(machine, "ls -l", path),
        )

    def read_record(
        self, machine: str, name: str, kind: type[AnyRecord], *, hint: str
    ) -> AnyRecord | None:
        if (content := self.read(machine, name)) is None:
            return None
        try:
            return kind.model_validate_json(content)
        except ValidationError as fault:
            raise InvalidInputError(
                f"{machine}: {name} is not a {kind.__name__} that this version reads: "
                f"{_describe(fault)}",
                hint=hint,
            ) from fault


def name_command(machine: Machine, words: Words, variables: Words = ()) -> list[str]:
    program = ["sh", "-c", _RUN, "slipstream"]
    if machine.python is not None:
        program = [name_program(machine.python), "-m", "slipstream"]
    return [*(["env", *variables] if variables else []), *program, *words]


def name_program(path: str) -> str:
    """Return a program's path for a far shell, which starts at home and is sent quoted words."""
    return f"./{path[2:]}" if path.startswith("~/") else path


def name_request(request: Record) -> list[str]:
    return ["fleet", "far", type(request).__name__, "--json"]


def read_answer(machine: str, answer: CommandResult, kind: type[AnyRecord]) -> AnyRecord:
    """Read a machine's answer as a record; anything else is an error that quotes it safely."""
    if len(answer.stdout) > MOST_RECORD_BYTES:
        raise UnreachableError(
            f"{machine} answered with {len(answer.stdout)} bytes instead of a {kind.__name__}",
            hint=VERSION_HINT,
        )
    try:
        return kind.model_validate_json(answer.document)
    except ValidationError as fault:
        problem = answer.complaint if answer.code else _describe(fault)
        raise UnreachableError(
            f"{machine} did not answer with a {kind.__name__}: {problem}", hint=VERSION_HINT
        ) from fault


def _describe(fault: ValidationError) -> str:
    return escape("; ".join(describe_faults(fault)[:3]))
