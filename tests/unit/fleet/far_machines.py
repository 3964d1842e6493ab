"""Machines that are not there: a transport whose answers a test writes."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from slipstream.errors import UnreachableError
from slipstream.fleet.transport import Answer

# A machine's part: its name, the words of the command and what is on its standard input.
Reply = Callable[[str, list[str], bytes | None], Answer]


def say(text: str | bytes, code: int = 0, stderr: bytes = b"") -> Answer:
    """Answer with a text."""
    return Answer(code, text.encode() if isinstance(text, str) else text, stderr)


@dataclass
class FarMachines:
    """Keeps what was run and sent; a machine that is down answers nothing."""

    reply: Reply
    down: set[str] = field(default_factory=set)
    commands: list[tuple[str, list[str]]] = field(default_factory=list)
    files: dict[tuple[str, str], bytes] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def run(
        self, machine: str, argv: Sequence[str], *, stdin: bytes | None = None, timeout: float
    ) -> Answer:
        with self._lock:
            self.commands.append((machine, list(argv)))
        if machine in self.down:
            raise UnreachableError(f"{machine} cannot be reached: it does not answer", hint="ping")
        return self.reply(machine, list(argv), stdin)

    def send(self, machine: str, local: Path | bytes, remote: str, *, mode: int = 0o600) -> None:
        content = local if isinstance(local, bytes) else local.read_bytes()
        with self._lock:
            self.files[machine, remote] = content

    def start(
        self, machine: str, argv: Sequence[str], *, stdin: bytes | None = None
    ) -> "FarStream":
        return FarStream(self.run(machine, argv, stdin=stdin, timeout=60))

    def relay(
        self, source: str, giving: Sequence[str], machine: str, taking: Sequence[str]
    ) -> Answer:
        given = self.run(source, giving, timeout=60)
        return self.run(machine, taking, stdin=given.stdout, timeout=60)


@dataclass
class FarStream:
    """The whole answer, line by line."""

    answer: Answer

    def lines(self) -> Iterator[bytes]:
        yield from self.answer.stdout.splitlines(keepends=True)

    def close(self) -> int | None:
        return self.answer.code
