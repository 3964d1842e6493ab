"""`slipstream compare`: does speculation pay here, for these prompts, at this load?"""

import argparse
import os
from datetime import UTC, datetime
from pathlib import Path

from slipstream.cli.arguments import whole_number
from slipstream.cli.measuring_options import (
    add_reports,
    add_workload,
    describe_conditions,
    read_concurrencies,
    read_thinking,
    read_workload,
    require_writable,
    write_report,
)
from slipstream.cli.plan import PLAN_HINT, add_wishes, plan_plain, take_plan
from slipstream.cli.screen import Screen
from slipstream.cli.weights import Weights, add_accept_changes
from slipstream.engines.installed import find_versions
from slipstream.errors import ExitCode, InvalidInputError
from slipstream.hardware import Host, read_host, this_machine
from slipstream.measuring.bench import Bench, ToolChoice
from slipstream.measuring.comparing.comparison import ComparedArm, Contest
from slipstream.measuring.machine_watch import make_watch
from slipstream.planning import LaunchPlan
from slipstream.records import read_record
from slipstream.reporting.pages.comparison import (
    render_comparison_html,
    render_comparison_markdown,
)
from slipstream.reporting.text.bench import render_cell_line
from slipstream.reporting.text.comparison import render_comparison_text
from slipstream.user_folders import slipstream_cache


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `compare` takes."""
    parser.add_argument("target", metavar="TARGET", help="a folder, a hub model or a saved plan")
    parser.add_argument(
        "--against",
        metavar="PLAN",
        type=Path,
        help="the other side (default: the plan that --no-speculation makes)",
    )
    add_wishes(parser)
    add_workload(parser, prompts=8)
    parser.add_argument("--rounds", type=whole_number, default=2, help="of four starts, A B B A")
    add_accept_changes(parser)
    add_reports(parser)
    parser.usage = "slipstream compare TARGET [--against PLAN] [options] [-- ENGINE ARGUMENTS]"


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Compare two plans in turns, and say whether to use the second."""
    require_writable(options.html, options.markdown)
    host = read_host(this_machine(os.environ, datetime.now(UTC)))
    arms = _find_arms(options, host)
    workload = read_workload(options, _find_context([arm.plan for arm in arms]))
    bench = Bench(
        workload=workload,
        concurrencies=read_concurrencies(options),
        thinking=read_thinking(options),
        tool_choice=_find_tool_choice([arm.plan for arm in arms], options.tool_choice),
        tell=lambda cell: screen.show_progress(render_cell_line(cell)),
    )
    conditions = describe_conditions(
        options,
        bench,
        model=arms[1].plan.target,
        versions=find_versions(),
        plan=arms[1].plan,
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
        logs=slipstream_cache(os.environ) / "compare" / f"{conditions.at:%Y%m%d-%H%M%S}",
        say=screen.show_progress,
        watch=make_watch(host),
        localize=weights.localize,
    )
    done = contest.run(conditions)
    screen.show_data(text=render_comparison_text(done), document=done.to_json())
    if options.html:
        write_report(options.html, render_comparison_html(done), screen)
    if options.markdown:
        write_report(options.markdown, render_comparison_markdown(done), screen)
    return ExitCode.DONE


def _find_arms(options: argparse.Namespace, host: Host) -> tuple[ComparedArm, ComparedArm]:
    """Take the plan as B; A is the plan that it is held against, or that of --no-speculation."""
    if options.users is None and not Path(options.target).is_file():
        options.users = max(read_concurrencies(options))
    plan = take_plan(options, host)
    if options.against is not None:
        other = read_record(options.against, LaunchPlan, hint=PLAN_HINT)
        return ComparedArm(name=options.against.stem, plan=other), ComparedArm(
            name=Path(options.target).stem, plan=plan
        )
    if plan.speculation is None:
        raise InvalidInputError(
            f"the plan for {plan.target} has no drafter to compare",
            hint="name one with --drafter, or another plan with --against",
        )
    return (
        ComparedArm(name="plain", plan=plan_plain(plan, host)),
        ComparedArm(name="drafted", plan=plan),
    )


def _find_tool_choice(plans: list[LaunchPlan], wanted: ToolChoice) -> ToolChoice:
    """Ask for tool calls if both engines parse them."""
    return wanted if all(map(_parses_calls, plans)) else "none"


def _parses_calls(plan: LaunchPlan) -> bool:
    parser, auto = plan.settings.tool_parser, plan.settings.auto_tools
    return parser is not None and auto is not None and auto.value


def _find_context(plans: list[LaunchPlan]) -> int | None:
    """Return the shortest context of the plans."""
    return min((plan.context for plan in plans if plan.context is not None), default=None)
