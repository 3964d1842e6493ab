"""Small panels with lines over a few places, for speeds by length, batch or number of replicas."""

from collections.abc import Iterable, Mapping, Sequence

from slipstream.reporting.drawing import (
    Scale,
    draw,
    frame,
    round_up,
    rule,
    shorten,
    write,
)

Path = Sequence[tuple[float, float]]
RIGHT, BASE, HEIGHT = 204.0, 122.0, 142.0
_APART = 20.0


def join(places: Path) -> str:
    """Return the path through places."""
    return "M" + "L".join(f"{across:.1f} {down:.1f}" for across, down in places)


def make_scales(
    places: Sequence[float], top: float, *, logarithmic: bool = False
) -> tuple[Scale, Scale]:
    """Return the scales of a panel whose highest figure is `top`."""
    return Scale(places[0], places[-1], 14, 190, logarithmic), Scale(0, top, BASE, 34)


def draw_axes(title: str, unit: str, places: Iterable[float], x: Scale, y: Scale) -> list[str]:
    """Draw the title, the highest figure with its unit, the grid, and places that fit."""
    parts = [
        write(0, 12, shorten(title, 216), "strong"),
        write(0, y(y.high) - 4, f"{y.high:g} {unit}".rstrip(), "soft"),
        *(rule(0, y(y.high * part), RIGHT, y(y.high * part), "grid") for part in (0.5, 1)),
        rule(0, y(0), RIGHT, y(0), "axis"),
    ]
    last = -_APART
    for place in places:
        if x(place) - last >= _APART:
            parts.append(write(x(place), 138, f"{place:g}", "soft", "middle"))
            last = x(place)
    return parts


def draw_lines(
    title: str,
    unit: str,
    lines: Mapping[str, Mapping[float, float]],
    *,
    logarithmic: bool = False,
    mark: float | None = None,
    limit: float | None = None,
) -> str:
    """Draw a line per arm, a horizontal line at the limit and a vertical one at the mark."""
    places = sorted({place for line in lines.values() for place in line})
    if not places:
        return frame(230, HEIGHT, title, "unknown", write(0, 12, title, "strong"))
    values = [value for line in lines.values() for value in line.values()]
    x, y = make_scales(places, round_up(max(*values, limit or 0.0)), logarithmic=logarithmic)
    parts = draw_axes(title, unit, places, x, y)
    if limit is not None:
        parts.append(rule(0, y(limit), RIGHT, y(limit), "one"))
    if mark is not None:
        parts.append(rule(x.clip(mark), y(0), x.clip(mark), y(y.high), "one"))
    for arm, line in lines.items():
        path = [(x(place), y.clip(value)) for place, value in sorted(line.items())]
        parts.append(draw("path", d=join(path), kind=f"line {arm}"))
    description = "; ".join(
        f"{'solid' if arm == 'b' else 'dashed'}: "
        + ", ".join(f"{place:g} {value:.2f}" for place, value in sorted(line.items()))
        for arm, line in lines.items()
    )
    return frame(230, HEIGHT, title, description, *parts)
