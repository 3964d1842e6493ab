"""The only code that writes to the terminal: stdout is data, stderr is everything else.

During long work the last line is a spinner, or a bar with rate and remaining time. A thread draws
it, so that a terminal is not silent for more than two seconds whatever is done.
"""

import json
import os
import shutil
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TextIO

from slipstream.errors import SlipstreamError
from slipstream.units import show_time

_RED, _YELLOW, _CYAN, _PLAIN = "\033[1;31m", "\033[1;33m", "\033[36m", "\033[0m"
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


@dataclass(frozen=True, slots=True)
class Screen:
    """The output streams of a command, and whether they get JSON, colour and tracebacks."""

    output: TextIO
    messages: TextIO
    json: bool = False
    verbose: bool = False
    colour: bool = False
    status: StatusLine | None = None

    def show_data(self, *, text: str, document: str) -> None:
        """Print a result: the text for people, or the JSON document under `--json`."""
        self._clear()
        self.output.write((document if self.json else text) + "\n")
        self.output.flush()

    def show_progress(self, line: str) -> None:
        """Print a line of progress; not under `--json`."""
        if self.status is not None:
            self.status.print(line)
        elif not self.json:
            self.messages.write(line + "\n")
            self.messages.flush()

    @contextmanager
    def busy(self, text: str) -> Iterator[None]:
        """Show on a terminal that this work goes on, until the block ends."""
        self.begin(text)
        try:
            yield
        finally:
            self.rest()

    def begin(self, text: str) -> None:
        """Show on a terminal that this work goes on, until `rest`."""
        if self.status is not None:
            self.status.begin(text)

    def rest(self) -> None:
        """Show no work any more."""
        if self.status is not None:
            self.status.rest()

    def count(self, text: str, done: int, total: int, unit: str) -> None:
        """Show on a terminal how much of the work is done."""
        if self.status is not None:
            self.status.count(text, done, total, unit)

    def _clear(self) -> None:
        if self.status is not None:
            self.status.clear()

    @property
    def live(self) -> bool:
        """Whether the current line on stderr can be redrawn."""
        return not self.json and self.messages.isatty() and os.environ.get("TERM") != "dumb"

    def draw(self, line: str) -> None:
        """Redraw the current line, cut to the terminal's width."""
        self._clear()
        width = shutil.get_terminal_size().columns - 1
        self.messages.write(f"\r{line[:width]}\033[K")
        self.messages.flush()

    def warn(self, error: SlipstreamError) -> None:
        """Print a warning: a problem that did not stop the work."""
        if not self.json:
            self._write_message("warning", _YELLOW, error)

    def fail(self, error: SlipstreamError) -> None:
        """Print the error that ends the command; under `--json` as one document."""
        self.rest()
        if self.verbose:
            traceback.print_exception(error, file=self.messages)
        if self.json:
            self.messages.write(json.dumps({"error": describe(error)}, indent=2) + "\n")
        else:
            self._write_message("error", _RED, error)

    def _write_message(self, label: str, colour: str, error: SlipstreamError) -> None:
        self._clear()
        lines = [f"{self._paint(label + ':', colour)} {error.message}"]
        lines += [f"  - {detail}" for detail in error.details]
        lines += ["", f"{self._paint('hint:', _CYAN)} {error.hint}"]
        self.messages.write("\n".join(lines) + "\n")

    def _paint(self, word: str, colour: str) -> str:
        return f"{colour}{word}{_PLAIN}" if self.colour else word


def describe(error: SlipstreamError) -> dict[str, object]:
    """Return an error as a JSON object."""
    return {
        "kind": type(error).__name__,
        "message": error.message,
        "details": list(error.details),
        "hint": error.hint,
        "exit_code": int(error.exit_code),
    }


def open_screen(environment: Mapping[str, str], *, as_json: bool, verbose: bool) -> Screen:
    """Return the screen of this process; `NO_COLOR` and dumb terminals are respected."""
    terminal = sys.stderr.isatty() and environment.get("TERM") != "dumb"
    return Screen(
        output=sys.stdout,
        messages=sys.stderr,
        json=as_json,
        verbose=verbose,
        colour=terminal and not environment.get("NO_COLOR"),
        status=StatusLine(sys.stderr) if terminal and not as_json else None,
    )
