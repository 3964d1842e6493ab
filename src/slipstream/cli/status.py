"""`slipstream status`: all runs, or the state of one."""

import argparse
import os
import time
from datetime import UTC, datetime

from slipstream.cli.run_options import add_run
from slipstream.cli.screen import Screen
from slipstream.errors import ExitCode
from slipstream.reporting.text.run import render_status, render_statuses
from slipstream.serving.run import find_runs_root
from slipstream.serving.run_status import list_statuses, read_status
from slipstream.serving.selection import choose_run

EXAMPLES = """\
# list all runs; exit code 1 if none is ready
slipstream status
# the state, address, memory and acceptance of one run, for a script
slipstream status Qwen3-8B --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `status`."""
    add_run(parser, default="list all runs")
    parser.usage = "slipstream status [RUN] [options]"


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Print one run or all of them; the exit code is 1 if none is ready."""
    root, now = find_runs_root(os.environ), datetime.now(UTC)
    if options.run is not None:
        status = read_status(*choose_run(root, options.run), time.monotonic())
        screen.show_data(text=render_status(status, now), document=status.to_json())
        states = [status.state]
    else:
        listed = list_statuses(root, time.monotonic())
        screen.show_data(text=render_statuses(listed, now), document=listed.to_json())
        states = [status.state for status in listed.runs]
    return ExitCode.DONE if "ready" in states else ExitCode.EXPECTED_FAILURE
