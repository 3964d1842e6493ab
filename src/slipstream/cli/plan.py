"""`slipstream plan`: every engine setting for a target, here or on another machine."""

import argparse
import os
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from slipstream.checkpoints import read_checkpoint
from slipstream.checkpoints.hub_search import search_drafters
from slipstream.cli.arguments import ENGINE_ARGUMENTS, whole_number
from slipstream.cli.screen import Screen
from slipstream.engines import sglang
from slipstream.engines.vllm_methods import METHOD_NAMES
from slipstream.errors import ExitCode, InvalidInputError, UsageError
from slipstream.hardware import Host, load_host, read_host, this_machine
from slipstream.planning import LaunchPlan, Wishes
from slipstream.planning.asked import read_asked
from slipstream.planning.container_variables import ContainerWishes, read_container_variables
from slipstream.planning.difference import DifferenceList, diff_plans
from slipstream.planning.library import Library
from slipstream.planning.resolution import plan_target
from slipstream.planning.scheduling import AGENT_CONTEXT, CPU_CONTEXT, DEFAULT_CONTEXT
from slipstream.planning.settings import Choice
from slipstream.recipes import (
    Recipe,
    load_drafters,
    load_known_bad,
    load_models,
    load_recipes_for,
)
from slipstream.records import read_record
from slipstream.reporting.text.plan import render_difference, render_plan, render_sglang
from slipstream.user_folders import recipe_overlay

PLAN_HINT = "slipstream plan TARGET --json > FILE"
TARGET_HELP = "local folder or hub name of a model"
TARGET_OR_PLAN_HELP = "local folder or hub name of a model, or the file of a saved plan"


EXAMPLES = """\
# show the settings for this machine, with reasons
slipstream plan Qwen/Qwen3-8B --explain
# plan for a DGX Spark from any machine, and save the plan
slipstream plan AEON-7/DFlash-Qwen3.5-27B-Uncensored-NVFP4 --host gb10 --json > plan.json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `plan`."""
    parser.add_argument("target", metavar="TARGET", nargs="?", help=TARGET_HELP)
    add_wishes(parser)
    add_chat_wishes(parser)
    output = parser.add_argument_group("machine and output")
    output.add_argument(
        "--host",
        metavar="NAME|FILE",
        help="machine to plan for, a known name such as gb10 or a file written by "
        "`slipstream probe --json` (default: this machine)",
    )
    output.add_argument(
        "--explain", action="store_true", help="print the source and reason of every setting"
    )
    output.add_argument(
        "--sglang", action="store_true", help="print the plan as a command for SGLang"
    )
    output.add_argument(
        "--diff",
        nargs=2,
        metavar="PLAN",
        type=Path,
        help="print the differences between two saved plans instead of planning",
    )
    parser.usage = f"slipstream plan TARGET [options] {ENGINE_ARGUMENTS}"


def add_wishes(parser: argparse.ArgumentParser, *, goals: bool = True) -> None:
    """Add the options that a plan is made from."""
    speculation = parser.add_argument_group("speculation")
    speculation.add_argument(
        "--drafter",
        metavar="DRAFTER",
        help="local folder or hub name of the drafter (default: the recipe's, else the best one "
        "that fits)",
    )
    speculation.add_argument(
        "--method",
        choices=("auto", *METHOD_NAMES),
        default="auto",
        metavar="METHOD",
        help=f"drafting method: auto, {', '.join(METHOD_NAMES)} (default auto: the best one known "
        "for the target)",
    )
    speculation.add_argument(
        "--k",
        metavar="TOKENS",
        type=whole_number,
        help="draft length, in tokens per step (default: by recipe, drafter and --users)",
    )
    speculation.add_argument(
        "--no-speculation", action="store_true", help="plan plain decoding, without drafts"
    )
    capacity = parser.add_argument_group("capacity")
    capacity.add_argument(
        "--context",
        metavar="TOKENS",
        type=whole_number,
        help="longest sequence, prompt and answer together (default: the recipe's, else "
        f"{DEFAULT_CONTEXT}, on a CPU {CPU_CONTEXT}, for --goal agent {AGENT_CONTEXT})"
        if goals
        else "longest sequence, prompt and answer together (default: the recipe's, else "
        f"{DEFAULT_CONTEXT}, on a CPU {CPU_CONTEXT})",
    )
    capacity.add_argument(
        "--users",
        metavar="N",
        type=whole_number,
        help="maximum concurrent sequences (default: the recipe's, else by --goal)",
    )
    if goals:
        capacity.add_argument(
            "--goal",
            choices=("latency", "throughput", "capacity", "agent"),
            default="latency",
            metavar="GOAL",
            help="what to optimize: latency, throughput, capacity, or agent (long context, prefix "
            "cache, tool calls) (default latency)",
        )
    capacity.add_argument(
        "--from-env",
        action="store_true",
        help="read the environment variables of AEON-7's containers, such as MODEL_PATH",
    )
    parser.set_defaults(default_thinking=None, pictures=False)


def add_chat_wishes(parser: argparse.ArgumentParser) -> None:
    """Add the options for how a server holds conversations."""
    chat = parser.add_argument_group("conversations")
    chat.add_argument(
        "--thinking",
        dest="default_thinking",
        choices=("on", "off"),
        help="whether the model thinks when a request does not say (default: its chat template's)",
    )
    chat.add_argument(
        "--pictures",
        action="store_true",
        help="accept pictures if the model does (default: text only)",
    )


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Make a plan and print it; the exit code is 1 if it is refused."""
    if options.diff is not None:
        return _run_diff(options.diff, screen)
    host = find_host(options.host)
    plan = make_plan(options, host)
    if options.sglang:
        _require_sglang(plan, host)
    text = render_sglang(plan) if options.sglang else render_plan(plan, explain=options.explain)
    screen.show_data(text=text, document=plan.to_json())
    return ExitCode.EXPECTED_FAILURE if plan.refusals else ExitCode.DONE


def _require_sglang(plan: LaunchPlan, host: Host) -> None:
    method = plan.speculation.method.value if plan.speculation else None
    if method in sglang.GPU_METHODS and not host.accelerators:
        raise InvalidInputError(
            f"SGLang {sglang.VERSION} has {method} on GPUs only, and this plan is for a CPU",
            hint="name a machine with a GPU: --host gb10",
        )


def _run_diff(files: list[Path], screen: Screen) -> ExitCode:
    left, right = (read_record(file, LaunchPlan, hint=PLAN_HINT) for file in files)
    differences = diff_plans(left, right)
    document = DifferenceList(differences=differences)
    screen.show_data(text=render_difference(differences), document=document.to_json())
    return ExitCode.DONE


def take_plan(options: argparse.Namespace, host: Host) -> LaunchPlan:
    """Return a saved plan unchanged, or make one."""
    saved = Path(options.target)
    if not saved.is_file():
        return make_plan(options, host)
    wishes = (options.drafter, options.context, options.users, options.k, options.no_speculation)
    if (
        any(wishes)
        or options.method != "auto"
        or options.default_thinking
        or options.pictures
        or options.raw
    ):
        raise UsageError("a saved plan cannot be changed", hint=f"{PLAN_HINT} [options]")
    return read_record(saved, LaunchPlan, hint=PLAN_HINT)


def make_plan(options: argparse.Namespace, host: Host) -> LaunchPlan:
    """Return the plan for the options."""
    asked = read_container_variables(os.environ) if options.from_env else None
    target = options.target or (asked.target if asked else None)
    if target is None:
        raise UsageError("TARGET is missing", hint="slipstream plan TARGET")
    return _plan(host, target, _read_wishes(options, asked), notes=asked.notes if asked else ())


def plan_plain(plan: LaunchPlan, host: Host) -> LaunchPlan:
    """Return the plan for the same target and wishes without speculation, as a baseline."""
    return _plan(host, plan.target, plan.wishes.model_copy(update={"speculation": False}))


def _plan(host: Host, target: str, wishes: Wishes, *, notes: tuple[str, ...] = ()) -> LaunchPlan:
    target, recipes = _find_recipes(target)
    plan = plan_target(
        host,
        target,
        wishes,
        recipes=recipes,
        known_bad=load_known_bad(),
        read=read_checkpoint,
        library=load_library(),
        search=search_drafters,
        notes=notes,
    )
    return _name_whole_paths(plan)


def load_library() -> Library:
    """Return what is known without the models' files, with the user's recipes as evidence."""
    overlay = recipe_overlay(os.environ)
    return Library(load_drafters, load_models, partial(load_recipes_for, overlay=overlay))


def _name_whole_paths(plan: LaunchPlan) -> LaunchPlan:
    """Make the paths of local folders absolute, so that a saved plan serves from any folder."""
    plan = plan.change(model=_name_whole_path(plan.settings.model))
    if (speculation := plan.speculation) is None or speculation.drafter is None:
        return plan
    drafter = _name_whole_path(speculation.drafter)
    return plan.change(speculation=speculation.model_copy(update={"drafter": drafter}))


def _name_whole_path(name: Choice[str]) -> Choice[str]:
    folder = Path(name.value)
    return replace(name, value=str(folder.resolve())) if folder.is_dir() else name


def _read_wishes(options: argparse.Namespace, asked: ContainerWishes | None) -> Wishes:
    """Return the wishes of flags and variables; a flag wins over a variable."""
    wishes = asked.wishes if asked else Wishes()
    flags = {
        "drafter": options.drafter,
        "method": None if options.method == "auto" else options.method,
        "context": options.context,
        "users": options.users,
        "draft_length": options.k,
        "thinking": options.default_thinking,
    }
    flagged = {name: value for name, value in flags.items() if value is not None}
    wishes = wishes.model_copy(
        update={
            **flagged,
            "goal": options.goal,
            "pictures": options.pictures,
            "raw": tuple(options.raw),
            "from_environment": tuple(
                name for name in wishes.from_environment if name not in flagged
            ),
        }
    )
    plain = options.no_speculation or options.method == "plain"
    given = read_asked(wishes)
    said = ["--no-speculation"] if options.no_speculation else []
    if options.method != "auto":
        said.append(f"--method {options.method}")
    if given.method is not None or (plain and (given.speculation or given.speculation_rest)):
        said.append("the engine's arguments for speculation")
    if options.drafter is not None and options.method in ("ngram", "suffix", "plain"):
        said.append("--drafter")
    if len(said) > 1:
        raise UsageError(f"{' and '.join(said)} exclude each other", hint="leave out all but one")
    return wishes.model_copy(update={"speculation": not plain})


def _find_recipes(target: str) -> tuple[str, tuple[Recipe, ...]]:
    """Return a target's name and recipes; the user's own recipes name folders by absolute path."""
    overlay = recipe_overlay(os.environ)
    if Path(target).is_dir():
        whole = str(Path(target).resolve())
        own = load_recipes_for(whole, folder=overlay, overlay=overlay)
        if any(recipe.target == whole for recipe in own):
            return whole, own
    return target, load_recipes_for(target, overlay=overlay)


def find_host(name: str | None) -> Host:
    """Return the host of a name or file, or this machine."""
    if name is not None:
        return load_host(name)
    # Docker is no part of a plan, and asking it takes 25 ms.
    here = this_machine(os.environ, datetime.now(UTC))
    return read_host(replace(here, run=lambda _: None))
