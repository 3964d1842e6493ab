"""`slipstream fleet answers`: a sample of this machine's answers; other verbs run it over SSH."""

import argparse
import os

from slipstream.cli.arguments import whole_number
from slipstream.cli.screen import Screen
from slipstream.errors import ExitCode
from slipstream.fleet.canary.answers import ANSWERS, sample_answers
from slipstream.fleet.canary.ledgers import find_run
from slipstream.measuring.client.endpoint import Endpoint
from slipstream.serving.access.keys import borrow_key
from slipstream.serving.access.tls import Certificate
from slipstream.serving.run import find_runs_root


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `fleet answers`."""
    parser.add_argument("--port", type=whole_number, required=True, help="TCP port of the run")
    parser.add_argument(
        "--number",
        type=whole_number,
        default=ANSWERS,
        help=f"number of answers to return (default {ANSWERS})",
    )


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Ask the run prompts of ours, and print how far its tokens are from the target's best."""
    _, served = find_run(find_runs_root(os.environ), options.port)
    assert served.url is not None
    with borrow_key(served.terms.needed_keys) as key:
        endpoint = Endpoint(served.url, key=key, certificate=Certificate.of(served.plan))
        sample = sample_answers(endpoint, options.number)
    worst = max((one.worst for one in sample.answers), default=0.0)
    text = f"{len(sample.answers)} answers, the worst token {worst:.3f} below the best"
    screen.show_data(text=text, document=sample.to_json())
    return ExitCode.DONE
