"""A `Comparison` as a report and as a page: verdict, findings, figures, cautions, conditions."""

from collections.abc import Sequence
from textwrap import wrap

from slipstream.measuring.comparing.comparison import Comparison
from slipstream.measuring.comparing.verdict import BreakEven, PairFindings, Place, Verdict
from slipstream.measuring.engine_start import report_usage
from slipstream.planning.plan import diff_plans
from slipstream.reporting.drawing import TEXT_WIDTH, draw, frame, protect, shorten, write
from slipstream.reporting.html_page import Figure, render_page
from slipstream.reporting.measuring.charts import (
    ForestRow,
    draw_forests,
    draw_loads,
    show_estimate,
    show_load,
)
from slipstream.reporting.measuring.conditions import (
    describe_conditions,
    describe_machine_loads,
    describe_plan,
)
from slipstream.reporting.measuring.sides import (
    Side,
    describe_turns,
    has_tasks,
    list_concurrencies,
    list_kinds,
    read_pace,
    read_tokens_per_step,
    show_cached,
    show_calls,
    take_sides,
)
from slipstream.reporting.measuring.timeline import Strip, draw_run
from slipstream.reporting.report import Report, Row, Section, Table, show
from slipstream.reporting.text.plan import tabulate_differences

ALL_KINDS = "all kinds"
READING = (
    "as a ratio, with an interval that holds for all rows together. The grey band around 1 is what "
    "a restart alone does. A mark that points right is faster, left slower; a square is even "
    "within 5 %; a hollow mark is unclear."
)
LEFT, WIDTH, TILE, BETWEEN, BAR = 96.0, 360.0, 40.0, 6.0, 8.0
NAME, NAME_LETTERS = LEFT + BAR + 8, 24


def describe_comparison(comparison: Comparison) -> Report:
    verdict, sides = comparison.verdict, take_sides(comparison)
    first, *others = verdict.arms
    two = len(others) == 1
    title = f"{others[0]} against {first}" if two else ", ".join(verdict.arms)
    by_task = " by wall time per task" if has_tasks(sides) else ""
    cautions = [f"{'grave: ' * one.grave}{one.message}" for one in verdict.cautions]
    figure, interval, note = _head(verdict, f"{first}{by_task}")
    pairs = f"speed-up of B, {others[0]}, against A, {first}{by_task}" if two else "every pair"
    return Report(
        title=f"{title}: {comparison.conditions.model}",
        answer=verdict.answer,
        figure=figure,
        interval=interval,
        figure_note=note,
        sentence=verdict.sentence,
        sections=[
            *([] if two else _describe_places(verdict, f"A, {first}{by_task}")),
            Section(pairs, _tabulate_pairs(verdict.pairs), in_full=not two),
            Section("figures of each arm", _tabulate_figures(verdict, sides)),
            *_describe_tasks(sides),
            Section("where the speed-up ends", _tabulate_break_evens(verdict), in_full=not two),
            Section("cautions", lines=cautions),
            *describe_machine_loads(
                [
                    (f"start {number}, {start.arm}{', again' * start.repeated}", start.machine)
                    for number, start in enumerate(comparison.starts, 1)
                ]
            ),
            *describe_conditions(comparison.conditions, *_describe_starts(comparison, sides)),
            *_describe_plans(comparison),
        ],
    )


def _head(verdict: Verdict, first: str) -> tuple[str, str, str]:
    """Return the range of the ratios over all loads, over what, and where the speed-up ends."""
    places = [place for place in verdict.places if place.kind is None] or list(verdict.places)
    if len(verdict.arms) == 2:
        findings = verdict.pairs[0].findings
        whole = [one for one in findings if one.kind is None] or findings
        ratios, who = [one.speed_up.ratio for one in whole], verdict.arms[1]
    else:
        ratios = [place.speed_up.ratio if place.speed_up else 1.0 for place in places]
        who = " or ".join(dict.fromkeys(place.contenders[0] for place in places))
    loads = sorted({place.concurrency for place in places})
    span = " to ".join(dict.fromkeys(map(str, (loads[0], loads[-1]))))
    note = f"the speed of {who} against {first}, {places[0].kind or ALL_KINDS}"
    if verdict.is_disturbed:
        return "?", "", f"the machine was busy: {note}"
    ends = [one for pair in verdict.pairs for one in pair.break_evens if one.kind is None]
    if len(verdict.arms) == 2 and ends and ends[0].concurrency:
        note += f"; break-even at concurrency {ends[0].concurrency:.1f}"
    figures = dict.fromkeys(f"{ratio:.2f}" for ratio in (min(ratios), max(ratios)))
    return "\N{EN DASH}".join(figures) + "\N{MULTIPLICATION SIGN}", f"at concurrency {span}", note


def show_contenders(place: Place) -> str:
    """Return the winner, or the arms between which it is open."""
    if place.even:
        return f"{' = '.join(place.contenders)} (even)"
    return " or ".join(place.contenders)


def _describe_places(verdict: Verdict, first: str) -> list[Section]:
    """Return who is fastest where, and the speed of every other arm against the first."""
    pairs = verdict.against_first
    fastest: list[Row] = [
        (
            *_name(place.kind, place.concurrency),
            show_contenders(place),
            show_estimate(place.speed_up) if place.speed_up else "1",
            f"{100 * (found.noise - 1):.1f} %",
        )
        for place, found in zip(verdict.places, pairs[0].findings, strict=True)
    ]
    speeds: list[Row] = [
        (
            *_name(found[0].kind, found[0].concurrency),
            *(show_estimate(one.speed_up) for one in found),
        )
        for found in zip(*(pair.findings for pair in pairs), strict=True)
    ]
    header = ("kind", "concurrency", "fastest", f"against {verdict.arms[0]}", "noise")
    names = (f"{letter} {pair.arms[1]}" for letter, pair in zip("BCDEFGH", pairs, strict=False))
    return [
        Section("fastest arm", Table(header, fastest, words=(0, 2))),
        Section(f"speed against {first}", Table(("kind", "concurrency", *names), speeds)),
    ]


def _name(kind: str | None, concurrency: int) -> Row:
    return kind or ALL_KINDS, str(concurrency)


def _tabulate_pairs(pairs: Sequence[PairFindings]) -> Table:
    rows: list[Row] = [
        (
            *([f"{pair.arms[1]} against {pair.arms[0]}"] if pairs[1:] else []),
            *_name(found.kind, found.concurrency),
            show_estimate(found.speed_up),
            show_estimate(found.throughput),
            f"{100 * (found.noise - 1):.1f} %",
            found.outcome,
        )
        for pair in pairs
        for found in pair.findings
    ]
    header = (*(["pair"] if pairs[1:] else []), "kind", "concurrency", "speed-up", "throughput")
    return Table((*header, "noise", "outcome"), rows, words=(0, len(header) - 4, len(header) + 1))


def _tabulate_figures(verdict: Verdict, sides: Sequence[Side]) -> Table:
    drafting = [side for side in sides if side.drafts] or [sides[1]]
    unit = "s/task" if has_tasks(sides) else "tokens/s"
    rows: list[Row] = [
        (
            *_name(place.kind, place.concurrency),
            *(show(side.average(read_pace, place.kind, place.concurrency)) for side in sides),
            *(
                show(side.average(read_tokens_per_step, place.kind, place.concurrency), 2)
                for side in drafting
            ),
        )
        for place in verdict.places
    ]
    header = ("kind", "concurrency", *(f"{side.arm} {unit}" for side in sides))
    return Table((*header, *(f"{side.arm} tokens/step" for side in drafting)), rows)


def _describe_tasks(sides: Sequence[Side]) -> list[Section]:
    """Describe the cache and the tool calls of tasks, and their first tokens turn by turn."""
    header = ("kind", "concurrency", *(f"{side.arm} cached" for side in sides))
    header += tuple(f"{side.arm} tool calls" for side in sides)
    rows: list[Row] = [
        (
            kind,
            str(concurrency),
            *(show_cached(side.find(kind, concurrency)) for side in sides),
            *(show_calls(side.find(kind, concurrency)) for side in sides),
        )
        for kind in (list_kinds(sides) if has_tasks(sides) else ())
        for concurrency in list_concurrencies(sides)
    ]
    title = "cached prompt tokens and tool calls"
    return [Section(title, Table(header, rows)), describe_turns(sides)]


def _tabulate_break_evens(verdict: Verdict) -> Table:
    smallest = min(place.concurrency for place in verdict.places)

    def show_crossing(entry: BreakEven, at: float | None) -> str:
        if at is None:
            return f"beyond {entry.largest}"
        return f"{at:.1f}" if at else f"below {smallest}"

    several = len(verdict.arms) > 2
    rows: list[Row] = [
        (
            *([pair.arms[1]] if several else []),
            entry.kind or ALL_KINDS,
            *(show_crossing(entry, at) for at in (entry.concurrency, entry.low, entry.high)),
        )
        for pair in verdict.against_first
        for entry in pair.break_evens
    ]
    header = (*(["arm"] if several else []), "kind", "concurrency", "from", "to")
    return Table(header, rows, words=(0, int(several)))


def _describe_starts(comparison: Comparison, sides: Sequence[Side]) -> list[Row]:
    order = " ".join(start.arm for start in comparison.starts)
    rows: list[Row] = [("order", f"{order}, each a start of its own")]
    for side in sides:
        starts = [start for start in comparison.starts if start.arm == side.arm]
        seconds = [start.start_seconds for start in starts]
        uneven = sum(not start.warm_up.flat for start in starts)
        unstable = f", {uneven} of {len(starts)} warm-ups did not become stable" if uneven else ""
        took = f"ready after {min(seconds):.0f} to {max(seconds):.0f} s" if seconds else "never ran"
        rows.append((f"{side.arm} is {side.name}", took + unstable))
    return rows


def _describe_plans(comparison: Comparison) -> list[Section]:
    """Return how each plan differs from the first, and every command."""
    first, *others = comparison.arms
    sections = []
    for other in others:
        table = tabulate_differences(diff_plans(first.plan, other.plan), first.name, other.name)
        between = f"{other.name} and {first.name}" if others[1:] else "the plans"
        lines = () if table.rows else ("none: the plans are the same",)
        sections.append(Section(f"differences between {between}", table, lines, in_full=True))
    return sections + [
        describe_plan(f"engine of {arm.name}", report_usage(arm.plan)) for arm in comparison.arms
    ]


def render_comparison_html(comparison: Comparison) -> str:
    verdict, sides = comparison.verdict, take_sides(comparison)
    first, *others = sides
    measure = verdict.measure.capitalize()
    key = [side.key for side in sides]
    figures = [
        Figure(
            f"{'every arm' if others[1:] else f'speed of {others[0].name}'} against {first.name}",
            f"{measure}, {READING}",
            draw_forests(_list_rows(verdict, others)),
            layout="broad",
        )
    ]
    if others[1:]:
        caption = (
            "The fastest arm for each kind of prompt and load, and its speed against "
            f"{first.name}. A bar of several colours: no arm was shown to be faster than any of "
            "these."
        )
        tiles = _draw_places(verdict, sides)
        figures.insert(0, Figure("fastest by kind and concurrency", caption, tiles, key, "broad"))
    names = {side.arm: side.name for side in sides}
    strips = [
        Strip(names[start.arm], start.start_seconds, start.warm_up, start)
        for start in comparison.starts
    ]
    figures += [*draw_loads(sides), draw_run(strips, key)]
    return render_page(describe_comparison(comparison), figures)


def _list_rows(verdict: Verdict, sides: Sequence[Side]) -> list[ForestRow]:
    """List the findings of two arms, or the arms of each place under its kind."""
    if not sides[1:]:
        return [
            ForestRow(found.kind or ALL_KINDS, found.concurrency, found, heading=not found.kind)
            for found in verdict.pairs[0].findings
        ]
    rows: list[ForestRow] = []
    for found in zip(*(pair.findings for pair in verdict.against_first), strict=True):
        kind = found[0].kind or ALL_KINDS
        rows.append(ForestRow(kind, found[0].concurrency, None, heading=True))
        rows += [
            ForestRow(side.name, one.concurrency, one, description=f"{kind} {side.name}")
            for side, one in zip(sides, found, strict=True)
        ]
    return rows


def _draw_places(verdict: Verdict, sides: Sequence[Side]) -> list[str]:
    """Draw a panel for each concurrency with a tile for each kind."""
    arms = {side.name: side.arm.lower() for side in sides}
    panels = []
    for load in sorted({place.concurrency for place in verdict.places}):
        places = [place for place in verdict.places if place.concurrency == load]
        tiles = [
            _draw_tile(place, 24 + (TILE + BETWEEN) * row, arms) for row, place in enumerate(places)
        ]
        description = "; ".join(
            f"{place.kind or ALL_KINDS} {show_contenders(place)}"
            + (f" {show_estimate(place.speed_up)}" if place.speed_up else "")
            for place in places
        )
        height = 24 + (TILE + BETWEEN) * len(places)
        title = write(0, 14, show_load(load), "strong")
        panels.append(
            frame(WIDTH, height, f"Who wins, {show_load(load)}", description, title, *tiles)
        )
    return panels


def _draw_tile(place: Place, top: float, arms: dict[str, str]) -> str:
    """Draw the winner in its colour, or those between whom it is open in two lines."""
    part, right = TILE / len(place.contenders), WIDTH - 10
    ratio, interval = "1", ""
    if place.speed_up:
        ratio = f"{place.speed_up.ratio:.2f}"
        interval = f"{place.speed_up.low:.2f} \N{EN DASH} {place.speed_up.high:.2f}"
    kind = shorten(place.kind or ALL_KINDS, LEFT - 6)
    names, style = [shorten(place.contenders[0], TEXT_WIDTH * NAME_LETTERS)], "soft"
    if place.winner:
        style = f"value {arms[place.winner]}"
    else:
        more = " \N{HORIZONTAL ELLIPSIS}"
        names = wrap(show_contenders(place), NAME_LETTERS, max_lines=2, placeholder=more)
    return draw(
        "g",
        draw("title", protect(show_contenders(place))),
        write(0, top + 24, kind, "" if place.kind else "strong"),
        draw("rect", x=LEFT, y=top, width=WIDTH - LEFT, height=TILE, kind="load"),
        *(
            draw(
                "rect", x=LEFT, y=top + part * row, width=BAR, height=part, kind=f"bar {arms[arm]}"
            )
            for row, arm in enumerate(place.contenders)
        ),
        *(
            write(NAME, top + (17 if names[1:] else 24) + 16 * row, line, style)
            for row, line in enumerate(names)
        ),
        write(right, top + 17, ratio, "strong", "end"),
        write(right, top + 33, interval, "soft", "end"),
    )
