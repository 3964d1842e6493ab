"""A terminal with a command of ours on it, and a person before it."""

import fcntl
import os
import pty
import select
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

PATIENCE_SECONDS = 60


class Typist:
    """Reads what a command shows, and types."""

    def __init__(self, terminal: int, child: "subprocess.Popen[bytes]") -> None:
        self.terminal, self.child, self.shown = terminal, child, b""

    def read_until(
        self, condition: Callable[[bytes], bool], seconds: float = PATIENCE_SECONDS
    ) -> None:
        until = time.monotonic() + seconds
        while not condition(self.shown):
            assert time.monotonic() < until, self.shown
            if select.select([self.terminal], [], [], 0.5)[0]:
                self.shown += os.read(self.terminal, 65536)

    def type(self, key: bytes) -> None:
        os.write(self.terminal, key)

    def interrupt(self, condition: Callable[[bytes], bool]) -> None:
        """Press Ctrl-C until it shows: Python loses one between a prompt and its wait for a key."""
        until = time.monotonic() + PATIENCE_SECONDS
        while not condition(self.shown):
            assert time.monotonic() < until, self.shown
            self.type(b"\x03")
            with suppress(AssertionError):
                self.read_until(condition, 5)


@contextmanager
def open_terminal(*words: str, **environment: str) -> Iterator[Typist]:
    """Run a verb in a terminal, which it gives back as it was."""
    terminal, inner = pty.openpty()
    termios.tcsetwinsize(inner, (30, 90))
    before = termios.tcgetattr(inner)
    child = subprocess.Popen(
        [sys.executable, "-m", "slipstream", *words],
        stdin=inner,
        stdout=inner,
        stderr=inner,
        env={**os.environ, "TERM": "xterm", **environment},
        start_new_session=True,
        preexec_fn=lambda: _take_terminal(inner),
    )
    try:
        yield Typist(terminal, child)
        assert termios.tcgetattr(inner) == before
    finally:
        child.kill()
        child.wait()
        os.close(inner)
        os.close(terminal)


def _take_terminal(terminal: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
