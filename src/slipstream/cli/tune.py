"""`slipstream tune`: which draft length is best here, for these prompts, at this load?"""

import argparse
import os
from datetime import UTC, datetime
from pathlib import Path

from slipstream.checkpoints import read_checkpoint
from slipstream.cli.arguments import whole_number
from slipstream.cli.measuring_options import (
    add_reports,
    add_workload,
    describe_conditions,
    read_thinking,
    read_workload,
    require_writable,
    write_report,
)
from slipstream.cli.plan import add_wishes, plan_plain, take_plan
from slipstream.cli.screen import Screen
from slipstream.cli.weights import Weights, add_accept_changes
from slipstream.engines.installed import find_versions, require_engine
from slipstream.errors import ExitCode, InvalidInputError, UsageError
from slipstream.hardware import Host, read_host, this_machine
from slipstream.measuring.bench import Bench
from slipstream.measuring.machine_watch import make_watch
from slipstream.measuring.workloads import names_tasks
from slipstream.planning import LaunchPlan
from slipstream.reporting.pages.tuning import render_tuning_html, render_tuning_markdown
from slipstream.reporting.text.bench import render_cell_line
from slipstream.reporting.text.tuning import render_tuning_text
from slipstream.serving.supervision.engine_process import require_accepted
from slipstream.tuning.goal import Goal, parse_goal
from slipstream.tuning.tuner import LEAST_STARTS, Tuner
from slipstream.user_folders import slipstream_cache

USUAL_SEQUENCES = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `tune` takes."""
    parser.add_argument("target", metavar="TARGET", help="a folder, a hub model or a saved plan")
    add_wishes(parser, goals=False)
    parser.add_argument(
        "--goal",
        default="latency",
        help="latency, throughput, or a limit to hold, such as 'tpot<30ms@p95'",
    )
    parser.add_argument(
        "--concurrency",
        type=whole_number,
        help="requests at once to tune for; default: 1 for latency, else all that run at once",
    )
    add_workload(parser, prompts=8, loads=False)
    parser.add_argument(
        "--starts",
        type=whole_number,
        default=LEAST_STARTS,
        help=f"of the engine, {LEAST_STARTS} or more; each further one tries another setting",
    )
    parser.add_argument("--save", metavar="FILE", type=Path, help="write the tuned plan")
    add_accept_changes(parser)
    add_reports(parser)
    parser.usage = "slipstream tune TARGET [options] [-- ENGINE ARGUMENTS]"


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Measure, choose and write the better plan; a limit that cannot be held leaves with 4."""
    if options.starts < LEAST_STARTS:
        raise UsageError(
            f"--starts {options.starts} is too few to measure, hold against plain and confirm",
            hint=f"--starts {LEAST_STARTS}",
        )
    if names_tasks(options.workload):
        raise UsageError(
            "tune models the time of single requests, and not of tasks whose turns share a cache",
            hint=f"slipstream compare {options.target} --workload agent",
        )
    require_writable(options.html, options.markdown, options.save)
    goal = parse_goal(options.goal)
    host = read_host(this_machine(os.environ, datetime.now(UTC)))
    require_engine(host)
    plan = _take_drafting_plan(options, goal, host)
    sequences = plan.sequences or USUAL_SEQUENCES
    bench = Bench(
        workload=read_workload(options, plan.context),
        concurrencies=(1,),
        thinking=read_thinking(options),
        tell=lambda cell: screen.show_progress(render_cell_line(cell)),
    )
    conditions = describe_conditions(
        options, bench, model=plan.target, versions=find_versions(), plan=plan, host=host
    )
    weights = Weights(screen, os.environ, options.accept_changes)
    weights.localize(plan)
    tuner = Tuner(
        plan=plan,
        plain=plan_plain(plan, host),
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
    done = tuner.tune(
        conditions,
        goal=goal,
        concurrency=options.concurrency or (1 if goal.name == "latency" else sequences),
        starts=options.starts,
    )
    screen.show_data(text=render_tuning_text(done), document=done.to_json())
    if options.save:
        write_report(options.save, done.plan.to_json(), screen)
    if options.html:
        write_report(options.html, render_tuning_html(done), screen)
    if options.markdown:
        write_report(options.markdown, render_tuning_markdown(done), screen)
    return ExitCode.DONE if done.profile.choice.meets_goal else ExitCode.GATE_MISSED


def _take_drafting_plan(options: argparse.Namespace, goal: Goal, host: Host) -> LaunchPlan:
    wishes = argparse.Namespace(**vars(options))
    wishes.goal = "throughput" if goal.name == "throughput" else "latency"
    if options.users is None and not Path(options.target).is_file():
        wishes.users = max(USUAL_SEQUENCES, options.concurrency or 0)
    plan = take_plan(wishes, host)
    require_accepted(plan)
    if plan.drafter is None:
        raise InvalidInputError(
            f"the plan for {plan.target} has no drafter to tune", hint="name one with --drafter"
        )
    return plan


def _find_longest(plan: LaunchPlan) -> int:
    """Give the longest draft of the drafter's block."""
    draft = read_checkpoint(plan.drafter or "", tokenizer=False).draft
    longest = draft.longest_draft if draft else None
    if longest is None:
        raise InvalidInputError(
            f"{plan.drafter} does not say how long its blocks are",
            hint=f"slipstream inspect {plan.target} --drafter {plan.drafter}",
        )
    return longest
