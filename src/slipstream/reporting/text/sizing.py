"""A `Sizing` as a report: how many replicas, at what cost, and the arithmetic behind it."""

from collections.abc import Sequence

from slipstream.reporting.report import Report, Row, Section, Table, render_text
from slipstream.sizing.arithmetic import PoolLoad
from slipstream.sizing.money import MachinePrice
from slipstream.sizing.served_figures import TimeQuantiles
from slipstream.sizing.sizing import Outage, PoolSize, SizeOption, Sizing
from slipstream.units import UNKNOWN

SHOWN_LENGTHS = (1, 2, 3, 5, 7, 10, 15)


def render_sizing_text(sizing: Sizing) -> str:
    """Write what was found for the terminal."""
    return render_text(describe_sizing(sizing))


def describe_sizing(sizing: Sizing) -> Report:
    """Return the report: the count, the options, and what they are based on."""
    best = sizing.best
    demand = sizing.demand
    load = f"{demand.requests_per_second:.4g} requests per second, {sizing.goal}"
    if best is None or best.holds is False:
        why = "; ".join(sizing.missed) or "not by the simulation"
        return Report(
            title="fleet size",
            answer="failed",
            figure="none",
            interval="",
            figure_note=load,
            sentence=f"No fleet that was tried holds {sizing.goal} for {load}: {why}.",
            sections=_list_sections(sizing),
        )
    return Report(
        title="fleet size",
        answer="sized",
        figure=str(best.replicas),
        interval=f"{show_interval(best)} replicas",
        figure_note=load,
        sentence=_make_sentence(sizing, best),
        sections=_list_sections(sizing),
    )


def show_interval(option: SizeOption) -> str:
    """Write the counts that the speed's error leaves open."""
    high = "more" if option.high is None else str(max(option.high, option.replicas))
    return f"{min(option.low, option.replicas)} to {high}"


def _make_sentence(sizing: Sizing, best: SizeOption) -> str:
    parts = [
        f"{_count_replicas(best)} ({_name_pools(best.pools)}) {_verb(best)} {sizing.goal} for "
        f"{sizing.demand.requests_per_second:.4g} requests per second; "
        f"{show_interval(best)} by the error of what is known of the engine's speed."
    ]
    plain = next((one for one in sizing.options if one.style == "plain"), None)
    if best.style != "plain" and plain is not None:
        parts.append(
            f"Without speculation it takes {plain.replicas}: "
            f"{plain.replicas / best.replicas:.2f} times as many."
        )
    elif best.style != "plain" and sizing.missed:
        parts.append(f"Without speculation {sizing.missed[-1].partition(': ')[2]}.")
    if sizing.outage is not None and not sizing.outage.holds:
        held = "it is held" if sizing.outage.spares_hold else "it still is"
        parts.append(
            f"With one of them gone the goal is missed; with {sizing.outage.spares} more {held}."
        )
    if best.cost_per_million is not None:
        parts.append(f"A million tokens cost {sizing.price.show(best.cost_per_million)}.")
    return " ".join(parts)


def _count_replicas(option: SizeOption) -> str:
    return f"{option.replicas} {option.style} replica{'s' * (option.replicas > 1)}"


def _verb(option: SizeOption) -> str:
    return "hold" if option.replicas > 1 else "holds"


def _name_pools(pools: Sequence[PoolSize]) -> str:
    if len(pools) == 1:
        return _name_length(pools[0].draft_length)
    return ", ".join(
        f"{pool.replicas} for {', '.join(pool.kinds)}: {_name_length(pool.draft_length)}"
        for pool in pools
    )


def _name_length(length: int) -> str:
    return f"k = {length}" if length else "no drafts"


def _list_sections(sizing: Sizing) -> list[Section]:
    sections = [
        Section("options", _tabulate_options(sizing), lines=sizing.missed),
        Section("simulated times", _tabulate_times(sizing)),
        Section("demand in the busiest hour", _tabulate_demand(sizing)),
        *_describe_outage(sizing.outage),
        *_describe_day(sizing),
        Section(
            "where speculation stops paying",
            _tabulate_break_even(sizing),
            lines=["sequences per step from which drafts of a length cost more than they bring"]
            if sizing.break_even
            else (),
        ),
        Section("one replica", _tabulate_speed(sizing), lines=sizing.cautions),
        Section("arithmetic", lines=list_arithmetic(sizing)),
        Section("cost", lines=_describe_cost(sizing)),
    ]
    return [one for one in sections if one.lines or (one.table and one.table.rows)]


def _tabulate_options(sizing: Sizing) -> Table:
    rows: list[Row] = []
    for option in sizing.options:
        load = ", ".join(f"{pool.mean_batch:.1f}" for pool in option.pools)
        cost = "" if sizing.price.hourly is None else sizing.price.show(option.cost_per_million)
        held = "" if option.holds is None else "yes" if option.holds else "no"
        rows.append(
            (
                option.style,
                _name_pools(option.pools),
                str(option.replicas),
                show_interval(option),
                load,
                held,
                cost,
            )
        )
    return Table(
        ("style", "drafts", "replicas", "95 %", "mean batch", "simulated: holds", "per million"),
        rows,
        (0, 1),
    )


def _tabulate_times(sizing: Sizing) -> Table:
    rows: list[Row] = []
    for option in sizing.options:
        if (found := option.simulated) is not None:
            rows += [
                (option.style, "first token, s", *_show_times(found.ttft, 1, 2)),
                (option.style, "per token, ms", *_show_times(found.tpot, 1000, 1)),
            ]
    return Table(("style", "time", "p50", "p90", "p95", "p99"), rows, (0, 1))


def _show_times(times: TimeQuantiles, factor: float, decimals: int) -> Row:
    values = (times.p50, times.p90, times.p95, times.p99)
    return tuple(UNKNOWN if value is None else f"{factor * value:.{decimals}f}" for value in values)


def _tabulate_demand(sizing: Sizing) -> Table:
    rows = [
        (
            kind.kind,
            f"{kind.requests_per_second:.4g}",
            str(kind.prompt_tokens),
            f"{kind.cached_share:.0%}",
            str(kind.output_tokens),
        )
        for kind in sizing.demand.kinds
    ]
    return Table(("kind", "requests per second", "prompt tokens", "cached", "answer tokens"), rows)


def _describe_outage(outage: Outage | None) -> list[Section]:
    if outage is None:
        return []
    away = "for good" if outage.seconds is None else f"for {outage.seconds:.0f} s"
    rows: list[Row] = []
    for replicas, figures, holds in (
        (outage.replicas, outage.figures, outage.holds),
        (outage.replicas + outage.spares, outage.with_spares, outage.spares_hold),
    ):
        rows.append(
            (
                str(replicas),
                _show_times(figures.ttft, 1, 2)[2],
                _show_times(figures.tpot, 1000, 1)[2],
                str(figures.lost),
                "yes" if holds else "no",
            )
        )
    table = Table(
        ("replicas", "first token p95, s", "per token p95, ms", "answers cut off", "holds"), rows
    )
    lines = [
        "requests that arrive while it is away; those without a token yet are asked again elsewhere"
    ]
    return [Section(f"one replica fails {away}", table, lines=lines)]


def _describe_day(sizing: Sizing) -> list[Section]:
    if (day := sizing.day) is None:
        return []
    rows: list[Row] = []
    for name, one, cost in (
        ("one size", day.fixed, day.fixed_cost),
        ("scaled", day.scaled, day.scaled_cost),
    ):
        rows.append(
            (
                name,
                f"{one.fewest_replicas} to {one.most_replicas}",
                f"{one.machine_hours:.0f}",
                _show_times(one.ttft, 1, 2)[2],
                _show_times(one.tpot, 1000, 1)[2],
                _show_cost(sizing.price, cost),
            )
        )
    header = (
        *("fleet", "replicas", "machine hours"),
        *("first token p95, s", "per token p95, ms", "per million"),
    )
    lines = [
        f"{day.fixed.requests} requests; a replica serves {day.start_seconds:.0f} s after it "
        "was asked for"
    ]
    return [Section("a day", Table(header, rows), lines=lines)]


def _show_cost(price: MachinePrice, cost: float | None) -> str:
    return "" if price.hourly is None else price.show(cost)


def _tabulate_break_even(sizing: Sizing) -> Table:
    lengths = sorted({one.draft_length for one in sizing.break_even})
    shown = [length for length in lengths if length in SHOWN_LENGTHS or length == lengths[-1]]
    cells = {(one.kind, one.draft_length): one for one in sizing.break_even}
    rows = [
        (kind, *(_show_break_even(cells[kind, length].sequences) for length in shown))
        for kind in sorted({one.kind for one in sizing.break_even})
    ]
    return Table(("kind", *(f"k = {length}" for length in shown)), rows)


def _show_break_even(sequences: float | None) -> str:
    return "never" if sequences is None else f"{sequences:.0f}"


def _tabulate_speed(sizing: Sizing) -> Table:
    speed = sizing.speed
    rows: list[Row] = [("source", speed.source)]
    for name, cost in (("step with drafts", speed.drafting), ("plain step", speed.plain)):
        if cost is not None:
            rows.append(
                (
                    name,
                    f"{1000 * cost.fixed:.2f} ms + {1000 * cost.by_sequence:.3f} ms per sequence + "
                    f"{1000 * cost.by_token:.3f} ms per verified token",
                )
            )
    rows += [
        ("prompts", f"{1 / speed.by_prompt_token:.0f} tokens per second, {speed.prompt_source}")
        if speed.by_prompt_token
        else ("prompts", f"free, {speed.prompt_source}"),
        ("most sequences", str(speed.max_sequences)),
        ("interval", f"within {speed.error:.0%} (95 %)"),
        ("routing", sizing.routing),
        ("start", UNKNOWN if speed.start_seconds is None else f"{speed.start_seconds:.0f} s"),
    ]
    return Table((), rows, (0, 1))


def list_arithmetic(sizing: Sizing) -> list[str]:
    """Write the arithmetic of the best option, pool by pool, with its figures."""
    lines: list[str] = []
    for pool in sizing.best.pools if sizing.best else ():
        lines += _work_out(sizing, pool)
    return lines


def _work_out(sizing: Sizing, pool: PoolSize) -> list[str]:
    speed, length, batch = sizing.speed, pool.draft_length, pool.mean_batch
    kinds = tuple(kind for kind in sizing.demand.kinds if kind.kind in pool.kinds)
    demand = sizing.demand.model_copy(update={"kinds": kinds})
    load = PoolLoad(speed, length, demand, pool.replicas)
    cost = speed.find_cost(length)
    step = cost.predict(batch, length)
    tokens = ", ".join(
        f"{kind.kind} {speed.count_tokens_per_step(kind.kind, length):.2f}" for kind in kinds
    )
    return [
        f"{', '.join(pool.kinds)}: {_name_length(length)}, tokens per step: {tokens}",
        f"steps per request: {load.steps:.1f}; a step of {batch:.1f} sequences takes "
        f"{1000 * cost.fixed:.1f} + {batch:.1f} x {1000 * cost.marginal(length):.2f} = "
        f"{1000 * step:.1f} ms",
        f"each of {pool.replicas} replicas gets {load.arrivals:.3f} requests per second; "
        f"their prompts take {load.prompt_share:.1%} of its time",
        f"sequences in a replica: {load.arrivals:.3f} x {load.steps:.1f} x {1000 * step:.1f} ms / "
        f"{1 - load.prompt_share:.3f} = "
        f"{load.arrivals * load.steps * step / (1 - load.prompt_share):.1f}, and "
        f"{batch:.1f} with the chance of bursts",
        f"it is {pool.busy_share:.0%} of the largest load that does not queue without end",
    ]


def _describe_cost(sizing: Sizing) -> list[str]:
    price, best = sizing.price, sizing.best
    if price.hourly is None:
        return ["unknown: give --price, or --machine-price, --years, --watts and --energy-price"]
    tokens = sizing.demand.tokens_per_second * sizing.demand.mean_share * 3600
    lines = [f"{price.show(price.hourly)} per machine and hour, as given"]
    if best is not None:
        lines.append(
            f"{best.replicas} machines make {tokens / 1e6:.2f} million tokens per hour on the "
            f"day's mean: {price.show(best.cost_per_million)} per million"
        )
    return lines
