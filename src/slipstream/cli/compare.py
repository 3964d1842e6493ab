"""`slipstream compare`: whether speculation is faster for these prompts at this load."""

import argparse
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from slipstream.cli.arguments import ENGINE_ARGUMENTS, whole_number
from slipstream.cli.measuring_options import (
    add_reports,
    add_workload,
    describe_conditions,
    make_tick,
    read_concurrencies,
    read_thinking,
    read_workload,
    require_writable,
    write_reports,
)
from slipstream.cli.method_plans import plan_methods
from slipstream.cli.plan import (
    PLAN_HINT,
    TARGET_OR_PLAN_HELP,
    add_plan_options,
    plan_plain,
    take_plan,
)
from slipstream.cli.screen import Screen
from slipstream.cli.weights import Weights, add_accept_changes
from slipstream.engines.vllm import find_versions, require_engine
from slipstream.engines.vllm_methods import METHOD_NAMES
from slipstream.errors import ExitCode, InvalidInputError, UsageError
from slipstream.hardware import Host, read_host, this_machine
from slipstream.hardware.machine_watch import make_watch
from slipstream.measuring.bench import Bench, ToolChoice
from slipstream.measuring.comparing.comparison import Arena, ComparedArm, Comparison, Contest
from slipstream.measuring.comparing.design import LETTERS
from slipstream.measuring.comparing.verdict import PLAIN
from slipstream.planning import LaunchPlan
from slipstream.records import read_record
from slipstream.reporting.pages.arena import render_arena_html
from slipstream.reporting.pages.comparison import render_comparison_html
from slipstream.reporting.pages.report import render_markdown, render_text
from slipstream.reporting.text.arena import describe_arena
from slipstream.reporting.text.bench import render_cell_line
from slipstream.reporting.text.comparison import describe_comparison
from slipstream.serving.supervision.engine_process import require_accepted
from slipstream.user_folders import slipstream_cache

EXAMPLES = """\
# drafted against plain decoding at concurrency 1 and 8, with an HTML report
slipstream compare Qwen/Qwen3-8B --concurrency 1 8 --html report.html
# three drafting methods on prompts of your own
slipstream compare Qwen/Qwen3-8B --methods dflash ngram plain --workload prompts.jsonl
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `compare`."""
    parser.add_argument("target", metavar="TARGET", help=TARGET_OR_PLAN_HELP)
    design = parser.add_argument_group("comparison")
    design.add_argument(
        "--against",
        metavar="PLAN",
        type=Path,
        nargs="+",
        help="saved plans to compare with (default: the plan that --no-speculation makes)",
    )
    design.add_argument(
        "--methods",
        metavar="NAME[=DRAFTER]",
        nargs="+",
        help=f"drafting methods to compare, two or more of {', '.join(METHOD_NAMES)}; a drafter "
        "after = replaces the one that `plan` would choose",
    )
    design.add_argument(
        "--rounds",
        metavar="N",
        type=whole_number,
        default=2,
        help="rounds of two engine starts per plan, in the order A B B A (default 2)",
    )
    add_accept_changes(design)
    add_workload(parser, prompts=8)
    add_plan_options(parser)
    add_reports(parser)
    parser.usage = (
        "slipstream compare TARGET [--against PLAN ... | --methods NAME ...] [options] "
        f"{ENGINE_ARGUMENTS}"
    )


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Measure the plans in turns and print which one to use."""
    require_writable(options.html, options.markdown)
    host = read_host(this_machine(os.environ, datetime.now(UTC)))
    require_engine(host)
    done = measure(options, host, _find_arms(options, host), screen)
    report = describe_arena(done) if isinstance(done, Arena) else describe_comparison(done)
    screen.show_data(text=render_text(report), document=done.to_json())
    write_reports(options, done, _render_html, lambda _: render_markdown(report), screen)
    return ExitCode.DONE


def measure(
    options: argparse.Namespace,
    host: Host,
    arms: tuple[ComparedArm, ...],
    screen: Screen,
    say: Callable[[str], None] | None = None,
    logs: Path | None = None,
) -> Comparison | Arena:
    """Start each arm in turns and judge what was measured; `say` hears how far it is."""
    workload = read_workload(options, _find_context([arm.plan for arm in arms]))
    bench = Bench(
        workload=workload,
        concurrencies=read_concurrencies(options),
        thinking=read_thinking(options),
        tool_choice=_find_tool_choice([arm.plan for arm in arms], options.tool_choice),
        tell=lambda cell: screen.show_progress(render_cell_line(cell)),
        tick=make_tick(screen),
    )
    conditions = describe_conditions(
        options,
        bench,
        model=arms[-1].plan.target,
        versions=find_versions(),
        plan=arms[-1].plan,
        host=host,
    )
    weights = Weights(screen, os.environ, options.accept_changes)
    for arm in arms:
        weights.localize(arm.plan)
    contest = Contest(
        arms=arms,
        bench=bench,
        rounds=options.rounds,
        environment=os.environ,
        logs=logs or slipstream_cache(os.environ) / "compare" / f"{conditions.at:%Y%m%d-%H%M%S}",
        say=say or screen.show_progress,
        watch=make_watch(host),
        localize=weights.localize,
    )
    with screen.busy("comparing"):
        return contest.run(conditions)


def _render_html(done: Comparison | Arena) -> str:
    return render_arena_html(done) if isinstance(done, Arena) else render_comparison_html(done)


def _find_arms(options: argparse.Namespace, host: Host) -> tuple[ComparedArm, ...]:
    """Return the arms, the baseline first."""
    if options.users is None and not Path(options.target).is_file():
        options.users = max(read_concurrencies(options))
    if options.methods is not None:
        arms = plan_methods(options, host)
    elif options.against is not None:
        arms = _read_against(options, host)
    else:
        plan = take_plan(options, host)
        if plan.speculation is None:
            raise InvalidInputError(
                f"the plan for {plan.target} has no drafter to compare",
                hint="name one with --drafter, or another plan with --against",
            )
        plain = ComparedArm(name=PLAIN, plan=plan_plain(plan, host))
        arms = (plain, ComparedArm(name="drafted", plan=plan))
    for arm in arms:
        require_accepted(arm.plan)
    return arms


def _read_against(options: argparse.Namespace, host: Host) -> tuple[ComparedArm, ...]:
    """Return the saved plans and then the target's own as arms."""
    names = [file.stem for file in (*options.against, Path(options.target))]
    if len(names) > len(LETTERS):
        raise UsageError(
            f"{len(names)} plans are too many to compare",
            hint=f"compare at most {len(LETTERS)} plans",
        )
    if len(names) > 2 and len(set(names)) < len(names):
        raise UsageError(
            f"plans need different file names: {', '.join(names)}",
            hint="rename one of the files",
        )
    saved = [read_record(file, LaunchPlan, hint=PLAN_HINT) for file in options.against]
    plans = (*saved, take_plan(options, host))
    return tuple(ComparedArm(name=n, plan=plan) for n, plan in zip(names, plans, strict=True))


def _find_tool_choice(plans: list[LaunchPlan], wanted: ToolChoice) -> ToolChoice:
    """Return how to request tool calls; `none` unless both engines parse them."""
    return wanted if all(map(_parses_calls, plans)) else "none"


def _parses_calls(plan: LaunchPlan) -> bool:
    parser, auto = plan.settings.tool_parser, plan.settings.auto_tools
    return parser is not None and auto is not None and auto.value


def _find_context(plans: list[LaunchPlan]) -> int | None:
    """Return the shortest context of the plans."""
    return min((plan.context for plan in plans if plan.context is not None), default=None)
