"""`slipstream plan`: how to start an engine for a target here, or on another machine."""

import argparse
import os
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from slipstream.checkpoints import read_checkpoint
from slipstream.checkpoints.hub_search import search_drafters
from slipstream.cli.arguments import whole_number
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `plan` takes."""
    parser.add_argument("target", metavar="TARGET", nargs="?", help="a folder, or a hub model")
    add_wishes(parser)
    add_chat_wishes(parser)
    parser.add_argument("--host", metavar="NAME|FILE", help="plan for another machine")
    parser.add_argument("--explain", action="store_true", help="the reason of every setting")
    parser.add_argument("--sglang", action="store_true", help="the same plan as SGLang's command")
    parser.add_argument("--diff", nargs=2, metavar="PLAN", type=Path, help="compare saved plans")
    parser.usage = "slipstream plan TARGET [options] [-- ENGINE ARGUMENTS]"


def add_wishes(parser: argparse.ArgumentParser, *, goals: bool = True) -> None:
    """Declare what a user may wish of a plan, here and wherever one is made on the way."""
    parser.add_argument("--drafter", help="a folder or hub model, if no recipe is to choose")
    parser.add_argument(
        "--method",
        choices=("auto", *METHOD_NAMES),
        default="auto",
        help="how tokens are drafted (default auto: the best that is known for the target)",
    )
    parser.add_argument("--context", type=whole_number, help="tokens of the longest sequence")
    parser.add_argument("--users", type=whole_number, help="sequences that run at once")
    if goals:
        parser.add_argument(
            "--goal",
            choices=("latency", "throughput", "capacity", "agent"),
            default="latency",
            help="what is best (default latency); agent: long context, prefix cache, tool calls",
        )
    parser.add_argument("--k", type=whole_number, help="tokens to draft in a step")
    parser.add_argument("--no-speculation", action="store_true", help="plain decoding")
    parser.add_argument("--from-env", action="store_true", help="read AEON-7's variables")
    parser.set_defaults(default_thinking=None, pictures=False)


def add_chat_wishes(parser: argparse.ArgumentParser) -> None:
    """Declare what a user may wish of the conversations of a server."""
    parser.add_argument(
        "--thinking",
        dest="default_thinking",
        choices=("on", "off"),
        help="whether the model thinks before it answers, unless a request says otherwise",
    )
    parser.add_argument("--pictures", action="store_true", help="take pictures, if the model sees")


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Make a plan and show it; a refused one leaves with 1."""
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
    """Read a saved plan, which is taken as it is, or make one."""
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
        raise UsageError("a saved plan is taken as it is", hint=f"{PLAN_HINT} [options]")
    return read_record(saved, LaunchPlan, hint=PLAN_HINT)


def make_plan(options: argparse.Namespace, host: Host) -> LaunchPlan:
    """Make the plan that the options ask for."""
    asked = read_container_variables(os.environ) if options.from_env else None
    target = options.target or (asked.target if asked else None)
    if target is None:
        raise UsageError("no target was named", hint="slipstream plan TARGET")
    return plan_for(host, target, _read_wishes(options, asked), notes=asked.notes if asked else ())


def plan_plain(plan: LaunchPlan, host: Host) -> LaunchPlan:
    """Plan the same target and wishes without speculation: what its speed is held against."""
    return plan_for(host, plan.target, plan.wishes.model_copy(update={"speculation": False}))


def plan_for(host: Host, target: str, wishes: Wishes, *, notes: tuple[str, ...] = ()) -> LaunchPlan:
    """Plan a target on a machine, with recipes and checkpoints as every verb finds them."""
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
    """Return what is known without the files, with this user's own recipes as evidence."""
    overlay = recipe_overlay(os.environ)
    return Library(load_drafters, load_models, partial(load_recipes_for, overlay=overlay))


def _name_whole_paths(plan: LaunchPlan) -> LaunchPlan:
    """Name local folders by their whole paths, so that a saved plan serves from any folder."""
    plan = plan.change(model=_name_whole_path(plan.settings.model))
    if (speculation := plan.speculation) is None or speculation.drafter is None:
        return plan
    drafter = _name_whole_path(speculation.drafter)
    return plan.change(speculation=speculation.model_copy(update={"drafter": drafter}))


def _name_whole_path(name: Choice[str]) -> Choice[str]:
    folder = Path(name.value)
    return replace(name, value=str(folder.resolve())) if folder.is_dir() else name


def _read_wishes(options: argparse.Namespace, asked: ContainerWishes | None) -> Wishes:
    """Let a flag win over a variable."""
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
        raise UsageError(f"{' and '.join(said)} exclude each other", hint="leave one of them")
    return wishes.model_copy(update={"speculation": not plain})


def _find_recipes(target: str) -> tuple[str, tuple[Recipe, ...]]:
    """Find a target's recipes; one of the user's own names a folder by its whole path."""
    overlay = recipe_overlay(os.environ)
    if Path(target).is_dir():
        whole = str(Path(target).resolve())
        own = load_recipes_for(whole, folder=overlay, overlay=overlay)
        if any(recipe.target == whole for recipe in own):
            return whole, own
    return target, load_recipes_for(target, overlay=overlay)


def find_host(name: str | None) -> Host:
    """Load the machine of a name or file; without one, look at this machine."""
    if name is not None:
        return load_host(name)
    # Docker is no part of a plan, and asking it takes 25 ms.
    here = this_machine(os.environ, datetime.now(UTC))
    return read_host(replace(here, run=lambda _: None))
