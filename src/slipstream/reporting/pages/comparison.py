"""A `Comparison` as a page with charts."""

from collections.abc import Sequence

from slipstream.measuring.comparing.comparison import Arena, Comparison
from slipstream.reporting.pages.charts import (
    ForestRow,
    draw_acceptance,
    draw_by_concurrency,
    draw_forests,
    draw_turns,
)
from slipstream.reporting.pages.html_page import Figure, render_page
from slipstream.reporting.pages.sides import (
    Side,
    list_kinds,
    read_first_token,
    read_per_token,
    take_sides,
)
from slipstream.reporting.pages.timeline import Strip, draw_timeline
from slipstream.reporting.text.comparison import describe_comparison
from slipstream.reporting.text.contest import ALL_KINDS


def render_comparison_html(comparison: Comparison) -> str:
    """Write a comparison as one page."""
    sides = take_sides(comparison)
    names = {side.arm: side.name for side in sides}
    measure = comparison.verdict.measure
    speed_up = Figure(
        f"speed of {names['B']} against {names['A']}",
        f"{measure.capitalize()}, as a ratio, with an interval that holds for all rows together. "
        "The grey band around 1 is what a restart alone does. A mark that points right is faster, "
        "left slower; a square is even within 5 %; a hollow mark is unclear.",
        draw_forests(
            [
                ForestRow(found.kind or ALL_KINDS, found.concurrency, found, heading=not found.kind)
                for found in comparison.verdict.findings
            ]
        ),
        layout="broad",
    )
    run = draw_run(list_strips(comparison), sides)
    return render_page(describe_comparison(comparison), [speed_up, *draw_loads(sides), run])


def list_strips(contest: Comparison | Arena) -> list[Strip]:
    """List the starts as the picture of the run shows them."""
    names = {side.arm: side.name for side in take_sides(contest)}
    return [
        Strip(names[report.arm], report.start_seconds, report.warm_up, block)
        for report, block in zip(contest.reports, contest.blocks, strict=True)
    ]


def draw_loads(sides: Sequence[Side]) -> list[Figure]:
    """Draw throughput, latency and acceptance."""
    ticks = "." if len(sides) == 1 else "; a tick is one start."
    drafting = [side for side in sides if side.drafts]
    places = f"By requests at once{ticks}"
    accepted = "The share of drafts whose tokens were accepted up to the first, second, ... one."
    drawn = (
        ("throughput, tokens/s", places, lambda cell: cell.tokens_per_second),
        ("time per token, ms", f"The median request{ticks}", read_per_token),
        ("time to the first token, ms", f"The median request{ticks}", read_first_token),
    )
    figures = [
        Figure(title, caption, draw_by_concurrency(sides, title, read), sides)
        for title, caption, read in drawn
    ]
    if len(list_kinds(sides)) == 1:
        panels = [panel for figure in figures for panel in figure.panels]
        figures = [Figure("throughput and the median latencies", places, panels, sides)]
    return [
        draw_first_tokens(sides),
        *figures,
        Figure("acceptance by position", accepted, draw_acceptance(drafting), drafting),
    ]


def draw_first_tokens(sides: Sequence[Side]) -> Figure:
    """Draw the time to the first token of tasks, turn by turn; nothing without tasks."""
    caption = (
        "The median over a kind's tasks. The conversation grows from turn to turn; a server whose "
        "prefix cache holds the earlier turns reads only what is new."
    )
    return Figure("time to the first token by turn, ms", caption, draw_turns(sides), sides)


def draw_run(strips: Sequence[Strip], sides: Sequence[Side]) -> Figure:
    """Draw the run as it went."""
    kinds = dict.fromkeys(sample.kind for strip in strips for sample in strip.block.samples)
    caption = (
        "Each request is a line as long as it took, at the height of its speed; a cross is one "
        f"that failed. At each concurrency the loads follow one another: {', '.join(kinds)}. "
        "A warm-up is its time per token, round by round."
    )
    return Figure("the run, start by start", caption, [draw_timeline(strips)], sides, "wide")
