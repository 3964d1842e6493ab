"""`slipstream probe`: this machine, or a saved portrait of another, as text or JSON."""

import argparse
import os
from datetime import UTC, datetime
from pathlib import Path

from slipstream.cli.screen import Screen
from slipstream.errors import ExitCode
from slipstream.hardware import Host, find_obstacle, read_host, this_machine
from slipstream.records import read_record
from slipstream.reporting.host_text import render_host


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `probe` takes."""
    parser.add_argument(
        "--host",
        type=Path,
        metavar="FILE",
        help="show the portrait that `slipstream probe --json` wrote on another machine",
    )


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Portray the machine, and say if DFlash cannot be served on it."""
    if options.host is None:
        host = read_host(this_machine(os.environ, datetime.now(UTC)))
    else:
        host = read_record(options.host, Host, hint="slipstream probe --json > FILE")
    screen.show_data(text=render_host(host), document=host.to_json())
    if (obstacle := find_obstacle(host)) is not None:
        screen.warn(obstacle)
    return ExitCode.DONE
