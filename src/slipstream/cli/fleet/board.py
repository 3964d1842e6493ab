"""All machines at a time on the terminal: a line each, redrawn where that can be done."""

import shutil
import threading
from collections.abc import Iterable

from slipstream.cli.screen import Screen


class Board:
    """A line per machine; without a live terminal each change is a line of its own."""

    def __init__(self, screen: Screen, machines: Iterable[str]) -> None:
        self._screen, self._lines = screen, dict.fromkeys(machines, "")
        self._width = max(map(len, self._lines), default=0)
        self._drawn, self._lock = False, threading.Lock()

    def show(self, machine: str, state: str, message: str) -> None:
        """Change a machine's line."""
        line = f"{machine:<{self._width}}  {state:<11}  {message}"
        with self._lock:
            if self._lines.get(machine) == line:
                return
            self._lines[machine] = line
            # More lines than the terminal has cannot be redrawn.
            rows = shutil.get_terminal_size().lines - 1
            if self._screen.live and len(self._lines) < rows:
                self._redraw()
            else:
                self._screen.show_progress(line)

    def _redraw(self) -> None:
        width = shutil.get_terminal_size().columns - 1
        back = f"\033[{len(self._lines)}A" if self._drawn else ""
        lines = "".join(f"\r{line[:width]}\033[K\n" for line in self._lines.values())
        self._screen.messages.write(back + lines)
        self._screen.messages.flush()
        self._drawn = True
