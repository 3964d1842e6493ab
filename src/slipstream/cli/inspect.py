"""`slipstream inspect`: what a checkpoint's files tell, and whether a drafter fits it."""

import argparse

from slipstream.checkpoints import read_checkpoint
from slipstream.checkpoints.pairing import pair
from slipstream.cli.arguments import whole_number
from slipstream.cli.screen import Screen
from slipstream.engines.vllm import find_engine_faults
from slipstream.errors import ExitCode
from slipstream.reporting.text.checkpoint import render_checkpoint, render_pairing


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `inspect` takes."""
    parser.add_argument("target", metavar="TARGET", help="a folder, or a model of the hub")
    parser.add_argument("--drafter", help="a folder or hub model: does it fit the target")
    parser.add_argument("--revision", help="the target's branch, tag or commit on the hub")
    parser.add_argument("--k", type=whole_number, help="how many tokens would be drafted")
    parser.add_argument("--context", type=whole_number, help="how long a sequence would be served")


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Show one checkpoint, or a pair with its faults."""
    target = read_checkpoint(options.target, options.revision)
    if options.drafter is None:
        screen.show_data(text=render_checkpoint(target), document=target.to_json())
        return ExitCode.DONE
    drafter = read_checkpoint(options.drafter)
    pairing = pair(target, drafter, draft_length=options.k, context=options.context)
    engine = find_engine_faults(target, drafter, runner="V2", on_cpu=False)
    pairing = pairing.model_copy(update={"faults": (*pairing.faults, *engine)})
    screen.show_data(text=render_pairing(pairing), document=pairing.to_json())
    refused = any(fault.verdict == "refuse" for fault in pairing.faults)
    return ExitCode.EXPECTED_FAILURE if refused else ExitCode.DONE
