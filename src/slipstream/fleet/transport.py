"""What a fleet needs of its machines, whatever reaches them.

A far machine is another's: what it prints is bounded, and shown by nobody unescaped.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from slipstream.errors import SlipstreamError

# Processes of ssh at a time; each takes about 10 MB and, while it connects, a core for 20 ms.
MOST_AT_ONCE = 32
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command on a machine left behind; all of it is a stranger's text."""

    code: int
    stdout: bytes
    stderr: bytes

    @property
    def last_words(self) -> str:
        """Return the end of what it complained about, on one line that is safe to show."""
        with suppress(ValueError, KeyError, TypeError):  # Slipstream's own, under --json.
            return escape(str(json.loads(self.stderr)["error"]["message"]))
        lines = [line for line in self.stderr.decode(errors="replace").splitlines() if line.strip()]
        return escape(lines[-1]) if lines else f"exit code {self.code}"


class Stream(Protocol):
    """A command that runs on a machine while its output is read."""

    def lines(self) -> Iterator[bytes]:
        """Yield its lines as they come, each of bounded length."""

    def close(self) -> int | None:
        """End it, and return its exit code if it had ended by itself."""


class Transport(Protocol):
    """What a fleet needs of its machines."""

    def run(
        self, machine: str, argv: Sequence[str], *, stdin: bytes | None = None, timeout: float
    ) -> Answer:
        """Run a command to its end."""

    def send(self, machine: str, local: Path | bytes, remote: str, *, mode: int = 0o600) -> None:
        """Put a file there in one step; a relative path is below the user's home."""

    def start(self, machine: str, argv: Sequence[str], *, stdin: bytes | None = None) -> Stream:
        """Begin a command whose output is read as it comes."""

    def relay(
        self, source: str, giving: Sequence[str], machine: str, taking: Sequence[str]
    ) -> Answer:
        """Hand one machine's output to another's input, and return what the taker said."""


def escape(text: str, most: int = 300) -> str:
    """Return a stranger's text on one line that cannot move a cursor or hide a word."""
    shown = "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text
    )
    return shown if len(shown) <= most else f"{shown[:most]}..."


def ask_all(
    machines: Iterable[str], ask: Callable[[str], Result], *, at_once: int = MOST_AT_ONCE
) -> dict[str, Result | SlipstreamError]:
    """Do the same for every machine concurrently; a machine that fails does not stop the others."""

    def ask_one(machine: str) -> Result | SlipstreamError:
        try:
            return ask(machine)
        except SlipstreamError as fault:
            return fault

    names = list(machines)
    with ThreadPoolExecutor(max_workers=max(1, min(at_once, len(names)))) as pool:
        return dict(zip(names, pool.map(ask_one, names), strict=True))
