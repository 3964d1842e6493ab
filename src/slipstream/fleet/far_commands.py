"""Slipstream's own command on a far machine, and its answer read as a record."""

import re
from collections.abc import Sequence
from typing import TypeVar

from pydantic import ValidationError

from slipstream.errors import MissingPartError, UnreachableError
from slipstream.fleet.record import Fleet, Machine
from slipstream.fleet.transport import Answer, Transport, escape
from slipstream.records import Record, describe_faults

VENV = ".local/share/slipstream/fleet/venv"
INSTALL_HINT = "slipstream fleet probe --install; or set python in its table of the fleet's file"
NOT_FOUND = (126, 127)
MOST_RECORD_BYTES = 4 << 20
_RUN = (
    f'p="$HOME/{VENV}/bin/python"; if [ -x "$p" ]; then exec "$p" -m slipstream "$@"; fi; '
    'exec slipstream "$@"'
)
AnyRecord = TypeVar("AnyRecord", bound=Record)


def name_command(machine: Machine, words: Sequence[str]) -> list[str]:
    """Return the command line of Slipstream on a machine."""
    if machine.python is not None:
        return [name_program(machine.python), "-m", "slipstream", *words]
    return ["sh", "-c", _RUN, "slipstream", *words]


def name_program(path: str) -> str:
    """Return a program's path for a far shell, which starts at home and is sent quoted words."""
    return f"./{path[2:]}" if path.startswith("~/") else path


def call(
    fleet: Fleet,
    transport: Transport,
    machine: str,
    words: Sequence[str],
    *,
    stdin: bytes | None = None,
    timeout: float = 60,
) -> Answer:
    """Run Slipstream on a machine; one that does not have it is an error."""
    command = name_command(fleet.machines[machine], words)
    answer = transport.run(machine, command, stdin=stdin, timeout=timeout)
    if answer.code in NOT_FOUND:
        raise MissingPartError(
            f"{machine}: slipstream is not installed, or not found", hint=INSTALL_HINT
        )
    return answer


def explain(answer: Answer) -> str:
    """Return the message of Slipstream's own error, or else the last line of what was said."""
    for line in answer.stderr.decode(errors="replace").splitlines():
        for sign in ("error: ", '    "message": '):
            if line.startswith(sign):
                return escape(line.removeprefix(sign).rstrip(","))
    return answer.last_words


def read_answer(machine: str, answer: Answer, kind: type[AnyRecord]) -> AnyRecord:
    """Read a machine's answer as a record; anything else is an error that quotes it safely."""
    if len(answer.stdout) > MOST_RECORD_BYTES:
        raise UnreachableError(
            f"{machine} answered with {len(answer.stdout)} bytes in the place of a {kind.__name__}",
            hint="slipstream fleet probe, which compares versions",
        )
    # What a login prints comes first; the document begins a line and is the rest.
    noise = re.match(rb"(?:[^{\n][^\n]*\n|\n)*", answer.stdout)
    try:
        return kind.model_validate_json(answer.stdout[noise.end() if noise else 0 :])
    except ValidationError as fault:
        said = answer.last_words if answer.code else escape("; ".join(describe_faults(fault)[:3]))
        raise UnreachableError(
            f"{machine} did not answer with a {kind.__name__}: {said}",
            hint="slipstream fleet probe, which compares versions",
        ) from fault
