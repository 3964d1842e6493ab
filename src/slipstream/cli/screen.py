"""The only code that writes to the terminal: stdout is data, stderr is everything else."""

import json
import os
import shutil
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TextIO

from slipstream.cli.status_line import StatusLine
from slipstream.errors import SlipstreamError

_RED, _YELLOW, _CYAN, _PLAIN = "\033[1;31m", "\033[1;33m", "\033[36m", "\033[0m"


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
