"""The verbs of `slipstream fleet`, one thin file each, and what they have in common."""

import argparse
import difflib
import shutil
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from slipstream.cli.options import OptionAdder
from slipstream.cli.screen import Screen
from slipstream.errors import InvalidInputError, SlipstreamError, UsageError
from slipstream.fleet.record import FILE_NAME, FLEET_HINT, Fleet, read_fleet


def add_fleet(add: OptionAdder) -> None:
    """Add the option for the fleet's file."""
    add("--fleet FILE", "file of the fleet (default fleet.toml)", default=Path(FILE_NAME))


def add_force(add: OptionAdder) -> None:
    """Add the option that takes over the lease."""
    add("--force", "take over the fleet's lease if another machine holds it")


def load_fleet(options: argparse.Namespace) -> Fleet:
    """Read the fleet's file."""
    if not options.fleet.exists():
        raise InvalidInputError(f"there is no {options.fleet}", hint=FLEET_HINT)
    return read_fleet(options.fleet)


def choose_groups(fleet: Fleet, named: Sequence[str]) -> list[str]:
    """Return the groups that were named, by default all."""
    if unknown := [name for name in named if name not in fleet.groups]:
        close = difflib.get_close_matches(unknown[0], fleet.groups, n=1)
        raise UsageError(
            f"there is no group {unknown[0]}",
            hint=f"one of {', '.join(fleet.groups)}" if not close else f"did you mean {close[0]}?",
        )
    return list(named) or list(fleet.groups)


def raise_first(faults: Mapping[str, SlipstreamError], screen: Screen) -> None:
    """Warn of all machines that failed but the first, which is the command's failure."""
    for fault in [*faults.values()][1:]:
        screen.warn(fault)
    for fault in faults.values():
        raise fault


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
