"""`slipstream probe`: this machine, or a saved portrait of another, as text or JSON."""

import argparse
import os
from datetime import UTC, datetime

from slipstream.cli.screen import Screen
from slipstream.errors import ExitCode
from slipstream.hardware import find_obstacle, load_host, read_host, this_machine
from slipstream.reporting.text.host import render_host


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `probe` takes."""
    parser.add_argument(
        "--host",
        metavar="NAME|FILE",
        help="show a known machine, or what `slipstream probe --json` wrote on another one",
    )


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Portray the machine, and say if DFlash cannot be served on it."""
    if options.host is None:
        host = read_host(this_machine(os.environ, datetime.now(UTC)))
    else:
        host = load_host(options.host)
    screen.show_data(text=render_host(host), document=host.to_json())
    if (obstacle := find_obstacle(host)) is not None:
        screen.warn(obstacle)
    return ExitCode.DONE
