"""The parts that reports of two and of more arms share: tasks, cautions, machine, plans."""

from collections.abc import Sequence

from slipstream.measuring.bench import BenchCell
from slipstream.measuring.comparing.comparison import Arena, Comparison
from slipstream.measuring.comparing.design import LETTERS
from slipstream.measuring.comparing.verdict import SpeedRatio
from slipstream.measuring.engine_start import report_usage
from slipstream.planning.difference import diff_plans
from slipstream.planning.plan import LaunchPlan
from slipstream.reporting.pages.report import Row, Section, Table
from slipstream.reporting.pages.sides import Side, list_concurrencies, list_kinds, take_sides
from slipstream.reporting.serving.machine import describe_machine_loads
from slipstream.reporting.text.conditions import describe_conditions, describe_plan
from slipstream.reporting.text.tasks import (
    describe_turns,
    has_tasks,
    read_task_seconds,
    show_cached,
    show_calls,
)

ALL_KINDS = "all kinds"


def show_estimate(estimate: SpeedRatio) -> str:
    """Write a ratio with its interval."""
    return f"{estimate.ratio:.2f} ({estimate.low:.2f} to {estimate.high:.2f})"


def show_load(concurrency: int) -> str:
    """Return how many requests were in flight."""
    return f"concurrency {concurrency}"


def list_drafting(sides: Sequence[Side]) -> Sequence[Side]:
    """List the arms that drafted: of another there is nothing to tell."""
    return [side for side in sides if side.drafts] or [sides[1]]


def read_pace(cell: BenchCell) -> float | None:
    """Return tokens per second, or of tasks the median wall time."""
    return cell.tokens_per_second if cell.tasks is None else read_task_seconds(cell)


def describe_contest(contest: Comparison | Arena) -> list[Section]:
    """Describe what weakens the verdict, and all that it depends on."""
    return [
        *_describe_cautions(contest),
        *describe_machine_loads(
            [
                (f"block {number}, {report.arm}{', again' * report.repeated}", report.machine)
                for number, report in enumerate(contest.reports, 1)
            ]
        ),
        *describe_conditions(contest.conditions, *_describe_starts(contest)),
        *_describe_plans(contest),
    ]


def describe_tasks(contest: Comparison | Arena) -> list[Section]:
    """Render the cache and the tool calls of tasks, and their first tokens turn by turn."""
    sides = take_sides(contest)
    if not has_tasks(sides):
        return []
    header = ("kind", "concurrency", *(f"{side.arm} cached" for side in sides))
    header += tuple(f"{side.arm} tool calls" for side in sides)
    rows = [
        (
            kind,
            str(concurrency),
            *(show_cached(side.find(kind, concurrency)) for side in sides),
            *(show_calls(side.find(kind, concurrency)) for side in sides),
        )
        for kind in list_kinds(sides)
        for concurrency in list_concurrencies(sides)
    ]
    return [
        Section("cached prompt tokens and tool calls", Table(header, rows)),
        *describe_turns(sides),
    ]


def _describe_cautions(contest: Comparison | Arena) -> list[Section]:
    lines = [
        f"grave: {caution.message}" if caution.grave else caution.message
        for caution in contest.verdict.cautions
    ]
    return [Section("cautions", lines=lines)] if lines else []


def _describe_starts(contest: Comparison | Arena) -> list[Row]:
    order = " ".join(report.arm for report in contest.reports)
    rows: list[Row] = [("order", f"{order}, each a start of its own")]
    for side, compared in zip(LETTERS, contest.arms, strict=False):
        reports = [report for report in contest.reports if report.arm == side]
        seconds = [report.start_seconds for report in reports]
        uneven = sum(not report.warm_up.flat for report in reports)
        unstable = f", {uneven} of {len(reports)} warm-ups did not become stable" if uneven else ""
        took = f"ready after {min(seconds):.0f} to {max(seconds):.0f} s" if seconds else "never ran"
        rows.append((f"{side} is {compared.name}", took + unstable))
    return rows


def _describe_plans(contest: Comparison | Arena) -> list[Section]:
    """Return how each plan differs from the first, and every command."""
    first, *others = contest.arms
    return [
        *(
            _describe_difference(
                (first.name, other.name),
                (first.plan, other.plan),
                f"{other.name} and {first.name}" if others[1:] else "the plans",
            )
            for other in others
        ),
        *(describe_plan(f"engine of {arm.name}", report_usage(arm.plan)) for arm in contest.arms),
    ]


def _describe_difference(
    names: tuple[str, str], plans: tuple[LaunchPlan, LaunchPlan], between: str
) -> Section:
    rows = [
        (entry.flag, entry.left or "not set", entry.right or "not set", entry.because)
        for entry in diff_plans(*plans)
    ]
    header = ("setting", *names, f"because, for {names[1]}")
    lines = () if rows else ("none: the plans are the same",)
    table = Table(header, rows, words=(0, 1, 2, 3)) if rows else None
    return Section(f"differences between {between}", table, lines, in_full=True)
