"""The last line of a terminal during long work: a spinner, or a bar with rate and remaining time.

A thread draws it, so that a terminal is not silent for more than two seconds whatever is done.
"""

import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO

from slipstream.units import show_time

SILENT_SECONDS = 1.0
REDRAW_SECONDS = 0.2
BAR_WIDTH = 24
_SPINNER = "|/-\\"


@dataclass(frozen=True, slots=True)
class Work:
    """The current work: its name, since when, and its count if it has one."""

    text: str
    began: float
    done: int = 0
    total: int = 0
    unit: str = ""

    def describe(self, now: float) -> str:
        """Return the line: a bar if there is a total, else a spinner with the time so far."""
        seconds = now - self.began
        if not self.total:
            return f"{_SPINNER[int(now / REDRAW_SECONDS) % 4]} {self.text} ({show_time(seconds)})"
        full = BAR_WIDTH * min(self.done, self.total) // self.total
        line = f"[{'#' * full}{' ' * (BAR_WIDTH - full)}] {self.text}: "
        line += f"{self.done} of {self.total} {self.unit}"
        if not self.done or seconds <= 0:
            return line
        rate = self.done / seconds
        return f"{line}, {rate:.3g}/s, {show_time((self.total - self.done) / rate)} left"


class StatusLine:
    """A line that is redrawn while work goes on, and cleared before anything else is written."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._lock, self._stop = threading.RLock(), threading.Event()
        self._work: Work | None = None
        self._written, self._drawn = clock(), False
        self._thread: threading.Thread | None = None

    def begin(self, text: str) -> None:
        """Show this work from now on, until `rest`."""
        with self._lock:
            self._work = Work(text, self._clock())
            self._written = self._clock()
            if self._thread is None or not self._thread.is_alive():
                self._stop.clear()
                self._thread = threading.Thread(target=self._redraw, daemon=True)
                self._thread.start()

    def count(self, text: str, done: int, total: int, unit: str) -> None:
        """Show how much of the current work is done."""
        with self._lock:
            if (work := self._work) is not None:
                began = work.began if work.total and work.text == text else self._clock()
                self._work = Work(text, began, done, total, unit)

    def rest(self) -> None:
        """Show nothing any more, and end the thread."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        with self._lock:
            self._work = None
            self.clear()

    def print(self, line: str) -> None:
        """Write a line of its own; it names the work from now on."""
        with self._lock:
            self.clear()
            self._stream.write(line + "\n")
            self._stream.flush()
            if self._work is not None:
                self._work = Work(line.strip(), self._clock())

    def clear(self) -> None:
        """Clear the line, because something else is about to be written."""
        with self._lock:
            if self._drawn:
                self._stream.write("\r\033[K")
                self._stream.flush()
            self._drawn, self._written = False, self._clock()

    def _redraw(self) -> None:
        while not self._stop.wait(REDRAW_SECONDS):
            self.draw()

    def draw(self) -> None:
        """Draw the current work, unless something was written a moment ago."""
        with self._lock:
            now = self._clock()
            if self._work is None or (not self._drawn and now - self._written < SILENT_SECONDS):
                return
            width = shutil.get_terminal_size().columns - 1
            self._stream.write(f"\r{self._work.describe(now)[:width]}\033[K")
            self._stream.flush()
            self._drawn = True
