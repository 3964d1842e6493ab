"""`slipstream fleet ledger`: requests of this machine's run; other verbs run it over SSH."""

import argparse
import math
import os

from slipstream.cli.arguments import natural_number, whole_number
from slipstream.cli.screen import Screen
from slipstream.errors import ExitCode
from slipstream.fleet.canary.ledgers import MOST_LINES, read_group_ledger
from slipstream.reporting.serving.ledger import render_ledger
from slipstream.serving.run import find_runs_root
from slipstream.steering.ledger_summary import summarize


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `fleet ledger`."""
    parser.add_argument("--port", type=whole_number, required=True, help="TCP port of the run")
    parser.add_argument(
        "--after",
        type=_moment,
        default=0.0,
        help="return requests that ended after this time, in seconds since 1970 (default 0)",
    )
    parser.add_argument(
        "--most",
        type=natural_number,
        default=MOST_LINES,
        help=f"return at most this many of the newest requests (default {MOST_LINES})",
    )


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Print what the run serves and its newest requests."""
    root = find_runs_root(os.environ)
    ledger = read_group_ledger(root, options.port, options.after, options.most)
    text = render_ledger(summarize(ledger.lines, "kind"))
    screen.show_data(text=text, document=ledger.model_dump_json())
    return ExitCode.DONE


def _moment(text: str) -> float:
    moment = float(text)
    if math.isnan(moment):
        raise argparse.ArgumentTypeError("not a moment")
    return moment
