"""`slipstream train`: a drafter for a target, from prompts or one's own traffic."""

import argparse
import os
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.checkpoints import read_checkpoint
from slipstream.cli.arguments import natural_number, positive_number, whole_number
from slipstream.cli.screen import Screen
from slipstream.cli.weights import Weights, add_accept_changes
from slipstream.errors import ExitCode
from slipstream.hardware import read_host, this_machine
from slipstream.training.preflight import require_parts
from slipstream.training.settings import METHODS
from slipstream.user_folders import recipe_overlay, slipstream_cache

if TYPE_CHECKING:
    from slipstream.training.preparation import Order

# PyTorch reads it when it is first imported. A step of training took 0.31 s instead of 0.43 s.
HUGE_PAGES = ("THP_MEM_ALLOC_ENABLE", "1")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `train` takes."""
    parser.add_argument("target", metavar="TARGET", help="a folder, or a hub model")
    parser.add_argument(
        "--prompts", metavar="FILE", nargs="+", required=True, help="JSONL of prompts or chat logs"
    )
    parser.add_argument(
        "--from", dest="from_drafter", metavar="DRAFTER", help="go on from this one"
    )
    parser.add_argument(
        "--method",
        choices=METHODS,
        help="how it drafts (default dflash); dflash2, dspark: GPU only",
    )
    parser.add_argument("--steps", type=whole_number, help="default 8000")
    parser.add_argument("--max-tokens", type=whole_number, default=384, help="of a response")
    parser.add_argument("--thinking", choices=("on", "off"), help="if the template can be told")
    parser.add_argument("--learning-rate", type=positive_number, help="1e-3, with --from 3e-4")
    parser.add_argument("--layers", type=whole_number, help="of the drafter")
    parser.add_argument("--block-size", type=whole_number, help="the anchor and its draft tokens")
    parser.add_argument(
        "--layer-ids", type=whole_number, nargs="+", help="hidden states; 1 is the first layer's"
    )
    parser.add_argument("--mask-token-id", type=natural_number, help="one that text never holds")
    parser.add_argument("--intermediate-size", type=whole_number, help="of the drafter's layers")
    parser.add_argument("--held-out", type=float, default=0.05, help="share kept for judging")
    parser.add_argument(
        "--judged", type=whole_number, default=24, help="prompts a kind to judge by"
    )
    parser.add_argument("--seed", type=natural_number, default=0)
    parser.add_argument("--run", metavar="FOLDER", help="where the run is kept, and taken up again")
    parser.add_argument("--promote", action="store_true", help="make the pair a recipe of yours")
    add_accept_changes(parser)
    parser.add_argument("--dry-run", action="store_true", help="stages, tokens, disk and time only")


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Train, or say what training would take."""
    require_parts()
    from slipstream.reporting.text.train import render_estimate, render_run
    from slipstream.training.estimate import TrainEstimate
    from slipstream.training.pipeline import run_pipeline
    from slipstream.training.preparation import prepare
    from slipstream.training.promotion import promote
    from slipstream.training.run import TrainFolder, name_run
    from slipstream.training.workshop import Workshop

    engine_environment = dict(os.environ)
    os.environ.setdefault(*HUGE_PAGES)
    host = read_host(this_machine(os.environ, datetime.now(UTC)))
    target = read_checkpoint(options.target)
    order, on_gpu = _read_order(options), bool(host.accelerators)
    fresh, conversations = prepare(order, target, command=_show_command(), on_gpu=on_gpu)
    folder = TrainFolder(_find_folder(options, name_run(fresh.settings)))
    if options.dry_run:
        expected = TrainEstimate.make(fresh, target, conversations, host, folder.path)
        screen.show_data(text=render_estimate(expected), document=expected.to_json())
        return ExitCode.DONE
    folder.begin(fresh)  # A folder that cannot take the run is refused before weights are fetched.
    weights = Weights(screen, os.environ, options.accept_changes)
    start = options.from_drafter and weights.find(options.from_drafter, None).folder
    shop = Workshop(
        folder,
        target,
        weights.find(options.target, target.revision).folder,
        host,
        engine_environment,
        screen.show_progress,
        start,
    )
    done = run_pipeline(fresh, shop)
    if options.promote:
        file = promote(done, folder.drafter, host, recipe_overlay(os.environ))
        screen.show_progress(f"promoted: {file}")
    screen.show_data(text=render_run(done, folder), document=done.to_json())
    return ExitCode.DONE


def _read_order(options: argparse.Namespace) -> "Order":
    from slipstream.training.design import Asked
    from slipstream.training.preparation import Order

    return Order(
        target=options.target,
        method=options.method,
        prompts=tuple(options.prompts),
        from_drafter=options.from_drafter,
        asked=Asked(
            layers=options.layers,
            block_size=options.block_size,
            target_layer_ids=None if options.layer_ids is None else tuple(options.layer_ids),
            mask_token_id=options.mask_token_id,
            intermediate_size=options.intermediate_size,
        ),
        steps=options.steps,
        learning_rate=options.learning_rate,
        max_tokens=options.max_tokens,
        thinking=None if options.thinking is None else options.thinking == "on",
        held_out_share=options.held_out,
        judged_a_kind=options.judged,
        seed=options.seed,
    )


def _find_folder(options: argparse.Namespace, name: str) -> Path:
    if options.run is not None:
        return Path(options.run)
    return slipstream_cache(os.environ) / "training" / name


def _show_command() -> str:
    return shlex.join(["slipstream", *sys.argv[1:]])
