"""`slipstream fleet here`: this machine as a fleet sees it; other verbs run it over SSH."""

import argparse
import os
from datetime import UTC, datetime

from slipstream.cli.screen import Screen
from slipstream.errors import ExitCode
from slipstream.fleet.far_side.this_machine import describe_here
from slipstream.hardware import this_machine
from slipstream.reporting.text.host import render_host


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `fleet here`."""
    parser.add_argument(
        "--model",
        metavar="NAME",
        action="append",
        default=[],
        help="model whose hash to report; may be repeated",
    )


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Describe this machine."""
    view = describe_here(this_machine(os.environ, datetime.now(UTC)), options.model)
    screen.show_data(text=render_host(view.host), document=view.to_json())
    return ExitCode.DONE
