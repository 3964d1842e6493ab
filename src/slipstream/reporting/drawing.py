"""SVG elements, text, scales, and small panels of lines. Colours are by class (page.css)."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import floor, log, log10
from statistics import fmean

from slipstream.reporting.report import clean, find_mean
from slipstream.units import UNKNOWN

TEXT_WIDTH = 6.6
PANEL_WIDTH = 230.0
CLOSE, APART = 13.0, 18.0
DOT = 3.4
_STEPS = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9, 10)


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values to positions; a range of one value maps to its middle."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        """Return the place of a value."""
        low, high, at = (
            (log(part) if self.logarithmic else part) for part in (self.low, self.high, value)
        )
        if low == high:
            return (self.start + self.end) / 2
        return self.start + (at - low) / (high - low) * (self.end - self.start)

    def clip(self, value: float) -> float:
        """Return the place of a value, or the nearer end if it lies beyond."""
        return self(min(max(value, self.low), self.high))


def draw(name: str, /, *parts: str, **attributes: str | float) -> str:
    """Return an element; `kind` is its class, an underscore in a name a hyphen."""
    rendered = "".join(
        f' {"class" if key == "kind" else key.replace("_", "-")}="{_show(value)}"'
        for key, value in attributes.items()
    )
    return f"<{name}{rendered}>{''.join(parts)}</{name}>" if parts else f"<{name}{rendered}/>"


def write(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    return draw("text", protect(text), x=x, y=y, kind=kind, text_anchor=anchor)


def rule(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return draw("line", x1=x1, y1=y1, x2=x2, y2=y2, kind=kind)


def frame(width: float, height: float, title: str, description: str, *parts: str) -> str:
    """Return a drawing that fits any width, with a text description."""
    labels = (draw("title", protect(title)), draw("desc", protect(description)))
    return draw("svg", *labels, *parts, viewBox=f"0 0 {width:g} {height:g}", role="img")


def protect(text: str) -> str:
    """Escape text for use between tags and in attributes."""
    return escape(clean(text))


def join(places: Iterable[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{across:.1f} {down:.1f}" for across, down in places)


def shorten(text: str, width: float) -> str:
    """Cut text to about the given width."""
    most = int(width / TEXT_WIDTH)
    return text if len(text) <= most else f"{text[: most - 1]}\N{HORIZONTAL ELLIPSIS}"


def round_up(value: float) -> float:
    """Return the next figure that is good for an axis."""
    if value <= 0:
        return 1.0
    power: float = 10.0 ** floor(log10(value))
    return next(step * power for step in _STEPS if step * power >= value * 0.999)


def _show(value: str | float) -> str:
    return protect(value) if isinstance(value, str) else f"{value:.1f}".removesuffix(".0")


Points = Mapping[int, Sequence[float]]
"""Values by their place on the axis, one of each start."""


@dataclass(frozen=True, slots=True)
class Axes:
    """The axes that the panels of a row share; values are written at the first or last place.

    `limit` is a horizontal line, `mark` a vertical one.
    """

    places: Sequence[int]
    top: float
    show: Callable[[float], str]
    label: str = ""
    logarithmic: bool = False
    at_first: bool = False
    limit: float | None = None
    mark: float | None = None


def draw_panel(
    heading: str, title: str, lines: Mapping[str, Points], axes: Axes, note: str = ""
) -> str:
    """Draw each arm's mean as a line that ends in its last value, and each start as a tick."""
    if not axes.places:
        return frame_panel(title, UNKNOWN, write(0, 12, heading, "strong"))
    x, y = make_scales(axes.places, axes.top, logarithmic=axes.logarithmic)
    parts = draw_axes(heading, axes.label or f"{axes.top:g}", axes.places, x, y, note)
    if axes.limit is not None:
        parts.append(rule(0, y(axes.limit), x.end + 14, y(axes.limit), "one"))
    if axes.mark is not None:
        parts.append(rule(x.clip(axes.mark), y.start, x.clip(axes.mark), y.end, "one"))
    ends: list[tuple[float, str, str]] = []
    description: list[str] = []
    for arm, points in lines.items():
        means = {at: find_mean(points[at]) or 0.0 for at in sorted(points)}
        if means:
            parts.append(_draw_line(arm.lower(), points, means, x, y))
            last = means[min(means) if axes.at_first else max(means)]
            ends.append((y(last), axes.show(last), arm.lower()))
            values = ", ".join(f"{at} {axes.show(mean)}" for at, mean in means.items())
            description.append(f"{arm}: {values}")
    aside = x.start + 8 if axes.at_first and len(ends) == 1 else 186
    parts += [write(aside, place, text, f"value {kind}") for place, text, kind in _spread(ends)]
    if not ends:
        parts.append(write(91, 80, UNKNOWN, "soft", "middle"))
    return frame_panel(title, "; ".join(description) or UNKNOWN, *parts)


def frame_panel(title: str, description: str, *parts: str) -> str:
    return frame(PANEL_WIDTH, 142, title, description, *parts)


def make_scales(
    places: Sequence[float], top: float, right: float = 168, *, logarithmic: bool = False
) -> tuple[Scale, Scale]:
    """Return the scales of a panel whose highest figure is `top`."""
    return Scale(places[0], places[-1], 14, right, logarithmic), Scale(0, top, 122, 34)


def draw_axes(
    heading: str, label: str, places: Iterable[float], x: Scale, y: Scale, note: str = ""
) -> list[str]:
    """Draw a panel's heading, the grid with its highest figure, and the places that fit."""
    parts = [
        write(0, 12, shorten(heading, 210 - TEXT_WIDTH * len(note)), "strong"),
        write(PANEL_WIDTH, 12, note, "soft", "end"),
        write(0, y.end - 4, label, "soft"),
        *draw_grid(y, 0, x.end + 14),
    ]
    last = -100.0
    for place in places:
        if x(place) - last > APART:
            parts.append(write(x(place), y.start + 15, f"{place:g}", "soft", "middle"))
            last = x(place)
    return parts


def draw_grid(y: Scale, left: float, right: float, *, figures: bool = False) -> list[str]:
    """Draw the axis, and a line at the half and the whole of it, if asked with their figures."""
    heights = [(y.high * part, y(y.high * part)) for part in (0.5, 1)]
    parts = [rule(left, height, right, height, "grid") for _, height in heights]
    if figures:
        parts += [write(left - 6, at + 4, f"{value:g}", "soft", "end") for value, at in heights]
    return [*parts, rule(left, y(0), right, y(0), "axis")]


def _draw_line(kind: str, points: Points, means: Mapping[int, float], x: Scale, y: Scale) -> str:
    places = [(x(at), y.clip(mean)) for at, mean in means.items()]
    ticks = [
        rule(x(at) - 6, y(value), x(at) + 6, y(value), f"tick {kind}")
        for at, values in points.items()
        if len(values) > 1
        for value in values
    ]
    size = DOT if len(means) <= 8 else DOT - 1
    dots = [draw("circle", cx=at, cy=height, r=size, kind=f"dot {kind}") for at, height in places]
    return draw("g", draw("path", d=join(places), kind=f"line {kind}"), *ticks, *dots)


def _spread(ends: Sequence[tuple[float, str, str]]) -> list[tuple[float, str, str]]:
    """Place labels beside the line ends, moved apart where they would overlap."""
    placed = [[end] for end in sorted(ends)]
    while True:
        tops = [
            fmean(place for place, _, _ in group) - CLOSE * (len(group) - 1) / 2 for group in placed
        ]
        for at in range(len(placed) - 1):
            if tops[at + 1] - tops[at] < CLOSE * len(placed[at]):
                placed[at : at + 2] = [placed[at] + placed[at + 1]]
                break
        else:
            return [
                (top + 4 + CLOSE * row, text, kind)
                for top, group in zip(tops, placed, strict=True)
                for row, (_, text, kind) in enumerate(group)
            ]
