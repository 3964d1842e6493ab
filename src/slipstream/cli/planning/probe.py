"""`slipstream probe`: this machine or a saved description of another, as text or JSON."""

import argparse
import os
from datetime import UTC, datetime

from slipstream.cli.options import OptionAdder, add_host
from slipstream.cli.screen import Screen
from slipstream.errors import ExitCode
from slipstream.hardware import find_obstacle, load_host, read_host, this_machine
from slipstream.reporting.text.host import render_host

EXAMPLES = """\
# describe this machine
slipstream probe
# save the description, to plan for this machine elsewhere with --host machine.json
slipstream probe --json > machine.json
"""


def add_arguments(add: OptionAdder) -> None:
    add_host(add, "machine to describe")
    add.parser.usage = "slipstream probe [options]"


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Print the host, with a warning if DFlash cannot be served on it."""
    here = this_machine(os.environ, datetime.now(UTC)) if options.host is None else None
    host = read_host(here) if here else load_host(options.host)
    screen.show_data(text=render_host(host), document=host.to_json())
    if (obstacle := find_obstacle(host)) is not None:
        screen.warn(obstacle)
    return ExitCode.DONE
