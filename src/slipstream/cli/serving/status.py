"""`slipstream status`: all runs, the state of one, or the sums of its requests."""

import argparse
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import get_args

from slipstream.cli.options import OptionAdder, add_run
from slipstream.cli.screen import Screen
from slipstream.errors import ExitCode, InvalidInputError
from slipstream.reporting.serving.run import render_ledger, render_status, render_statuses
from slipstream.serving.run import find_runs_root
from slipstream.serving.run_status import list_statuses, read_status
from slipstream.serving.selection import choose_run
from slipstream.steering.ledger import Grouping, read_ledger, summarize

EXAMPLES = """\
# list all runs; exit code 1 if none is ready
slipstream status
# the state, address, memory, open requests and steering of one run, for a script
slipstream status Qwen3-8B --json
# acceptance and times of its requests by kind of content
slipstream status Qwen3-8B --by kind
"""


def add_arguments(add: OptionAdder) -> None:
    add_run(add, default="list all runs; with --by the newest")
    add(
        "--by",
        "summarize drafted and accepted tokens and times of a run's requests instead: by kind of "
        "content, API key, route or context length",
        choices=get_args(Grouping),
    )
    add.parser.usage = "slipstream status [RUN] [options]"


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Print one run or all of them; the exit code is 1 if none is ready."""
    root, now = find_runs_root(os.environ), datetime.now(UTC)
    if options.by is not None:
        return _sum_up(root, options.run, options.by, screen)
    if options.run is not None:
        status = read_status(*choose_run(root, options.run), time.monotonic())
        screen.show_data(text=render_status(status, now), document=status.to_json())
        states = [status.state]
    else:
        listed = list_statuses(root, time.monotonic())
        screen.show_data(text=render_statuses(listed, now), document=listed.to_json())
        states = [status.state for status in listed.runs]
    return ExitCode.DONE if "ready" in states else ExitCode.EXPECTED_FAILURE


def _sum_up(root: Path, name: str | None, by: Grouping, screen: Screen) -> ExitCode:
    """Print the sums over all requests that the ledger still holds."""
    folder, chosen = choose_run(root, name)
    if not (files := folder.list_ledgers()):
        raise InvalidInputError(
            f"{chosen.id} has no ledger: no request has ended yet, or its engine writes none",
            hint=f"slipstream status {chosen.id}",
        )
    summary = summarize(read_ledger(files), by)
    screen.show_data(text=render_ledger(summary), document=summary.to_json())
    return ExitCode.DONE
