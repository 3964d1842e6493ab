"""The one place that writes to the terminal: stdout is data, stderr is everything else."""

import json
import os
import shutil
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TextIO

from slipstream.errors import SlipstreamError

_RED, _YELLOW, _CYAN, _PLAIN = "\033[1;31m", "\033[1;33m", "\033[36m", "\033[0m"


@dataclass(frozen=True, slots=True)
class Screen:
    """Where output goes and how: for a machine or a person, in colour or without."""

    output: TextIO
    messages: TextIO
    json: bool = False
    verbose: bool = False
    colour: bool = False

    def show_data(self, *, text: str, document: str) -> None:
        """Print a result: the text for people, or the JSON document under `--json`."""
        self.output.write((document if self.json else text) + "\n")
        self.output.flush()

    def show_progress(self, line: str) -> None:
        """Tell people how far long work is; a line of its own, so that a log keeps it."""
        if not self.json:
            self.messages.write(line + "\n")
            self.messages.flush()

    @property
    def live(self) -> bool:
        """Whether a line of the messages can be rewritten."""
        return not self.json and self.messages.isatty() and os.environ.get("TERM") != "dumb"

    def draw(self, line: str) -> None:
        """Rewrite the line of the cursor, cut to the terminal's width; only where it is live."""
        width = shutil.get_terminal_size().columns - 1
        self.messages.write(f"\r{line[:width]}\033[K")
        self.messages.flush()

    def warn(self, error: SlipstreamError) -> None:
        """Tell people of something that did not stop the work."""
        if not self.json:
            self._write_message("warning", _YELLOW, error)

    def fail(self, error: SlipstreamError) -> None:
        """Render the failure that ends the command; under `--json` as one document."""
        if self.verbose:
            traceback.print_exception(error, file=self.messages)
        if self.json:
            self.messages.write(json.dumps({"error": describe(error)}, indent=2) + "\n")
        else:
            self._write_message("error", _RED, error)

    def _write_message(self, label: str, colour: str, error: SlipstreamError) -> None:
        lines = [f"{self._paint(label + ':', colour)} {error.message}"]
        lines += [f"  - {detail}" for detail in error.details]
        lines += ["", f"{self._paint('hint:', _CYAN)} {error.hint}"]
        self.messages.write("\n".join(lines) + "\n")

    def _paint(self, word: str, colour: str) -> str:
        return f"{colour}{word}{_PLAIN}" if self.colour else word


def describe(error: SlipstreamError) -> dict[str, object]:
    """Give an error as a machine reads it."""
    return {
        "kind": type(error).__name__,
        "message": error.message,
        "details": list(error.details),
        "hint": error.hint,
        "exit_code": int(error.exit_code),
    }


def open_screen(environment: Mapping[str, str], *, as_json: bool, verbose: bool) -> Screen:
    """Make the screen of this process; https://no-color.org and dumb terminals are respected."""
    plain = bool(environment.get("NO_COLOR")) or environment.get("TERM") == "dumb"
    return Screen(
        output=sys.stdout,
        messages=sys.stderr,
        json=as_json,
        verbose=verbose,
        colour=sys.stderr.isatty() and not plain,
    )
