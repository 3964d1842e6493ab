"""An `Arena` as text: the fastest arm by kind and load, all ratios, every pair."""

from slipstream.measuring.comparing.comparison import Arena
from slipstream.measuring.comparing.verdict import Place
from slipstream.reporting.pages.report import Report, Row, Section, Table, show
from slipstream.reporting.pages.sides import take_sides
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


def describe_arena(arena: Arena) -> Report:
    """Describe everything that an arena found."""
    verdict = arena.verdict
    first = verdict.arms[0]
    main = min(verdict.places, key=lambda place: (place.kind is not None, place.concurrency))
    by_task = " by wall time per task" if verdict.measure == "wall time per task" else ""
    busy = any(caution.code == "busy-machine" for caution in verdict.cautions)
    note = f"{main.contenders[0]} against {first}{by_task}, {show_place(main)}"
    known = None if busy else main.speed_up
    return Report(
        title=f"{', '.join(verdict.arms)}: {arena.conditions.model}",
        answer=verdict.answer,
        figure="?" if busy else f"{known.ratio if known else 1:.2f}\N{MULTIPLICATION SIGN}",
        interval=f"{known.low:.2f} to {known.high:.2f} (95 %)" if known else "",
        figure_note=f"the machine was busy: {note}" if busy else f"the speed of {note}",
        sentence=verdict.sentence,
        sections=[
            Section("who is fastest where", _tabulate_places(arena)),
            Section(f"speed against A, {first}{by_task}", _tabulate_speed_ups(arena)),
            Section("figures of each arm", _tabulate_figures(arena)),
            *describe_tasks(arena),
            Section("every pair", _tabulate_pairs(arena), in_full=True),
            *describe_contest(arena),
        ],
    )


def show_place(place: Place) -> str:
    """Return the kind of prompt and the load as text."""
    return f"{place.kind or ALL_KINDS}, {show_load(place.concurrency)}"


def show_contenders(place: Place) -> str:
    """Return the winner, or the arms between which it is open."""
    if place.even:
        return f"{' = '.join(place.contenders)} (even)"
    return " or ".join(place.contenders)


def _tabulate_places(arena: Arena) -> Table:
    first = arena.verdict.arms[0]
    noises = [found.noise for found in arena.verdict.pairs[0].findings]
    rows: list[Row] = [
        (
            place.kind or ALL_KINDS,
            str(place.concurrency),
            show_contenders(place),
            show_estimate(place.speed_up) if place.speed_up else "1",
            f"{100 * (noise - 1):.1f} %",
        )
        for place, noise in zip(arena.verdict.places, noises, strict=True)
    ]
    header = ("kind", "at once", "fastest", f"against {first}", "noise")
    return Table(header, rows, words=(0, 2))


def _tabulate_speed_ups(arena: Arena) -> Table:
    sides = take_sides(arena)[1:]
    header = ("kind", "at once", *(f"{side.arm} {side.name}" for side in sides))
    columns = [arena.verdict.find(side.name) for side in sides]
    rows = [
        (
            found[0].kind or ALL_KINDS,
            str(found[0].concurrency),
            *(show_estimate(one.speed_up) for one in found),
        )
        for found in zip(*columns, strict=True)
    ]
    return Table(header, rows)


def _tabulate_figures(arena: Arena) -> Table:
    sides = take_sides(arena)
    drafting = list_drafting(sides)
    unit = "s/task" if has_tasks(sides) else "tokens/s"
    header = (
        "kind",
        "at once",
        *(f"{side.arm} {unit}" for side in sides),
        *(f"{side.arm} tokens/step" for side in drafting),
    )
    rows = [
        (
            place.kind or ALL_KINDS,
            str(place.concurrency),
            *(show(side.average(read_pace, place.kind, place.concurrency)) for side in sides),
            *(
                show(
                    side.average(lambda cell: cell.tokens_per_step, place.kind, place.concurrency),
                    2,
                )
                for side in drafting
            ),
        )
        for place in arena.verdict.places
    ]
    return Table(header, rows)


def _tabulate_pairs(arena: Arena) -> Table:
    rows = [
        (
            f"{pair.arms[1]} against {pair.arms[0]}",
            found.kind or ALL_KINDS,
            str(found.concurrency),
            show_estimate(found.speed_up),
            show_estimate(found.throughput),
            found.outcome,
        )
        for pair in arena.verdict.pairs
        for found in pair.findings
    ]
    header = ("pair", "kind", "at once", "speed-up", "throughput", "outcome")
    return Table(header, rows, words=(0, 1, 5))
