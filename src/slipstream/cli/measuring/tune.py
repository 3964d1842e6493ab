"""`slipstream tune`: the best draft length for these prompts at this load."""

import argparse
import os
from datetime import UTC, datetime
from pathlib import Path

from slipstream.checkpoints import read_checkpoint
from slipstream.cli.arguments import ENGINE_ARGUMENTS
from slipstream.cli.measuring.measuring_options import (
    add_reports,
    add_workload,
    describe_conditions,
    make_tick,
    read_thinking,
    read_workload,
    require_writable,
    write_report,
    write_reports,
)
from slipstream.cli.options import OptionAdder, add_accept_changes
from slipstream.cli.planning.method_plans import plan_other_methods, read_methods
from slipstream.cli.planning.plan import (
    TARGET_OR_PLAN_HELP,
    add_plan_options,
    plan_plain,
    take_plan,
)
from slipstream.cli.screen import Screen
from slipstream.cli.weights import Weights
from slipstream.engines.vllm import find_versions, require_engine
from slipstream.errors import ExitCode, InvalidInputError, UsageError
from slipstream.hardware import Host, read_host, this_machine
from slipstream.measuring.bench import Bench
from slipstream.measuring.machine_watch import make_watch
from slipstream.measuring.workloads import names_tasks
from slipstream.planning import LaunchPlan
from slipstream.reporting.measuring.bench import render_cell_line
from slipstream.reporting.report import render_markdown, render_text
from slipstream.reporting.tuning.tuning import describe_tuning, render_tuning_html
from slipstream.serving.supervision.engine_process import require_accepted
from slipstream.tuning.goal import Goal, parse_goal
from slipstream.tuning.tuner import LEAST_STARTS, Tuner
from slipstream.user_folders import slipstream_cache

USUAL_SEQUENCES = 8


EXAMPLES = """\
# the draft length with the lowest latency at concurrency 1, saved as a plan
slipstream tune Qwen/Qwen3-8B --save tuned.json
# the largest load at which 95 % of the requests take less than 30 ms per token
slipstream tune Qwen/Qwen3-8B --goal 'tpot<30ms@p95'
# the draft length, and whether n-gram or suffix drafts are faster still
slipstream tune Qwen/Qwen3-8B --methods ngram suffix
"""


def add_arguments(add: OptionAdder) -> None:
    add("TARGET", TARGET_OR_PLAN_HELP)
    add = add.group("tuning")
    add(
        "--goal GOAL",
        "what to optimize: latency, throughput, or the largest load that keeps a limit on "
        "the time per output token, such as 'tpot<30ms@p95'",
        default="latency",
    )
    add(
        "--concurrency N",
        "concurrent requests to tune for (default: 1 for latency, else the plan's --users)",
    )
    add(
        "--starts N",
        f"engine starts; each one above {LEAST_STARTS} tries another method or setting "
        f"(default {LEAST_STARTS}, and one for each of --methods)",
    )
    add(
        "--methods NAME[=DRAFTER] ...",
        "other drafting methods to try at the chosen load; a drafter after = replaces the "
        "one that `plan` would choose",
    )
    add("--save FILE", "write the tuned plan, for `slipstream serve`")
    add_accept_changes(add)
    add_workload(add, prompts=8, loads=False)
    add_plan_options(add, goals=False)
    add_reports(add)
    add.parser.usage = f"slipstream tune TARGET [options] {ENGINE_ARGUMENTS}"


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Measure, choose and save the tuned plan; the exit code is 4 if a limit cannot be kept."""
    methods = read_methods(options.methods or ())
    starts = options.starts or LEAST_STARTS + len(methods)
    _check(options, starts)
    goal = parse_goal([options.goal])
    host = read_host(this_machine(os.environ, datetime.now(UTC)))
    require_engine(host)
    wishes = _read_wishes(options, goal)
    plan = _take_drafting_plan(wishes, host)
    others = plan_other_methods(wishes, methods, host, plan)
    for other in others.values():
        require_accepted(other)
    sequences = plan.sequences or USUAL_SEQUENCES
    bench = Bench(
        workload=read_workload(options, plan.context),
        concurrencies=(1,),
        thinking=read_thinking(options),
        tell=lambda cell: screen.show_progress(render_cell_line(cell)),
        tick=make_tick(screen),
    )
    conditions = describe_conditions(
        options, bench, model=plan.target, versions=find_versions(), plan=plan, host=host
    )
    weights = Weights(screen, os.environ, options.accept_changes)
    for one in (plan, *others.values()):
        weights.localize(one)
    tuner = Tuner(
        plan=plan,
        plain=plan_plain(plan, host),
        others=others,
        bench=bench,
        runner="V2" if host.accelerators else "V1",
        longest=_find_longest(plan),
        max_sequences=sequences,
        environment=os.environ,
        logs=slipstream_cache(os.environ) / "tune" / f"{conditions.at:%Y%m%d-%H%M%S}",
        say=screen.show_progress,
        watch=make_watch(host),
        localize=weights.localize,
    )
    with screen.busy("tuning"):
        done = tuner.tune(
            conditions,
            goal=goal,
            concurrency=options.concurrency or (1 if goal.name == "latency" else sequences),
            starts=starts,
        )
    report = describe_tuning(done)
    screen.show_data(text=render_text(report), document=done.to_json())
    if options.save:
        write_report(options.save, done.plan.to_json(), screen)
    write_reports(options, done, render_tuning_html, lambda _: render_markdown(report), screen)
    return ExitCode.DONE if done.profile.choice.meets_goal else ExitCode.GATE_MISSED


def _check(options: argparse.Namespace, starts: int) -> None:
    """Raise if nothing could be tuned with these options, or the result could not be written."""
    if starts < LEAST_STARTS:
        raise UsageError(
            f"--starts {starts} is too few: measure, compare with plain, confirm",
            hint=f"--starts {LEAST_STARTS}",
        )
    if names_tasks(options.workload):
        raise UsageError(
            "tune is for single requests, not for tasks whose turns share the prefix cache",
            hint=f"slipstream compare {options.target} --workload agent",
        )
    require_writable(options.html, options.markdown, options.save)


def _read_wishes(options: argparse.Namespace, goal: Goal) -> argparse.Namespace:
    wishes = argparse.Namespace(**vars(options))
    wishes.goal = "latency"
    if Path(options.target).is_file():
        return wishes
    if goal.name == "throughput":
        wishes.goal = "throughput"
    if options.users is None:
        wishes.users = max(USUAL_SEQUENCES, options.concurrency or 0)
    return wishes


def _take_drafting_plan(wishes: argparse.Namespace, host: Host) -> LaunchPlan:
    plan = take_plan(wishes, host)
    require_accepted(plan)
    if plan.drafter is None:
        raise InvalidInputError(
            f"the plan for {plan.target} has no drafter to tune", hint="name one with --drafter"
        )
    return plan


def _find_longest(plan: LaunchPlan) -> int:
    """Return the longest draft that the drafter's block allows."""
    draft = read_checkpoint(plan.drafter or "", tokenizer=False).draft
    longest = draft.longest_draft if draft else None
    if longest is None:
        raise InvalidInputError(
            f"{plan.drafter} does not state its block size",
            hint=f"slipstream models {plan.target} --drafter {plan.drafter}",
        )
    return longest
