"""A `Canary` as a page with pictures, and as Markdown."""

from collections.abc import Sequence

from slipstream.fleet.canary.record import Canary, KindEvidence, Snapshot
from slipstream.reporting.drawing import Scale, draw, frame, rule, shorten, write
from slipstream.reporting.html_page import Figure, render_page
from slipstream.reporting.report import render_markdown
from slipstream.reporting.text.canary import describe_canary

LEAST, MOST = 0.25, 4.0
TICKS = (0.25, 0.5, 0.8, 1.0, 1.25, 2.0, 4.0)
ROW = 24.0


def render_canary_markdown(canary: Canary) -> str:
    """Write what was decided as Markdown."""
    return render_markdown(describe_canary(canary))


def render_canary_html(canary: Canary) -> str:
    """Write what was decided as one page."""
    path, kinds = canary.evidence.path, canary.evidence.kinds
    speed = Figure(
        "speed of the canary against the others, as requests came",
        "The line is the ratio of tokens per second of step time, relative to what it was before "
        "the trial; the band holds the truth at all times. It is decided where the band leaves "
        "the threshold.",
        [_draw_path(path, canary.threshold)] if path else [],
        layout="wide",
    )
    acceptance = Figure(
        "acceptance by kind",
        "A token after an accepted one: the ring is the other groups, the dot the canary. The bar "
        "is where the canary's may be, for all that is known.",
        [_draw_kinds(kinds)] if kinds else [],
        layout="wide",
    )
    return render_page(describe_canary(canary), [speed, acceptance])


def _draw_path(path: Sequence[Snapshot], threshold: float) -> str:
    last = path[-1].requests
    ends = [one.ratio.estimate for one in path]
    ends += [
        end for one in path[len(path) // 4 :] for end in (one.ratio.low, one.ratio.high) if end
    ]
    low, high = max(LEAST, min(*ends, 0.8)), min(MOST, max(*ends, 1.25))
    x, y = Scale(0, last, 44, 900), Scale(low, high, 260, 20, logarithmic=True)
    upper = [(x(one.requests), y.clip(one.ratio.high or high)) for one in path]
    lower = [(x(one.requests), y.clip(one.ratio.low or low)) for one in path]
    middle = [(x(one.requests), y.clip(one.ratio.estimate)) for one in path]
    ticks = [tick for tick in TICKS if low <= tick <= high]
    parts = [
        draw("path", d=f"{_join([*upper, *reversed(lower)])}Z", kind="band"),
        *(rule(44, y(tick), 900, y(tick), "grid") for tick in ticks),
        *(write(38, y(tick) + 4, f"{tick:g}", "soft", "end") for tick in ticks),
        rule(44, y.clip(threshold), 900, y.clip(threshold), "one"),
        draw("path", d=_join(middle), kind="line b"),
        draw("circle", cx=middle[-1][0], cy=middle[-1][1], r=3.4, kind="dot b"),
        write(906, middle[-1][1] + 4, f"{path[-1].ratio.estimate:.2f}", "value b"),
        *(
            write(x(last * part), 278, f"{last * part:.0f}", "soft", "middle")
            for part in (0.25, 0.5, 0.75, 1)
        ),
    ]
    told = f"{path[-1].ratio.estimate:.2f} times the speed after {last} requests"
    return frame(960, 284, "speed of the canary against the others", told, *parts)


def _draw_kinds(kinds: Sequence[KindEvidence]) -> str:
    x = Scale(0, 1, 150, 780)
    bottom = ROW * len(kinds) + 4
    parts = [rule(x(part), 0, x(part), bottom, "grid") for part in (0, 0.25, 0.5, 0.75, 1)]
    parts += [
        write(x(part), bottom + 15, f"{100 * part:.0f} %", "soft", "middle")
        for part in (0, 0.25, 0.5, 0.75, 1)
    ]
    for number, kind in enumerate(kinds):
        middle = ROW * number + ROW / 2
        known = kind.low is not None and kind.high is not None and kind.change is not None
        if kind.low is not None and kind.high is not None:
            left, right = (x.clip(kind.others + end) for end in (kind.low, kind.high))
            parts.append(rule(left, middle, right, middle, "outcome"))
        shift = kind.change if kind.change is not None else kind.canary - kind.others
        parts += [
            write(0, middle + 4, shorten(kind.kind, 140)),
            draw("circle", cx=x(kind.others), cy=middle, r=5.0, kind="dot a"),
            draw("circle", cx=x.clip(kind.others + shift), cy=middle, r=3.4, kind="dot b"),
            write(
                800, middle + 4, f"{100 * shift:+.1f} points{'' if known else ', early'}", "strong"
            ),
        ]
    told = "; ".join(f"{one.kind} {one.canary:.0%} against {one.others:.0%}" for one in kinds)
    return frame(960, bottom + 20, "acceptance by kind", told, *parts)


def _join(places: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{across:.1f} {down:.1f}" for across, down in places)
