"""`slipstream fleet top`: all groups as they work, redrawn every few seconds."""

import argparse
import shutil
from datetime import UTC, datetime

from slipstream.cli.fleet import add_fleet, load_fleet
from slipstream.cli.options import OptionAdder
from slipstream.cli.screen import Screen
from slipstream.cli.serving.top import draw, full_screen, is_live, wait_for_quit
from slipstream.errors import ExitCode
from slipstream.fleet.machines.commands import Machines
from slipstream.fleet.machines.openssh import open_ssh
from slipstream.fleet.running.status import FleetView, read_fleet_status, read_fleet_view
from slipstream.reporting.fleet.status import render_fleet_view

# Every look is a login on each machine.
REDRAW_SECONDS = 3.0


EXAMPLES = """\
# watch the fleet
slipstream fleet top
# print one snapshot
slipstream fleet top --once
"""


def add_arguments(add: OptionAdder) -> None:
    add_fleet(add)
    add("--once", "print one snapshot and exit (default without a terminal)")


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Show the fleet until `q`, or once."""
    fleet = load_fleet(options)
    with open_ssh(fleet) as far:
        if options.once or screen.json or not is_live(screen):
            view = _look(far)
            screen.show_data(text="\n".join(render_fleet_view(view)), document=view.to_json())
            return ExitCode.DONE
        with full_screen(screen):
            while True:
                size, lines = shutil.get_terminal_size(), render_fleet_view(_look(far))
                draw(screen, [line[: size.columns - 1] for line in lines[: size.lines - 1]])
                if wait_for_quit(REDRAW_SECONDS):
                    return ExitCode.DONE


def _look(far: Machines) -> FleetView:
    return read_fleet_view(far, read_fleet_status(far, datetime.now(UTC)))
