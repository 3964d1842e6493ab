"""SVG elements, text and scales. Colours are the page's, by class (page.css)."""

from dataclasses import dataclass
from html import escape
from math import floor, log, log10

from slipstream.reporting.report import clean

TEXT_WIDTH = 6.6
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
    """Write text at a place."""
    return draw("text", protect(text), x=x, y=y, kind=kind, text_anchor=anchor)


def rule(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    """Draw a straight line."""
    return draw("line", x1=x1, y1=y1, x2=x2, y2=y2, kind=kind)


def frame(width: float, height: float, title: str, description: str, *parts: str) -> str:
    """Return a drawing that fits any width, with a text description."""
    labels = (draw("title", protect(title)), draw("desc", protect(description)))
    return draw("svg", *labels, *parts, viewBox=f"0 0 {width:g} {height:g}", role="img")


def protect(text: str) -> str:
    """Escape text for use between tags and in attributes."""
    return escape(clean(text))


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
