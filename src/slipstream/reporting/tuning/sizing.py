"""A `Sizing` as a report and as a page: how many replicas, at what cost, and the arithmetic."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from slipstream.reporting.drawing import (
    Axes,
    Points,
    Scale,
    draw,
    draw_panel,
    frame,
    join,
    round_up,
    rule,
    write,
)
from slipstream.reporting.report import Report, Row, Section, Table, show, tabulate
from slipstream.sizing.sizing import PoolSize, ServedFigures, SizeOption, Sizing
from slipstream.steering.percentiles import Percentiles
from slipstream.units import UNKNOWN

SHOWN_LENGTHS = (1, 2, 3, 5, 7, 10, 15)
BATCHES = (1, 2, 4, 8, 16, 32, 64)
MOST_OVER = 3
_MEETS = {None: "", True: "meets", False: "misses"}


def render_sizing_html(sizing: Sizing) -> str:
    # What a page needs takes longer to import than the arithmetic to compute.
    from slipstream.reporting.html_page import Figure, render_page

    figures = [
        Figure(
            "replicas by style",
            "The bar is the count that meets the goal, the line its range within the error of the "
            "engine's speed; an arrow marks a line that continues.",
            [_draw_options(sizing.options)] if sizing.options else [],
            layout="broad",
        ),
        Figure(
            "speed-up from drafts, by sequences per step",
            "Below 1 a plain engine is faster. The vertical line is the mean batch of the answer: "
            "what is best there decides, not what is best for few.",
            [_draw_speed_up(sizing, kind) for kind in _list_drafted_kinds(sizing)],
            [("B", "the drafts that were chosen"), ("A", "the longest drafts")],
        ),
        Figure(
            "the goal by number of replicas, by arithmetic",
            "For the chosen style; the horizontal line is the goal, the vertical one the answer.",
            _draw_counts(sizing),
        ),
        Figure(
            "the day",
            "Requests per second by hour.",
            [_draw_day(sizing)] if sizing.demand.hours else [],
        ),
    ]
    return render_page(describe_sizing(sizing), figures)


def describe_sizing(sizing: Sizing) -> Report:
    """Return the report: the count, the options, and what they are based on."""
    best = sizing.best
    load = f"{sizing.demand.requests_per_second:.4g} requests per second, {sizing.goal}"
    if best is None or best.meets_goal is False:
        why = "; ".join(sizing.missed) or "not in the simulation"
        answer, figure, interval = "failed", "none", ""
        sentence = f"No fleet that was tried meets {sizing.goal} for {load}: {why}."
    else:
        answer, figure, interval = "sized", str(best.replicas), f"{_show_interval(best)} replicas"
        sentence = _make_sentence(sizing, best)
    return Report(
        title="fleet size",
        answer=answer,
        figure=figure,
        interval=interval,
        figure_note=load,
        sentence=sentence,
        sections=_list_sections(sizing),
    )


def _make_sentence(sizing: Sizing, best: SizeOption) -> str:
    many = best.replicas > 1
    parts = [
        f"{best.replicas} {best.style} replica{'s' * many} ({_name_pools(best.pools)}) "
        f"meet{'s' * (not many)} {sizing.goal} for "
        f"{sizing.demand.requests_per_second:.4g} requests per second; "
        f"{_show_interval(best)} within the error of the engine's known speed."
    ]
    plain = next((one for one in sizing.options if one.style == "plain"), None)
    if best.style != "plain" and plain is not None:
        parts.append(
            f"Without speculation it takes {plain.replicas}: "
            f"{plain.replicas / best.replicas:.2f} times as many."
        )
    elif best.style != "plain" and sizing.missed:
        parts.append(f"Without speculation {sizing.missed[-1].partition(': ')[2]}.")
    if (outage := sizing.outage) is not None and not outage.figures.meets_goal:
        kept = "it is met" if outage.with_spares.meets_goal else "it still is"
        parts.append(
            f"When one of them fails, {outage.figures.lost} answers are cut off and the goal is "
            f"missed while it is away; with {outage.spares} more {kept}."
        )
    if best.cost_per_million is not None:
        parts.append(f"A million tokens cost {sizing.price.show(best.cost_per_million)}.")
    return " ".join(parts)


def _show_interval(option: SizeOption) -> str:
    """Write the counts that the speed's error leaves open."""
    return f"{option.low} to {'more' if option.high is None else option.high}"


def _name_pools(pools: Sequence[PoolSize]) -> str:
    names = [f"k = {pool.draft_length}" if pool.draft_length else "no drafts" for pool in pools]
    if len(pools) == 1:
        return names[0]
    return ", ".join(
        f"{pool.replicas} for {', '.join(pool.kinds)}: {name}"
        for pool, name in zip(pools, names, strict=True)
    )


def _list_sections(sizing: Sizing) -> list[Section]:
    explained = "sequences per step above which drafts of a length cost more than they gain"
    return [
        Section("options", _tabulate_options(sizing), lines=sizing.missed),
        Section("simulated times", _tabulate_times(sizing)),
        Section(
            "demand in the busiest hour",
            tabulate(
                sizing.demand.kinds,
                {
                    "kind": lambda one: one.kind,
                    "requests per second": lambda one: f"{one.requests_per_second:.4g}",
                    "prompt tokens": lambda one: str(one.prompt_tokens),
                    "cached": lambda one: f"{one.cached_share:.0%}",
                    "answer tokens": lambda one: str(one.output_tokens),
                },
            ),
        ),
        *_describe_outage(sizing),
        *_describe_day(sizing),
        Section(
            "where speculation stops paying",
            _tabulate_break_even(sizing),
            lines=[explained] if sizing.break_even else (),
        ),
        Section("one replica", _tabulate_speed(sizing), lines=sizing.cautions),
        Section(
            "arithmetic",
            lines=[
                line
                for pool in (sizing.best.pools if sizing.best else ())
                for line in _work_out(sizing, pool)
            ],
        ),
        Section("cost", lines=_describe_cost(sizing)),
    ]


def _drop_empty(table: Table) -> Table:
    """Return a table without the columns that have no cell; the first ones are words."""
    kept = [at for at in range(len(table.header)) if any(row[at] for row in table.rows)]
    rows = [tuple(row[at] for at in kept) for row in table.rows]
    return Table(tuple(table.header[at] for at in kept), rows, table.words)


def _tabulate_options(sizing: Sizing) -> Table:
    table = tabulate(
        sizing.options,
        {
            "style": lambda one: one.style,
            "drafts": lambda one: _name_pools(one.pools),
            "replicas": lambda one: str(one.replicas),
            "95 %": _show_interval,
            "mean batch": lambda one: ", ".join(f"{pool.mean_batch:.1f}" for pool in one.pools),
            "simulated": lambda one: _MEETS[one.meets_goal],
            "cost per million": lambda one: _show_cost(sizing, one.cost_per_million),
        },
        words=(0, 1),
    )
    return _drop_empty(table)


def _tabulate_times(sizing: Sizing) -> Table:
    rows: list[Row] = []
    for option in sizing.options:
        if (found := option.simulated) is not None:
            rows += [
                (option.style, "first token, s", *_show_times(found.ttft, 1, 2)),
                (option.style, "per token, ms", *_show_times(found.tpot, 1000, 1)),
            ]
    return Table(("style", "time", *Percentiles.model_fields), rows, (0, 1))


def _show_times(times: Percentiles | None, factor: float, decimals: int) -> Row:
    values = times.model_dump().values() if times else [None] * len(Percentiles.model_fields)
    return tuple(show(value and factor * value, decimals) for value in values)


def _show_slow(figures: ServedFigures) -> Row:
    return _show_times(figures.ttft, 1, 2)[2], _show_times(figures.tpot, 1000, 1)[2]


def _show_cost(sizing: Sizing, cost: float | None) -> str:
    return "" if sizing.price.hourly is None else sizing.price.show(cost)


def _describe_outage(sizing: Sizing) -> list[Section]:
    if (outage := sizing.outage) is None:
        return []
    away = "for good" if outage.seconds is None else f"for {outage.seconds:.0f} s"
    rows = [
        (str(replicas), *_show_slow(figures), str(figures.lost), _MEETS[figures.meets_goal])
        for replicas, figures in (
            (outage.replicas, outage.figures),
            (outage.replicas + outage.spares, outage.with_spares),
        )
    ]
    header = ("replicas", "first token p95, s", "per token p95, ms", "answers cut off", "goal")
    lines = ["requests that arrive while it is away; those without a token yet are sent to another"]
    return [Section(f"one replica fails {away}", Table(header, rows), lines=lines)]


def _describe_day(sizing: Sizing) -> list[Section]:
    if (day := sizing.day) is None:
        return []
    rows = [
        (
            name,
            f"{one.fewest_replicas} to {one.most_replicas}",
            f"{one.machine_hours:.0f}",
            *_show_slow(one),
            _show_cost(sizing, cost),
        )
        for name, one, cost in (
            ("fixed", day.fixed, day.fixed_cost),
            ("scaled", day.scaled, day.scaled_cost),
        )
    ]
    header = (
        *("fleet", "replicas", "machine hours"),
        *("first token p95, s", "per token p95, ms", "cost per million"),
    )
    lines = [
        f"{day.fixed.requests} requests; a replica serves {day.start_seconds:.0f} s after it "
        "was requested"
    ]
    return [Section("one day", _drop_empty(Table(header, rows)), lines=lines)]


def _tabulate_break_even(sizing: Sizing) -> Table:
    cells = {(one.kind, one.draft_length): one.sequences for one in sizing.break_even}
    lengths = sorted({length for _, length in cells})
    shown = [length for length in lengths if length in SHOWN_LENGTHS or length == lengths[-1]]
    rows = [
        (kind, *("never" if (at := cells[kind, k]) is None else f"{at:.0f}" for k in shown))
        for kind in sorted({kind for kind, _ in cells})
    ]
    return Table(("kind", *(f"k = {length}" for length in shown)), rows)


def _tabulate_speed(sizing: Sizing) -> Table:
    speed = sizing.speed
    rows: list[Row] = [("source", speed.source)]
    for name, cost in (("step with drafts", speed.drafting), ("plain step", speed.plain)):
        if cost is not None:
            parts = f"{1000 * cost.fixed:.2f} ms + {1000 * cost.per_sequence:.3f} ms per sequence"
            rows.append((name, f"{parts} + {1000 * cost.per_token:.3f} ms per verified token"))
    cost_of = speed.per_prompt_token
    prompts = f"{1 / cost_of:.0f} tokens per second" if cost_of else "free"
    rows += [
        ("prompts", f"{prompts}, {speed.prompt_source}"),
        ("most sequences", str(speed.max_sequences)),
        ("interval", f"within {speed.error:.0%} (95 %)"),
        ("routing", sizing.routing),
        ("start", UNKNOWN if speed.start_seconds is None else f"{speed.start_seconds:.0f} s"),
    ]
    return Table((), rows, (0, 1))


def _work_out(sizing: Sizing, pool: PoolSize) -> list[str]:
    speed, length, batch = sizing.speed, pool.draft_length, pool.mean_batch
    cost, step, left = speed.find_cost(length), 1000 * pool.step_seconds, 1 - pool.prompt_share
    tokens = ", ".join(
        f"{kind} {speed.count_tokens_per_step(kind, length):.2f}" for kind in pool.kinds
    )
    return [
        f"{', '.join(pool.kinds)}: {_name_pools([pool])}, tokens per step: {tokens}",
        f"steps per request: {pool.steps:.1f}; a step of {batch:.1f} sequences takes "
        f"{1000 * cost.fixed:.1f} + {batch:.1f} x {1000 * cost.marginal(length):.2f} = "
        f"{step:.1f} ms",
        f"each of {pool.replicas} replicas gets {pool.arrivals:.3f} requests per second; "
        f"their prompts take {pool.prompt_share:.1%} of its time",
        f"sequences in a replica: {pool.arrivals:.3f} x {pool.steps:.1f} x {step:.1f} ms / "
        f"{left:.3f} = {pool.arrivals * pool.steps * pool.step_seconds / left:.1f}, and "
        f"{batch:.1f} with the chance of bursts",
        f"it is {pool.busy_share:.0%} of the largest load that does not queue without end",
    ]


def _describe_cost(sizing: Sizing) -> list[str]:
    price, best = sizing.price, sizing.best
    if price.hourly is None:
        return ["unknown: give --price"]
    tokens = sizing.demand.tokens_per_second * sizing.demand.mean_share * 3600
    lines = [f"{price.show(price.hourly)} per machine and hour, given as {price.stated}"]
    if best is not None:
        lines.append(
            f"{best.replicas} machines make {tokens / 1e6:.2f} million tokens per hour on the "
            f"day's mean: {price.show(best.cost_per_million)} per million"
        )
    return lines


def _draw_options(options: Sequence[SizeOption]) -> str:
    # An interval without a reasonable end is cut off.
    top = round_up(1.5 * max(option.replicas for option in options))
    x = Scale(0, top, 70, 220)
    parts: list[str] = []
    for number, option in enumerate(options):
        middle, end = 24 + 30 * number, x(option.replicas)
        arm = "a" if option.style == "plain" else "b"
        high = inf if option.high is None else option.high
        bar = [(x(0), middle - 6), (end, middle - 6), (end, middle + 6), (x(0), middle + 6)]
        parts += [
            write(0, middle + 4, option.style, "strong"),
            draw("path", d=join(bar), kind=f"line {arm}"),
            rule(x(option.low), middle, x.clip(high), middle, f"tick {arm}"),
            write(280, middle + 4, str(option.replicas), "strong", "end"),
            write(360, middle + 4, _show_interval(option), "soft", "end"),
        ]
        if high > top:
            arrow = [(x(top) - 5, middle - 4), (x(top), middle), (x(top) - 5, middle + 4)]
            parts.append(draw("path", d=join(arrow), kind=f"tick line {arm}"))
    counts = "; ".join(f"{one.style} {one.replicas} ({_show_interval(one)})" for one in options)
    parts.append(rule(x(0), 8, x(0), 14 + 30 * len(options), "axis"))
    return frame(360, 20 + 30 * len(options), "replicas by style", counts, *parts)


def _list_drafted_kinds(sizing: Sizing) -> list[str]:
    known = {one.kind for one in sizing.speed.yields}
    return [kind.kind for kind in sizing.demand.kinds if kind.kind in known]


def _draw_speed_up(sizing: Sizing, kind: str) -> str:
    speed = sizing.speed
    own = [pool for pool in (sizing.best.pools if sizing.best else ()) if kind in pool.kinds]
    longest = max(speed.lengths, default=0)
    chosen = next((pool.draft_length for pool in own if pool.draft_length), longest)
    lines = {
        arm: {
            batch: [found]
            for batch in BATCHES
            if length and (found := speed.find_speed_up(kind, length, batch)) is not None
        }
        for arm, length in (("B", chosen), ("A", longest))
    }
    title = f"{kind}, k = {chosen}" + (f" and {longest}" if longest != chosen else "")
    mark = own[0].mean_batch if own else None
    axes = _make_axes(lines["B"] | lines["A"], 1.0, mark, "times")
    return draw_panel(title, title, lines, replace(axes, logarithmic=True))


def _draw_counts(sizing: Sizing) -> list[str]:
    panels: list[str] = []
    for place, limit in enumerate(sizing.goal.limits if sizing.by_count else ()):
        factor, unit = (1000, "ms") if limit.seconds < 1 else (1, "s")
        times = {
            one.replicas: [factor * seconds]
            for one in sizing.by_count
            if (seconds := one.seconds[place]) is not None and seconds < MOST_OVER * limit.seconds
        }
        axes = _make_axes(
            times, factor * limit.seconds, sizing.best.replicas if sizing.best else None, unit
        )
        title = f"{limit}, by replicas"
        panels.append(draw_panel(title, title, {"B": times}, axes))
    return panels


def _make_axes(points: Points, limit: float, mark: float | None, unit: str) -> Axes:
    top = round_up(max([limit, *(value for values in points.values() for value in values)]))
    return Axes(sorted(points), top, "{:.2f}".format, f"{top:g} {unit}", limit=limit, mark=mark)


def _draw_day(sizing: Sizing) -> str:
    rate = sizing.demand.requests_per_second
    hours = {hour: [share * rate] for hour, share in enumerate(sizing.demand.hours)}
    top = round_up(max(value for (value,) in hours.values()))
    axes = Axes(sorted(hours), top, "{:g}".format, f"{top:g} per second")
    return draw_panel("hour of the day", "requests per second by hour", {"B": hours}, axes)
