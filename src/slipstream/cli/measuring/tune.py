"""`slipstream tune`: the best draft length for these prompts at this load."""

import argparse
import os

from slipstream.checkpoints import read_checkpoint
from slipstream.cli.arguments import ENGINE_ARGUMENTS
from slipstream.cli.measuring.measuring_options import (
    add_reports,
    add_workload,
    describe_conditions,
    find_engine_host,
    find_log_folder,
    make_bench,
    take_drafting_plan,
)
from slipstream.cli.options import OptionAdder, add_accept_changes
from slipstream.cli.planning.method_plans import plan_other_methods, read_methods
from slipstream.cli.planning.plan import TARGET_OR_PLAN_HELP, add_plan_options, plan_plain
from slipstream.cli.planning.saved_plans import add_allow
from slipstream.cli.reports import require_writable, show_report, write_report
from slipstream.cli.screen import Screen
from slipstream.cli.weights import WeightsOnDisk
from slipstream.errors import ExitCode, InvalidInputError, UsageError
from slipstream.measuring.machine_watch import make_watch
from slipstream.measuring.workloads import names_tasks
from slipstream.planning import LaunchPlan
from slipstream.planning.steering_verdicts import keep_verdict
from slipstream.reporting.tuning.tuning import describe_tuning, render_tuning_html
from slipstream.serving.supervision.engine_process import require_accepted
from slipstream.tuning.goal import Goal, parse_goal
from slipstream.tuning.trials import find_way, leave_out_verdicts, list_ways, set_drafts
from slipstream.tuning.tuner import LEAST_STARTS, Tuner
from slipstream.user_folders import find_local

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
        f"(default {LEAST_STARTS}, one for each of --methods and, on a GPU with graphs, one each "
        "for steering and adaptive verification)",
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
    add_allow(add)
    add_reports(add)
    add.parser.usage = f"slipstream tune TARGET [options] {ENGINE_ARGUMENTS}"


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Measure, choose and save the tuned plan; the exit code is 4 if a limit cannot be kept."""
    methods = read_methods(options.methods or ())
    _check(options, options.starts or LEAST_STARTS)
    goal = parse_goal([options.goal])
    host, planned = find_engine_host(), _read_plan_options(options, goal)
    plan = leave_out_verdicts(take_drafting_plan(planned, host, screen, to="tune"))
    starts = options.starts or LEAST_STARTS + len(list_ways(plan, host)) + len(methods)
    others = plan_other_methods(planned, methods, host, plan)
    for other in others.values():
        require_accepted(other)
    sequences = plan.sequences or USUAL_SEQUENCES
    bench = make_bench(options, screen, plan.context, concurrencies=(1,))
    conditions = describe_conditions(options, bench, plan, host)
    weights = WeightsOnDisk(screen, os.environ, options.accept_changes)
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
        logs=find_log_folder("tune"),
        progress=screen.show_progress,
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
    show_report(done, describe_tuning(done), render_tuning_html, options, screen)
    for trial in done.trials:
        if (way := find_way(trial)) is not None:
            measured = set_drafts(plan, done.profile.choice.draft_length, (), trial.verdict)
            adopted, because = trial.adopted, trial.verdict
            keep_verdict(way, measured, os.environ, pays=adopted, because=because)
    if options.save:
        write_report(options.save, done.plan.to_json(), screen)
    return ExitCode.DONE if done.profile.choice.meets_goal else ExitCode.GATE_MISSED


def _check(options: argparse.Namespace, starts: int) -> None:
    """Raise if nothing could be tuned with these options, or the result could not be written."""
    if starts < LEAST_STARTS:
        raise UsageError(
            f"--starts {starts} is too few: one to measure, one without drafts, one to confirm",
            hint=f"--starts {LEAST_STARTS}",
        )
    if names_tasks(options.workload):
        raise UsageError(
            "tune measures single requests, not tasks, whose turns share the prefix cache",
            hint=f"slipstream compare {options.target} --workload agent",
        )
    require_writable(options.html, options.markdown, options.save)


def _read_plan_options(options: argparse.Namespace, goal: Goal) -> argparse.Namespace:
    planned = argparse.Namespace(**vars(options))
    planned.goal = "latency"
    if find_local(options.target).is_file():
        return planned
    if goal.name == "throughput":
        planned.goal = "throughput"
    if options.users is None:
        planned.users = max(USUAL_SEQUENCES, options.concurrency or 0)
    return planned


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
