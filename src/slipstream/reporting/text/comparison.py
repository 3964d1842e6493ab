"""A `Comparison` as text: verdict, findings, break-even, cautions and conditions."""

from collections.abc import Sequence

from slipstream.measuring.comparing.comparison import Comparison
from slipstream.measuring.comparing.verdict import BreakEven, SpeedFinding
from slipstream.reporting.pages.report import Report, Row, Section, Table, show
from slipstream.reporting.pages.sides import Side, take_sides
from slipstream.reporting.text.contest import (
    ALL_KINDS,
    describe_contest,
    describe_tasks,
    list_drafting,
    read_pace,
    show_estimate,
    show_load,
)
from slipstream.reporting.text.tasks import has_tasks


def describe_comparison(comparison: Comparison) -> Report:
    """Return the full report of a comparison."""
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
            *describe_tasks(comparison),
            *_describe_break_evens(comparison),
            *describe_contest(comparison),
        ],
    )


def find_main(comparison: Comparison) -> SpeedFinding:
    """Return the finding of all kinds, or of the first, at the smallest concurrency."""
    return min(
        comparison.verdict.findings, key=lambda found: (found.kind is not None, found.concurrency)
    )


def _tabulate(comparison: Comparison) -> Table:
    sides = take_sides(comparison)
    drafting = list_drafting(sides)
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


def _describe_finding(found: SpeedFinding, sides: Sequence[Side], drafting: Sequence[Side]) -> Row:
    place = found.kind, found.concurrency
    return (
        found.kind or ALL_KINDS,
        str(found.concurrency),
        show_estimate(found.speed_up),
        *(show(side.average(read_pace, *place)) for side in sides),
        show_estimate(found.throughput),
        *(show(side.average(lambda cell: cell.tokens_per_step, *place), 2) for side in drafting),
        f"{100 * (found.noise - 1):.1f} %",
        found.outcome,
    )


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
