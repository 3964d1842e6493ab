"""The charts: speed-ups with their intervals, and lines of both arms in small panels."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from slipstream.measuring.bench import BenchCell
from slipstream.measuring.comparing.blocks import Arm
from slipstream.measuring.comparing.verdict import SpeedFinding, SpeedRatio
from slipstream.reporting.drawing import (
    CLOSE,
    Axes,
    Points,
    Scale,
    draw,
    draw_panel,
    frame,
    round_up,
    rule,
    shorten,
    write,
)
from slipstream.reporting.html_page import Figure
from slipstream.reporting.measuring.sides import (
    Side,
    has_tasks,
    list_concurrencies,
    list_kinds,
    list_turns,
    read_first_token,
    read_first_token_ms,
    read_per_token,
    read_tokens_per_step,
    read_turn,
)
from slipstream.reporting.report import show

# Those come first that are to stay where there is no room for all.
TICKS = (0.5, 2.0, 0.25, 4.0, 0.7, 1.4, 0.1, 8.0, 16.0, 3.0, 0.8, 1.2, 0.9, 1.1, 1.6, 0.6, 1.8)
ROW = 26.0
MOST_NOTED = 2

_MARKS: Mapping[str, str] = {
    "faster": "M-5 -5L5 0L-5 5Z",
    "slower": "M5 -5L-5 0L5 5Z",
    "even": "M-4 -4H4V4H-4Z",
    "unclear": "M-4 0A4 4 0 1 0 4 0A4 4 0 1 0 -4 0Z",
}


def show_estimate(estimate: SpeedRatio) -> str:
    return f"{estimate.ratio:.2f} ({estimate.low:.2f} to {estimate.high:.2f})"


def show_load(concurrency: int) -> str:
    return f"concurrency {concurrency}"


@dataclass(frozen=True, slots=True)
class ForestRow:
    """A ratio with its interval, or a heading; `description` names it in the description."""

    label: str
    concurrency: int
    found: SpeedFinding | None
    heading: bool = False
    description: str = ""


def draw_forests(rows: Sequence[ForestRow]) -> list[str]:
    """Draw a panel for each concurrency; all have the same axis."""
    findings = [row.found for row in rows if row.found is not None]
    ends = [end for found in findings for end in (found.speed_up.low, found.speed_up.high)]
    floors = [floor for found in findings for floor in (found.noise, 1 / found.noise)]
    x = Scale(
        max(0.05, min(*ends, *floors, 0.9)), min(20.0, max(*ends, *floors, 1.1)), 96, 234, True
    )
    return [
        _draw_forest(at, [row for row in rows if row.concurrency == at], x)
        for at in sorted({row.concurrency for row in rows})
    ]


def _draw_forest(concurrency: int, rows: Sequence[ForestRow], x: Scale) -> str:
    bottom = 30 + ROW * len(rows)
    title = f"Speed-up, {show_load(concurrency)}"
    description = "; ".join(
        f"{row.description or row.label} {show_estimate(row.found.speed_up)}, {row.found.outcome}"
        for row in rows
        if row.found
    )
    placed = [(row, 30 + ROW * number) for number, row in enumerate(rows)]
    parts = [
        write(0, 14, show_load(concurrency), "strong"),
        write(360, 14, "95 % interval", "soft", "end"),
    ]
    for row, top in placed:
        if row.found:
            left, right = x.clip(1 / row.found.noise), x.clip(row.found.noise)
            band = {"x": left, "y": top + 3, "width": right - left, "height": ROW - 6}
            parts.append(draw("rect", **band, kind="band"))
    for tick in _choose_ticks(x):
        parts.append(rule(x(tick), 26, x(tick), bottom, "one" if tick == 1 else "grid"))
        parts.append(write(x(tick), bottom + 15, f"{tick:g}", "soft", "middle"))
    parts += [_draw_row(row, top + ROW / 2, x) for row, top in placed]
    return frame(360, bottom + 20, title, description, *parts)


def _choose_ticks(x: Scale) -> list[float]:
    chosen = [1.0]
    for tick in TICKS:
        apart = min(abs(x(tick) - x(other)) for other in chosen)
        if x.low <= tick <= x.high and apart > 2 * CLOSE:
            chosen.append(tick)
    return chosen


def _draw_row(row: ForestRow, middle: float, x: Scale) -> str:
    label = write(0, middle + 4, shorten(row.label, 92), "strong" if row.heading else "")
    if (found := row.found) is None:
        return label
    ratio, low, high = found.speed_up.ratio, found.speed_up.low, found.speed_up.high
    mark = f"outcome {found.outcome}"
    place = f"translate({x.clip(ratio):.1f} {middle:.1f})"
    interval = f"{low:.2f} \N{EN DASH} {high:.2f}"
    return draw(
        "g",
        draw("title", f"{100 * (found.noise - 1):.1f} % noise, {found.prompts} prompts"),
        label,
        rule(x.clip(low), middle, x.clip(high), middle, mark),
        draw("path", d=_MARKS[found.outcome], transform=place, kind=mark),
        write(272, middle + 4, f"{ratio:.2f}", "strong", "end"),
        write(360, middle + 4, interval, "soft", "end"),
    )


def draw_by_concurrency(
    sides: Sequence[Side], what: str, read: Callable[[BenchCell], float | None]
) -> list[str]:
    """Draw a figure of every cell against concurrency, a panel a kind."""
    panels = {
        kind: {side.arm: _read_points(side.find(kind), read) for side in sides}
        for kind in list_kinds(sides)
    }
    top = _find_top([points for lines in panels.values() for points in lines.values()])
    decimals = 0 if top > 100 else 1
    axes = Axes(
        list_concurrencies(sides), top, lambda value: f"{value:.{decimals}f}", logarithmic=True
    )
    return [
        draw_panel(what if len(panels) == 1 else kind, f"{kind}: {what}", lines, axes)
        for kind, lines in panels.items()
    ]


def _find_top(lines: Iterable[Points]) -> float:
    values = (value for points in lines for own in points.values() for value in own)
    return round_up(max(values, default=0.0))


def _read_points(
    cells: Sequence[BenchCell], read: Callable[[BenchCell], float | None]
) -> dict[int, list[float]]:
    points: dict[int, list[float]] = {}
    for cell in cells:
        if (value := read(cell)) is not None:
            points.setdefault(cell.concurrency, []).append(value)
    return points


def draw_acceptance(sides: Sequence[Side]) -> list[str]:
    """Draw the share of drafts accepted up to each position, a panel a kind."""
    longest = max((len(cell.by_position) for side in sides for cell in side.find(None)), default=0)
    places = range(1, longest + 1)
    axes = Axes(places, 1.0, lambda share: f"{100 * share:.0f} %", "100 %", at_first=True)
    panels = []
    for kind in list_kinds(sides) if longest else ():
        lines = {side.arm: _read_positions(side.find(kind), longest) for side in sides}
        steps = [side.average(read_tokens_per_step, kind) for side in sides]
        few = len(sides) <= MOST_NOTED
        note = f"{' and '.join(show(step, 2) for step in steps)} tokens per step" if few else ""
        panels.append(draw_panel(kind, f"{kind}: accepted up to each position", lines, axes, note))
    return panels


def draw_turns(sides: Sequence[Side]) -> list[str]:
    """Draw the time to the first token turn by turn, a panel a kind and concurrency."""
    panels = []
    for kind in list_kinds(sides) if has_tasks(sides) else ():
        turns = list_turns(sides, kind)
        for concurrency in list_concurrencies(sides) if turns else ():
            lines: dict[Arm, Points] = {
                side.arm: {
                    turn: values
                    for turn in turns
                    if (values := read_turn(side, kind, concurrency, turn, read_first_token_ms))
                }
                for side in sides
            }
            axes = Axes(turns, _find_top(lines.values()), lambda value: f"{value:.0f}")
            note = show_load(concurrency)
            panels.append(draw_panel(kind, f"{kind}: first token, {note}", lines, axes, note))
    return panels


def _read_positions(cells: Sequence[BenchCell], longest: int) -> dict[int, list[float]]:
    """Return the mean of the cells; one whose drafts were shorter accepted nothing beyond them."""
    rows = [(*cell.by_position, *[0.0] * longest) for cell in cells if cell.by_position]
    return {at + 1: [fmean(row[at] for row in rows)] for at in range(longest) if rows}


def draw_loads(sides: Sequence[Side]) -> list[Figure]:
    """Draw throughput, latency and acceptance, and of tasks the first tokens turn by turn."""
    ticks = "." if len(sides) == 1 else "; a tick is one start."
    drafting = [side for side in sides if side.drafts]
    key = [side.key for side in sides]
    places = f"By concurrency{ticks}"
    drawn = (
        ("throughput, tokens/s", places, lambda cell: cell.tokens_per_second),
        ("time per token, ms", f"The median request{ticks}", read_per_token),
        ("time to the first token, ms", f"The median request{ticks}", read_first_token),
    )
    figures = [
        Figure(title, caption, draw_by_concurrency(sides, title, read), key)
        for title, caption, read in drawn
    ]
    if len(list_kinds(sides)) == 1:
        panels = [panel for figure in figures for panel in figure.panels]
        figures = [Figure("throughput and the median latencies", places, panels, key)]
    by_turn = (
        "The median over a kind's tasks. The conversation grows from turn to turn; a server whose "
        "prefix cache holds the earlier turns reads only what is new."
    )
    accepted = "The share of drafts whose tokens were accepted up to the first, second, ... one."
    return [
        Figure("time to the first token by turn, ms", by_turn, draw_turns(sides), key),
        *figures,
        Figure(
            "acceptance by position",
            accepted,
            draw_acceptance(drafting),
            [side.key for side in drafting],
        ),
    ]
