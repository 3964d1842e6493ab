"""A `Sizing` as a page with pictures, and as Markdown."""

from collections.abc import Mapping, Sequence

from slipstream.reporting.drawing import Scale, draw, frame, round_up, rule, shorten, write
from slipstream.reporting.html_page import Figure, render_page
from slipstream.reporting.report import render_markdown
from slipstream.reporting.text.sizing import describe_sizing, show_interval
from slipstream.sizing.arithmetic import PoolLoad
from slipstream.sizing.sizing import SizeOption, Sizing

BATCHES = (1, 2, 4, 8, 16, 32, 64)
COUNTS = (0.6, 0.75, 0.9, 1.0, 1.15, 1.3, 1.6, 2.0)
BARS = 150.0
MOST_OVER = 3

Path = list[tuple[float, float]]


def render_sizing_markdown(sizing: Sizing) -> str:
    """Write what was found as Markdown."""
    return render_markdown(describe_sizing(sizing))


def render_sizing_html(sizing: Sizing) -> str:
    """Write what was found as one page."""
    figures = [
        Figure(
            "replicas by style",
            "The bar is the count that holds the goal, the line what the error of the engine's "
            "speed leaves open.",
            [_draw_options(sizing.options)] if sizing.options else [],
            layout="broad",
        ),
        Figure(
            "speed-up by drafts, by the sequences of a step",
            "Solid with the drafts that were chosen, dashed with the longest. Below 1 a plain "
            "engine is faster.",
            [_draw_break_even(sizing, kind) for kind in _list_drafted_kinds(sizing)],
        ),
        Figure(
            "the goal by the number of replicas, by the arithmetic",
            "Of the chosen style; the horizontal line is the goal, the vertical one the answer.",
            _draw_counts(sizing),
        ),
        Figure(
            "the day",
            "Requests per second by the hour.",
            [_draw_day(sizing)] if sizing.demand.hours else [],
            layout="broad",
        ),
    ]
    return render_page(describe_sizing(sizing), figures)


def _draw_options(options: Sequence[SizeOption]) -> str:
    ends = [option.high or option.replicas for option in options]
    # An interval without a reasonable end is cut off.
    top = round_up(1.5 * max(option.replicas for option in options))
    x = Scale(0, top, 70, 70 + BARS)
    parts: list[str] = []
    for number, option in enumerate(options):
        middle = 24 + 30 * number
        low, high = min(option.low, option.replicas), max(ends[number], option.replicas)
        arm = "a" if option.style == "plain" else "b"
        parts += [
            write(0, middle + 4, option.style, "strong"),
            rule(x(0), middle - 6, x(option.replicas), middle - 6, f"line {arm}"),
            rule(x(0), middle + 6, x(option.replicas), middle + 6, f"line {arm}"),
            rule(x(option.replicas), middle - 6, x(option.replicas), middle + 6, f"line {arm}"),
            rule(x(low), middle, x.clip(high), middle, f"tick {arm}"),
            write(280, middle + 4, str(option.replicas), "strong", "end"),
            write(360, middle + 4, show_interval(option), "soft", "end"),
        ]
    description = "; ".join(f"{one.style} {one.replicas} ({show_interval(one)})" for one in options)
    parts.append(rule(x(0), 8, x(0), 14 + 30 * len(options), "axis"))
    return frame(360, 20 + 30 * len(options), "replicas by style", description, *parts)


def _list_drafted_kinds(sizing: Sizing) -> list[str]:
    """List the kinds whose drafts are known."""
    known = {one.kind for one in sizing.speed.yields}
    return [kind.kind for kind in sizing.demand.kinds if kind.kind in known]


def _draw_break_even(sizing: Sizing, kind: str) -> str:
    speed, best = sizing.speed, sizing.best
    own = [pool.draft_length for pool in best.pools if kind in pool.kinds] if best else []
    longest = max(speed.lengths, default=0)
    chosen = next((length for length in own if length), longest)
    lines: dict[str, dict[int, float]] = {}
    for arm, length in (("b", chosen), ("a", longest)):
        if length and speed.plain is not None:
            cost, tokens = speed.find_cost(length), speed.count_tokens_per_step(kind, length)
            lines[arm] = {
                batch: tokens * speed.plain.predict(batch, 0) / cost.predict(batch, length)
                for batch in BATCHES
            }
    note = f"k = {chosen} and {longest}"
    return _draw_lines(kind, "speed-up", note, lines, logarithmic=True, limit=1.0)


def _draw_counts(sizing: Sizing) -> list[str]:
    best = sizing.best
    if best is None or len(best.pools) > 1:
        return []
    pool = best.pools[0]
    panels: list[str] = []
    for limit in sizing.goal.limits:
        times: dict[int, float] = {}
        for share in COUNTS:
            replicas = max(1, round(best.replicas * share))
            load = PoolLoad(sizing.speed, pool.draft_length, sizing.demand, replicas)
            time = load.find_time(limit.figure, limit.share)
            if time < MOST_OVER * limit.seconds:
                times[replicas] = 1000 * time
        panels.append(
            _draw_lines(
                str(limit),
                "milliseconds",
                "replicas",
                {"b": times},
                mark=best.replicas,
                limit=1000 * limit.seconds,
            )
        )
    return panels


def _draw_lines(
    title: str,
    what: str,
    note: str,
    lines: Mapping[str, Mapping[int, float]],
    *,
    logarithmic: bool = False,
    mark: int | None = None,
    limit: float | None = None,
) -> str:
    places = sorted({place for line in lines.values() for place in line})
    if not places:
        return frame(230, 142, title, "unknown", write(0, 12, title, "strong"))
    values = [value for line in lines.values() for value in line.values()]
    top = round_up(max([*values, *([limit] if limit else [])]))
    x = Scale(places[0], places[-1], 14, 190, logarithmic)
    y = Scale(0, top, 122, 34)
    parts = [
        write(0, 12, shorten(title, 150), "strong"),
        write(230, 12, note, "soft", "end"),
        write(0, y(top) - 4, f"{top:g}", "soft"),
        *(rule(0, y(top * part), 204, y(top * part), "grid") for part in (0.5, 1)),
        rule(0, y(0), 204, y(0), "axis"),
    ]
    last = -100.0
    for place in places:
        if x(place) - last > 20:
            parts.append(write(x(place), 138, str(place), "soft", "middle"))
            last = x(place)
    if limit is not None:
        parts.append(rule(0, y(limit), 204, y(limit), "one"))
    if mark is not None:
        parts.append(rule(x(mark), y(0), x(mark), y(top), "one"))
    for arm, line in lines.items():
        path = [(x(place), y.clip(value)) for place, value in sorted(line.items())]
        parts.append(draw("path", d=_join(path), kind=f"line {arm}"))
    description = "; ".join(
        f"{'solid' if arm == 'b' else 'dashed'}: "
        + ", ".join(f"{place} {value:.2f}" for place, value in sorted(line.items()))
        for arm, line in lines.items()
    )
    return frame(230, 142, f"{title}: {what}", description, *parts)


def _draw_day(sizing: Sizing) -> str:
    rates = [share * sizing.demand.requests_per_second for share in sizing.demand.hours]
    top = round_up(max(rates))
    x, y = Scale(0, len(rates), 30, 345), Scale(0, top, 130, 20)
    path: Path = []
    for hour, rate in enumerate(rates):
        path += [(x(hour), y(rate)), (x(hour + 1), y(rate))]
    parts = [
        *(rule(30, y(top * part), 350, y(top * part), "grid") for part in (0.5, 1)),
        *(write(24, y(top * part) + 4, f"{top * part:g}", "soft", "end") for part in (0.5, 1)),
        rule(30, y(0), 350, y(0), "axis"),
        *(write(x(hour), 146, str(hour), "soft", "middle") for hour in range(0, len(rates), 6)),
        draw("path", d=_join(path), kind="line b"),
    ]
    return frame(360, 152, "requests per second by the hour", f"at most {max(rates):g}", *parts)


def _join(places: Path) -> str:
    return "M" + "L".join(f"{across:.1f} {down:.1f}" for across, down in places)
