"""`slipstream ledger`: steps, draft tokens, accepted tokens and times of a run's requests."""

import argparse
import os

from slipstream.cli.run_options import add_run
from slipstream.cli.screen import Screen
from slipstream.errors import ExitCode, InvalidInputError
from slipstream.reporting.text.ledger import render_ledger
from slipstream.serving.run import find_runs_root
from slipstream.serving.selection import choose_run
from slipstream.serving.spare_folder import find_engine_folder
from slipstream.steering.ledger import read_ledger, summarize

EXAMPLES = """\
# acceptance and time by kind of content
slipstream ledger
# the same by API key, for a certain run
slipstream ledger Qwen3-8B --by key
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `ledger`."""
    add_run(parser, default="the newest")
    parser.add_argument(
        "--by",
        choices=("kind", "key", "route", "context"),
        default="kind",
        help="how requests are grouped: by kind of content, API key, route or context length "
        "(default kind)",
    )
    parser.usage = "slipstream ledger [RUN] [options]"


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Print the sums over all requests that the ledger still holds."""
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
