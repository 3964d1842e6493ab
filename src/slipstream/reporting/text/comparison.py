"""A `Comparison` in words: the verdict, each finding, the break-even, cautions and conditions."""

from slipstream.measuring.bench import BenchCell
from slipstream.measuring.comparing.comparison import Comparison
from slipstream.measuring.comparing.verdict import BreakEven, SpeedFinding, SpeedRatio
from slipstream.measuring.engine_start import report_usage
from slipstream.planning.difference import diff_plans
from slipstream.reporting.pages.report import Report, Row, Section, Table, render_text, show
from slipstream.reporting.pages.sides import Side, list_concurrencies, list_kinds, take_sides
from slipstream.reporting.text.conditions import describe_conditions, describe_plan
from slipstream.reporting.text.machine import describe_machine_loads
from slipstream.reporting.text.tasks import (
    describe_turns,
    has_tasks,
    read_task_seconds,
    show_cached,
    show_calls,
)

ALL_KINDS = "all kinds"


def render_comparison_text(comparison: Comparison) -> str:
    """Show a comparison on the terminal."""
    return render_text(describe_comparison(comparison))


def describe_comparison(comparison: Comparison) -> Report:
    """Tell everything that a comparison found."""
    verdict = comparison.verdict
    first, second = verdict.arms
    main = find_main(comparison)
    kind = f"{main.kind or ALL_KINDS}, {show_load(main.concurrency)}"
    by_task = " by wall time per task" if verdict.measure == "wall time per task" else ""
    note = f"the speed of {second} against {first}{by_task}, {kind}"
    busy = any(caution.code == "busy-machine" for caution in verdict.cautions)
    return Report(
        title=f"{second} against {first}: {comparison.conditions.model}",
        answer=verdict.answer,
        figure="?" if busy else f"{main.speed_up.ratio:.2f}\N{MULTIPLICATION SIGN}",
        interval="" if busy else f"{main.speed_up.low:.2f} to {main.speed_up.high:.2f} (95 %)",
        figure_note=f"{note}: the machine was busy" if busy else note,
        sentence=verdict.sentence,
        sections=[
            Section(f"speed-up of B, {second}, against A, {first}{by_task}", _tabulate(comparison)),
            *_describe_tasks(comparison),
            *_describe_break_evens(comparison),
            *_describe_cautions(comparison),
            *describe_machine_loads(
                [
                    (f"block {number}, {report.arm}{', again' * report.repeated}", report.machine)
                    for number, report in enumerate(comparison.reports, 1)
                ]
            ),
            *describe_conditions(comparison.conditions, *_describe_starts(comparison)),
            *_describe_arms(comparison),
        ],
    )


def find_main(comparison: Comparison) -> SpeedFinding:
    """Give the finding of all kinds, or of the first, at the smallest concurrency."""
    return min(
        comparison.verdict.findings, key=lambda found: (found.kind is not None, found.concurrency)
    )


def show_estimate(estimate: SpeedRatio) -> str:
    """Write a ratio with its interval."""
    return f"{estimate.ratio:.2f} ({estimate.low:.2f} to {estimate.high:.2f})"


def show_load(concurrency: int) -> str:
    """Say how many requests were in flight."""
    return "one at a time" if concurrency == 1 else f"{concurrency} at once"


def _tabulate(comparison: Comparison) -> Table:
    sides = take_sides(comparison)
    # Of an arm that never drafted there is nothing to tell.
    drafting = [side for side in sides if side.drafts] or [sides[1]]
    unit = "s/task" if has_tasks(sides) else "tokens/s"
    header = (
        "kind",
        "at once",
        "speed-up",
        *(f"{side.arm} {unit}" for side in sides),
        "throughput",
        *(f"{side.arm} tokens/step" for side in drafting),
        "noise",
        "outcome",
    )
    rows = [_describe_finding(found, sides, drafting) for found in comparison.verdict.findings]
    return Table(header, rows, words=(0, len(header) - 1))


def _describe_finding(found: SpeedFinding, sides: tuple[Side, Side], drafting: list[Side]) -> Row:
    place = found.kind, found.concurrency
    return (
        found.kind or ALL_KINDS,
        str(found.concurrency),
        show_estimate(found.speed_up),
        *(show(side.average(_read_pace, *place)) for side in sides),
        show_estimate(found.throughput),
        *(show(side.average(lambda cell: cell.tokens_per_step, *place), 2) for side in drafting),
        f"{100 * (found.noise - 1):.1f} %",
        found.outcome,
    )


def _read_pace(cell: BenchCell) -> float | None:
    return cell.tokens_per_second if cell.tasks is None else read_task_seconds(cell)


def _describe_tasks(comparison: Comparison) -> list[Section]:
    """Render the cache and the tool calls of tasks, and their first tokens turn by turn."""
    sides = take_sides(comparison)
    if not has_tasks(sides):
        return []
    header = ("kind", "at once", *(f"{side.arm} cached" for side in sides))
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


def _describe_break_evens(comparison: Comparison) -> list[Section]:
    smallest = min(found.concurrency for found in comparison.verdict.findings)

    def show_crossing(entry: BreakEven, at: float | None) -> str:
        if at is None:
            return f"beyond {entry.largest}"
        return f"{at:.1f}" if at else f"below {smallest}"

    rows = [
        (
            entry.kind or ALL_KINDS,
            *(show_crossing(entry, at) for at in (entry.concurrency, entry.low, entry.high)),
        )
        for entry in comparison.verdict.break_evens
    ]
    header = ("kind", "concurrency", "from", "to")
    return [Section("where the speed-up ends", Table(header, rows))] if rows else []


def _describe_cautions(comparison: Comparison) -> list[Section]:
    lines = [
        f"grave: {caution.message}" if caution.grave else caution.message
        for caution in comparison.verdict.cautions
    ]
    return [Section("cautions", lines=lines)] if lines else []


def _describe_starts(comparison: Comparison) -> list[Row]:
    order = " ".join(report.arm for report in comparison.reports)
    rows: list[Row] = [("order", f"{order}, each a start of its own")]
    for side, compared in zip(("A", "B"), comparison.arms, strict=True):
        reports = [report for report in comparison.reports if report.arm == side]
        seconds = [report.start_seconds for report in reports]
        uneven = sum(not report.warm_up.flat for report in reports)
        told = f", {uneven} of {len(reports)} warm-ups did not get flat" if uneven else ""
        took = f"ready after {min(seconds):.0f} to {max(seconds):.0f} s" if seconds else "never ran"
        rows.append((f"{side} is {compared.name}", took + told))
    return rows


def _describe_arms(comparison: Comparison) -> list[Section]:
    first, second = (arm.plan for arm in comparison.arms)
    names = comparison.verdict.arms
    rows = [
        (entry.flag, entry.left or "not set", entry.right or "not set", entry.because)
        for entry in diff_plans(first, second)
    ]
    header = ("setting", *names, f"because, for {names[1]}")
    lines = () if rows else ("none: the plans are the same",)
    table = Table(header, rows, words=(0, 1, 2, 3)) if rows else None
    return [
        Section("differences between the plans", table, lines, in_full=True),
        *(
            describe_plan(f"engine of {arm.name}", report_usage(arm.plan))
            for arm in comparison.arms
        ),
    ]
