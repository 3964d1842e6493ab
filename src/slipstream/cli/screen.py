"""The only code that writes to the terminal: stdout is data, stderr is everything else.

During long work the last line is a spinner, or a bar with rate and remaining time. A thread draws
it, so that a terminal is not silent for more than two seconds whatever is done.
"""

import json
import os
import re
import shutil
import sys
import textwrap
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TextIO

from slipstream.errors import InvalidInputError, SlipstreamError
from slipstream.units import show_time

_RED, _YELLOW, _CYAN, _PLAIN = "\033[1;31m", "\033[1;33m", "\033[36m", "\033[0m"
SILENT_SECONDS = 1.0
REDRAW_SECONDS = 0.2
BAR_WIDTH = 24
_GAP = re.compile(r"(?<=\S) {2,}(?=\S)")
_LEAST_COLUMN = 24
_LABEL = re.compile(r"-|[\w() -]{,24}: ")
_COMMAND = re.compile(r"(?:(?:hint|next): )?(?:slipstream|python|pip|curl|export|sudo|ssh) \S")
_SPINNER = "|/-\\"


@dataclass(frozen=True, slots=True)
class CountedWork:
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
        self._work: CountedWork | None = None
        self._written, self._drawn = clock(), False
        self._thread: threading.Thread | None = None

    def begin(self, text: str) -> None:
        """Show this work from now on, until `rest`."""
        with self._lock:
            self._work = CountedWork(text, self._clock())
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
                self._work = CountedWork(text, began, done, total, unit)

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
                self._work = CountedWork(line.strip(), self._clock())

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

    def show_data(self, *, text: str, document: str, as_is: bool = False) -> None:
        """Print a result: the text for people, or the JSON document under `--json`.

        On a terminal long lines are wrapped, but for what a program or a shell reads.
        """
        self._clear()
        if not (self.json or as_is) and self.output.isatty():
            text = wrap(text, shutil.get_terminal_size().columns)
        self.output.write((document if self.json else text) + "\n")
        self.output.flush()

    def write(self, text: str) -> None:
        """Print a part of a result as it comes; what the terminal has no letter for is a `?`."""
        encoding = self.output.encoding or "utf-8"
        self.output.write(text.encode(encoding, "replace").decode(encoding))
        self.output.flush()

    @property
    def is_typed(self) -> bool:
        """Whether the input is what somebody types."""
        return sys.stdin.isatty()

    def ask(self, prompt: str) -> str:
        """Read a line of the input, typed after a prompt or piped; raises EOFError at its end."""
        if self.is_typed and self.output.isatty():
            with suppress(ImportError):
                import readline  # noqa: F401 with it the line can be edited
            return input(prompt)
        if self.is_typed:
            self.messages.write(prompt)
            self.messages.flush()
        try:
            line = sys.stdin.readline()
        except UnicodeDecodeError as fault:
            raise InvalidInputError(
                f"the input is not text: {fault}", hint="iconv -t utf-8"
            ) from None
        if not line:
            raise EOFError
        return line.rstrip("\r\n")

    def show_progress(self, line: str) -> None:
        """Print a line of progress; not under `--json`."""
        if self.status is not None:
            self.status.print(wrap(line, shutil.get_terminal_size().columns))
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
        # A command that meets no error does not pay for it. Servers are quoted in errors.
        from slipstream.reporting.report import clean_text

        details = (f"  - {clean_text(detail)}" for detail in error.details)
        lines = [f"{label}: {clean_text(error.message)}", *details]
        text = "\n".join([*lines, "", f"hint: {clean_text(error.hint)}"])
        if self.messages.isatty():
            text = wrap(text, shutil.get_terminal_size().columns)
        text = text.replace(f"{label}:", self._paint(f"{label}:", colour), 1)
        start, hint, end = text.rpartition("\nhint:")
        self.messages.write(f"{start}\n{self._paint(hint.strip(), _CYAN)}{end}\n")

    def _paint(self, word: str, colour: str) -> str:
        return f"{colour}{word}{_PLAIN}" if self.colour else word


def wrap(text: str, width: int) -> str:
    """Break long lines at blanks; the rest of one stands below the column that it belongs to.

    A command stays in one line, or it could not be pasted.
    """
    lines, continued = list[str](), False
    for line in text.split("\n"):
        columns = [gap.end() for gap in _GAP.finditer(line) if gap.end() <= width - _LEAST_COLUMN]
        start = columns[-1] if columns else len(line) - len(line.lstrip())
        is_command = continued or line.endswith("\\") or _COMMAND.match(line, start)
        if len(line) <= width or is_command or "\033" in line:
            lines.append(line)
        else:
            comment = line.startswith("# ", start)
            labelled = not columns and _LABEL.match(line, start)
            hang = line[:start] + "# " if comment else " " * (start + 2 * bool(labelled))
            lines += textwrap.wrap(
                line,
                width,
                subsequent_indent=hang,
                break_long_words=False,
                break_on_hyphens=False,
            )
        continued = line.endswith("\\")
    return "\n".join(lines)


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
