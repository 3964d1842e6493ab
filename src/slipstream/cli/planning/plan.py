"""`slipstream plan`: every engine setting for a target, here or on another machine."""

import argparse
import os
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

from slipstream.checkpoints import read_checkpoint
from slipstream.checkpoints.hub import search_drafters
from slipstream.cli.arguments import ENGINE_ARGUMENTS
from slipstream.cli.options import OptionAdder, add_host
from slipstream.cli.planning.targets import find_target, with_whole_paths
from slipstream.cli.screen import Screen
from slipstream.engines import sglang
from slipstream.engines.vllm_methods import METHOD_NAMES
from slipstream.engines.vllm_tables import VERSIONS
from slipstream.errors import ExitCode, InvalidInputError, UsageError
from slipstream.hardware import Host, load_host, read_host, this_machine
from slipstream.planning import LaunchPlan, PlanOptions, make_options
from slipstream.planning.drafters.library import Library, ReadCheckpoint
from slipstream.planning.drafters.resolution import plan_target
from slipstream.planning.plan import DifferenceList, diff_plans
from slipstream.planning.settings.container_variables import read_container_variables
from slipstream.planning.settings.scheduling import (
    AGENT_CONTEXT,
    CPU_CONTEXT,
    DEFAULT_CONTEXT,
    USUAL_LENGTH,
)
from slipstream.planning.steering_verdicts import read_verdicts
from slipstream.recipes import load_drafters, load_known_bad, load_models, load_recipes_for
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


def add_arguments(add: OptionAdder) -> None:
    add("[TARGET]", TARGET_HELP)
    add_plan_options(add)
    add_chat_options(add)
    add = add.group("machine and output")
    add_host(add, "machine to plan for")
    add(
        "--vllm VERSION",
        f"version of vLLM to plan for, of {' and '.join(VERSIONS)} (default: the machine's)",
        kind=known_version,
    )
    add("--explain", "print the source and reason of every setting")
    add("--sglang", "print the plan as a command for SGLang")
    add("--diff PLAN", "print the differences between two saved plans instead of planning", nargs=2)
    add.parser.usage = f"slipstream plan TARGET [options] {ENGINE_ARGUMENTS}"


def add_plan_options(add: OptionAdder, *, goals: bool = True) -> None:
    """Add the options that a plan is made from."""
    add = add.group("speculation")
    add(
        "--drafter DRAFTER",
        "local folder or hub name of the drafter (default: the recipe's, else the best one "
        "that fits)",
    )
    method = add.exclusive()
    method(
        "--method METHOD",
        f"drafting method: auto, {', '.join(METHOD_NAMES)} (default auto: the best one known "
        "for the target)",
        default="auto",
        choices=("auto", *METHOD_NAMES),
    )
    add(
        "--k TOKENS",
        "draft length, in tokens per step (default: the drafter's longest)",
    )
    text = "plan plain decoding, without drafts; the same as --method plain"
    method("--no-speculation", text, dest="method", action="store_const", const="plain")
    add(
        "--steer",
        "capture graphs for several draft lengths, so that steering can choose one (default: if "
        "`slipstream tune` measured that it pays; without graphs it always can)",
    )
    copy = add.exclusive()
    text = "copy draft tokens from earlier text of the same request (default: on a CPU with DFlash)"
    copy("--copy", text, dest="copy", action="store_const", const=True)
    text = "never copy draft tokens from a request's own text"
    copy("--no-copy", text, dest="copy", action="store_const", const=False)
    add = add.group("capacity")
    add(
        "--context TOKENS",
        "longest sequence, prompt and answer together (default: the recipe's, else "
        f"{DEFAULT_CONTEXT}, on a CPU {CPU_CONTEXT}, for agents {AGENT_CONTEXT}; less if it does "
        "not fit)",
    )
    add(
        "--users N",
        "maximum concurrent sequences (default: the recipe's, else as many of "
        f"{USUAL_LENGTH} tokens as the cache holds)",
    )
    if goals:
        add(
            "--goal GOAL",
            "what to optimize: latency, throughput, capacity, or agent (long context, prefix "
            "cache, tool calls)",
            default="latency",
            choices=("latency", "throughput", "capacity", "agent"),
        )
    add("--from-env", "read the environment variables of AEON-7's containers, such as MODEL_PATH")
    add.parser.set_defaults(default_thinking=None, images=False, vllm=None)


def add_chat_options(add: OptionAdder) -> None:
    """Add the options for how a server holds conversations."""
    add = add.group("conversations")
    add(
        "--thinking",
        "thinking of requests that do not set it (default: the chat template's)",
        choices=("on", "off"),
        dest="default_thinking",
    )
    add("--images", "accept images if the model does (default: text only)")


def known_version(text: str) -> str:
    """Return the version of vLLM that is meant by 0.33 or 0.33.0."""
    meant = [one for one in VERSIONS if one in (text, f"{text}.0")]
    if not meant:
        raise argparse.ArgumentTypeError(f"'{text}' is not one of {', '.join(VERSIONS)}")
    return meant[0]


def list_plan_options() -> dict[str, object]:
    """Return every option that a plan is made from, by its name in a namespace, and its default."""
    add = OptionAdder(argparse.ArgumentParser(add_help=False))
    add_plan_options(add)
    add_chat_options(add)
    return vars(add.parser.parse_args([]))


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Make a plan and print it; the exit code is 1 if it is refused."""
    if options.diff is not None:
        left, right = (read_record(file, LaunchPlan, hint=PLAN_HINT) for file in options.diff)
        found = DifferenceList(differences=diff_plans(left, right))
        screen.show_data(text=render_difference(found.differences), document=found.to_json())
        return ExitCode.DONE
    with screen.busy("reading checkpoints and planning"):
        host = find_host(options.host)
        plan = make_plan(options, host)
    method = plan.speculation.method.value if plan.speculation else None
    if options.sglang and method in sglang.GPU_METHODS and not host.accelerators:
        raise InvalidInputError(
            f"SGLang {sglang.VERSION} has {method} on GPUs only, and this plan is for a CPU",
            hint="name a machine with a GPU: --host gb10",
        )
    text = render_sglang(plan) if options.sglang else render_plan(plan, explain=options.explain)
    screen.show_data(text=text, document=plan.to_json())
    return ExitCode.EXPECTED_FAILURE if plan.refusals else ExitCode.DONE


def make_plan(options: argparse.Namespace, host: Host) -> LaunchPlan:
    """Return the plan for the options; a flag wins over a container's variable."""
    container = read_container_variables(os.environ) if options.from_env else None
    target = options.target or (container.target if container else None)
    if target is None:
        raise UsageError("TARGET is missing", hint="slipstream plan TARGET")
    specified = make_options(
        goal=options.goal,
        method=None if options.method == "auto" else options.method,
        thinking=options.default_thinking,
        images=options.images,
        copy_drafts=options.copy,
        steer=options.steer,
        vllm=options.vllm,
        drafter=options.drafter,
        draft_length=options.k,
        context=options.context,
        users=options.users,
        engine=options.raw,
        variables=container.options if container else None,
    )
    return plan_for(host, target, specified, notes=container.notes if container else ())


def plan_plain(plan: LaunchPlan, host: Host) -> LaunchPlan:
    """Return the plan for the same target and options without speculation, as a baseline."""
    return plan_for(host, plan.target, plan.options.without_speculation())


def plan_for(
    host: Host, target: str, options: PlanOptions, *, notes: tuple[str, ...] = ()
) -> LaunchPlan:
    """Plan a target on a machine, with recipes, checkpoints and measurements as every verb does."""
    name = find_target(target)
    return plan_target(
        host,
        name,
        with_whole_paths(options),
        load_library(),
        known_bad=load_known_bad(),
        verdicts=read_verdicts(os.environ),
        notes=notes,
    )


def load_library(read: ReadCheckpoint = read_checkpoint) -> Library:
    """Return the sources of facts: files, the catalogue with the user's recipes, and the hub."""
    find_recipes = partial(load_recipes_for, overlay=recipe_overlay(os.environ))
    return Library(read, find_recipes, load_drafters, load_models, search_drafters)


def find_host(name: str | None) -> Host:
    """Return the host of a name or file, or this machine."""
    if name is not None:
        return load_host(name)
    # Docker is no part of a plan, and asking it takes 25 ms.
    here = this_machine(os.environ, datetime.now(UTC))
    return read_host(replace(here, run=lambda _: None))
