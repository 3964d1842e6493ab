"""`slipstream inspect`: what a checkpoint's files say, and whether a drafter fits it."""

import argparse

from slipstream.checkpoints import read_checkpoint
from slipstream.checkpoints.pairing import pair
from slipstream.cli.arguments import whole_number
from slipstream.cli.plan import TARGET_HELP
from slipstream.cli.screen import Screen
from slipstream.engines.vllm import find_engine_faults
from slipstream.errors import ExitCode
from slipstream.reporting.text.checkpoint import render_checkpoint, render_pairing

EXAMPLES = """\
# architecture, layers, quantization and size of a model, without its weights
slipstream inspect Qwen/Qwen3-8B
# does this drafter fit? exit code 1 if not
slipstream inspect Qwen/Qwen3-8B --drafter z-lab/Qwen3-8B-DFlash-b16
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `inspect`."""
    parser.add_argument("target", metavar="TARGET", help=TARGET_HELP)
    parser.add_argument(
        "--drafter",
        metavar="DRAFTER",
        help="local folder or hub name of a drafter to check against the target",
    )
    parser.add_argument(
        "--revision",
        metavar="REVISION",
        help="branch, tag or commit of the target on the hub (default: the main branch)",
    )
    parser.add_argument(
        "--k",
        metavar="TOKENS",
        type=whole_number,
        help="draft length to check the pair for, in tokens per step",
    )
    parser.add_argument(
        "--context",
        metavar="TOKENS",
        type=whole_number,
        help="context length to check the pair for",
    )
    parser.usage = "slipstream inspect TARGET [options]"


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Print one checkpoint, or a pair with its faults."""
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
