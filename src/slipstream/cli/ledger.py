"""`slipstream ledger`: what a run's requests drafted, had accepted and took."""

import argparse
import os

from slipstream.cli.screen import Screen
from slipstream.errors import ExitCode, InvalidInputError
from slipstream.reporting.text.ledger import render_ledger
from slipstream.serving.run import find_runs_root
from slipstream.serving.selection import choose_run
from slipstream.serving.spare_folder import find_engine_folder
from slipstream.steering.ledger import read_ledger
from slipstream.steering.ledger_summary import summarize


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `ledger` takes."""
    parser.add_argument("run", metavar="RUN", nargs="?", help="default: the newest")
    parser.add_argument(
        "--by",
        choices=("kind", "key", "route", "context"),
        default="kind",
        help="what requests are grouped by: kind of content (default), key, route, context length",
    )


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Print the sums of all requests that the ledger still has."""
    folder, chosen = choose_run(find_runs_root(os.environ), options.run)
    files = find_engine_folder(folder, chosen).list_ledgers()
    if not files:
        raise InvalidInputError(
            f"{chosen.id} has no ledger: no request has ended yet, or its engine writes none",
            hint=f"slipstream status {chosen.id}",
        )
    summary = summarize(read_ledger(files), options.by)
    screen.show_data(text=render_ledger(summary), document=summary.to_json())
    return ExitCode.DONE
