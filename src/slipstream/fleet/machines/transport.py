"""What a fleet needs of its machines, whatever reaches them.

A far machine is another's: what it prints is bounded, and shown by nobody unescaped.
"""

import json
import re
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
# What a machine does now: its name, a state and a line about it.
Show = Callable[[str, str, str], None]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command on a machine left behind; all of it is a stranger's text."""

    code: int
    stdout: bytes
    stderr: bytes

    @property
    def document(self) -> bytes:
        """Return its output from the line on that begins a JSON document: logins print first."""
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
        self,
        source: str,
        giving: Sequence[str],
        machine: str,
        taking: Sequence[str],
        *,
        timeout: float,
    ) -> Answer:
        """Hand one machine's output to another's input, and return what the taker said."""


def _skip_chatter(output: bytes) -> bytes:
    chatter = re.match(rb"(?:[^{\n][^\n]*\n|\n)*", output)
    return output[chatter.end() if chatter else 0 :]


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
