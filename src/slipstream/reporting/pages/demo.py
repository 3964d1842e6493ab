"""A `Demo` as a page: the result, and the time of each token with and without drafts."""

from slipstream.demo.performance import Demo, find_step_seconds
from slipstream.demo.recording import Take
from slipstream.measuring.comparing.blocks import Arm
from slipstream.reporting.pages.drawing import Scale, draw, frame, round_up, rule, write
from slipstream.reporting.pages.html_page import Figure, render_page
from slipstream.reporting.pages.sides import Side
from slipstream.reporting.text.demo import describe_demo, explain

KEY = (Side("A", "plain", ()), Side("B", "drafted", ()))
LEFT, RIGHT, TOP, BOTTOM = 4.0, 300.0, 34.0, 190.0
BARS, BAR_END, BAR_HEIGHT = 120.0, 300.0, 16.0


def render_demo_html(demo: Demo) -> str:
    """Write a demo as one page."""
    tokens = Figure(
        "when each token came",
        "Tokens so far over the seconds since the request. Without drafts a step brings one; with "
        "them as many as were accepted, and one of the target's own.",
        [_draw_pair(demo, plain, drafted) for plain, drafted in demo.pairs],
        KEY,
        "broad",
    )
    steps = Figure(
        "what a step costs and brings",
        f"{explain(demo)} Drafting wins where more tokens come out of a step than it takes plain "
        "steps.",
        _draw_steps(demo),
        layout="broad",
    )
    return render_page(describe_demo(demo), [steps, tokens])


def _draw_steps(demo: Demo) -> list[str]:
    """Draw the time of both steps, and the tokens to break even beside those that came."""
    cost, tokens = demo.step_cost, demo.tokens_per_step
    if cost is None or tokens is None:
        return []
    plain, drafted = (1000 * find_step_seconds(takes) for takes in (demo.plain, demo.drafted))
    return [
        _draw_bars("time of a step, ms", {"plain": (plain, "a"), "drafted": (drafted, "b")}, "ms"),
        _draw_bars("tokens per step", {"to break even": (cost, "a"), "measured": (tokens, "b")}),
    ]


def _draw_bars(title: str, bars: dict[str, tuple[float, str]], unit: str = "") -> str:
    x = Scale(0, max(value for value, _ in bars.values()), BARS, BAR_END)
    parts = [write(LEFT, 12, title, "strong")]
    told = []
    for number, (name, (value, kind)) in enumerate(bars.items()):
        top = TOP + 1.6 * BAR_HEIGHT * number
        shown = f"{value:.1f} {unit}".strip()
        parts += [
            write(LEFT, top + 12, name, f"value {kind}"),
            draw(
                "rect", x=BARS, y=top, width=x(value) - BARS, height=BAR_HEIGHT, kind=f"bar {kind}"
            ),
            write(x(value) + 6, top + 12, shown, "value"),
        ]
        told.append(f"{name} {shown}")
    return frame(360, TOP + 3 * BAR_HEIGHT, title, "; ".join(told), *parts)


def _draw_pair(demo: Demo, plain: Take, drafted: Take) -> str:
    """Draw both answers to a prompt; all prompts have the same axes."""
    takes = [*demo.plain, *demo.drafted]
    x = Scale(0, round_up(max(take.seconds for take in takes)), LEFT, RIGHT)
    y = Scale(0, round_up(max(len(take.tokens) for take in takes)), BOTTOM, TOP)
    kind = plain.prompt.kind
    parts = [
        write(LEFT, 12, kind, "strong"),
        write(LEFT, TOP - 5, f"{y.high:g} tokens", "soft"),
        *(rule(LEFT, y(y.high * part), RIGHT, y(y.high * part), "grid") for part in (0.5, 1)),
        rule(LEFT, BOTTOM, RIGHT, BOTTOM, "axis"),
        *(
            write(x(x.high * part), BOTTOM + 16, f"{x.high * part:g} s", "soft", anchor)
            for part, anchor in ((0, "start"), (0.5, "middle"), (1, "end"))
        ),
        _draw_take("A", plain, x, y, first=plain.seconds < drafted.seconds),
        _draw_take("B", drafted, x, y, first=plain.seconds >= drafted.seconds),
    ]
    told = f"plain {_tell(plain)}; drafted {_tell(drafted)}"
    return frame(360, BOTTOM + 22, f"{kind}: when each token came", told, *parts)


def _draw_take(arm: Arm, take: Take, x: Scale, y: Scale, *, first: bool) -> str:
    """Draw an answer as stairs, a step up for every chunk; the first to end has its time before."""
    path = f"M{x(0):.1f} {y(0):.1f}"
    for count, token in enumerate(take.tokens, 1):
        if not token.drafted:
            path += f"H{x(token.seconds):.1f}V{y(count):.1f}"
    kind = arm.lower()
    end, height = x(take.seconds), y(len(take.tokens))
    aside, anchor = (-7, "end") if first else (7, "start")
    return draw(
        "g",
        draw("path", d=path, kind=f"line {kind}"),
        draw("circle", cx=end, cy=height, r=3.4, kind=f"dot {kind}"),
        write(end + aside, height + 4, f"{take.seconds:.1f} s", f"value {kind}", anchor),
    )


def _tell(take: Take) -> str:
    return f"{len(take.tokens)} tokens in {take.seconds:.1f} s"
