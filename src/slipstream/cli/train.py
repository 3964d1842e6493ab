"""`slipstream train`: train a drafter for a target on prompts or recorded requests."""

import argparse
import os
import shlex
import sys
from datetime import UTC, datetime

from slipstream.checkpoints import read_checkpoint
from slipstream.cli.measuring.measuring_options import add_seed, add_thinking
from slipstream.cli.options import (
    OptionAdder,
    add_accept_changes,
    natural_number,
    positive_number,
    whole_number,
)
from slipstream.cli.screen import Screen
from slipstream.cli.weights import WeightsOnDisk
from slipstream.errors import ExitCode
from slipstream.hardware import read_host, this_machine
from slipstream.training.preparation import prepare, require_parts
from slipstream.training.run import METHODS, TrainFolder, TrainOptions, name_run
from slipstream.user_folders import recipe_overlay, slipstream_cache

# PyTorch reads it when it is first imported. A step of training took 0.31 s instead of 0.43 s.
HUGE_PAGES = ("THP_MEM_ALLOC_ENABLE", "1")


EXAMPLES = """\
# estimate time and disk space before training on recorded requests
slipstream train Qwen/Qwen3-8B --prompts recorded/requests.jsonl --dry-run
# continue training a published drafter on prompts of your own, and use it from then on
slipstream train Qwen/Qwen3-8B --prompts prompts.jsonl --from z-lab/Qwen3-8B-DFlash-b16 --promote
"""


def add_arguments(add: OptionAdder) -> None:
    add("TARGET", "local folder or hub name of the model to draft for")
    _add_data_options(add)
    _add_schedule_options(add)
    _add_design_options(add)
    _add_run_options(add)
    add.parser.usage = "slipstream train TARGET --prompts FILE [FILE ...] [options]"


def _add_data_options(add: OptionAdder) -> None:
    add = add.group("data")
    add(
        "--prompts FILE ...",
        "JSONL files with prompts, chat logs or recorded requests",
        str,
        required=True,
    )
    add("--max-tokens TOKENS", "maximum tokens that the target writes per prompt", default=384)
    add_thinking(add)
    add(
        "--held-out SHARE",
        "share of the prompts kept out of training to evaluate the drafter",
        float,
        0.05,
        dest="held_out_share",
    )
    add(
        "--evaluated N",
        "held-out prompts per kind to evaluate the drafter",
        default=24,
        dest="evaluated_per_kind",
    )


def _add_schedule_options(add: OptionAdder) -> None:
    add = add.group("schedule")
    add(
        "--from DRAFTER",
        "local folder or hub name of a drafter to continue training from (default: a new drafter)",
        dest="from_drafter",
    )
    add("--steps N", "optimizer steps (default 8000)")
    add(
        "--learning-rate RATE",
        "peak learning rate (default 2e-3, on a GPU 1e-3, with --from 3e-4)",
        positive_number,
    )
    add_seed(add)


def _add_design_options(add: OptionAdder) -> None:
    add = add.group("design of a new drafter")
    add(
        "--method",
        "drafting method; dflash2 and dspark need a GPU (default dflash)",
        choices=METHODS,
    )
    add("--layers N", "number of layers (default: from the target's size, for eagle3 1)")
    add(
        "--block-size TOKENS",
        "block size: the last known token and the draft tokens after it (default: from the "
        "target's size)",
    )
    add(
        "--layer-ids ID ...",
        "hidden states of the target that the drafter reads; 1 is the output of the first "
        "layer (default: spread evenly)",
        whole_number,
        dest="target_layer_ids",
    )
    add(
        "--mask-token-id ID",
        "id of a token that never occurs in text (default: the first unused one)",
        natural_number,
    )
    add("--intermediate-size N", "intermediate size of the MLPs (default: the target's)")


def _add_run_options(add: OptionAdder) -> None:
    add = add.group("run")
    add(
        "--run FOLDER",
        "folder of the training run; an interrupted run continues there (default: in the cache)",
    )
    add("--promote", "save the pair as a local recipe, which `plan` and `serve` then use")
    add("--dry-run", "print stages, tokens, disk space and time without training")
    add_accept_changes(add)


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Train a drafter, or print an estimate of what training takes."""
    require_parts()
    from slipstream.reporting.report import render_text
    from slipstream.reporting.training.run import describe_estimate, describe_run
    from slipstream.training.estimate import estimate_run
    from slipstream.training.export import promote
    from slipstream.training.pipeline import run_pipeline
    from slipstream.training.workspace import Workspace

    engine_environment = dict(os.environ)
    os.environ.setdefault(*HUGE_PAGES)
    host = read_host(this_machine(os.environ, datetime.now(UTC)))
    target = read_checkpoint(options.target)
    wanted = TrainOptions.model_validate(
        {name: getattr(options, name) for name in TrainOptions.model_fields}
    )
    command = shlex.join(["slipstream", *sys.argv[1:]])
    fresh, prompts = prepare(wanted, target, command=command, on_gpu=bool(host.accelerators))
    usual = slipstream_cache(os.environ) / "training" / name_run(fresh.settings)
    folder = TrainFolder(options.run or usual)
    if options.dry_run:
        expected = estimate_run(fresh, target, prompts, host, folder.path)
        report = render_text(describe_estimate(expected))
        screen.show_data(text=report, document=expected.to_json())
        return ExitCode.DONE
    folder.begin(fresh)  # A folder that cannot take the run is refused before weights are fetched.
    weights = WeightsOnDisk(screen, os.environ, options.accept_changes)
    start = options.from_drafter and weights.find(options.from_drafter, None).folder
    space = Workspace(
        folder,
        target,
        weights.find(options.target, target.revision).folder,
        host,
        engine_environment,
        screen.show_progress,
        start,
    )
    with screen.busy("training"):
        done = run_pipeline(fresh, space)
    if options.promote:
        file = promote(done, folder.drafter, host, recipe_overlay(os.environ))
        screen.show_progress(f"promoted: {file}")
    screen.show_data(text=render_text(describe_run(done, folder)), document=done.to_json())
    return ExitCode.DONE
