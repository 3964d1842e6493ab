"""An `Arena` as a page with charts: the fastest arm by kind and load, and all ratios."""

from collections.abc import Sequence
from textwrap import wrap

from slipstream.measuring.comparing.comparison import Arena
from slipstream.measuring.comparing.verdict import ArenaVerdict, Place
from slipstream.reporting.pages.charts import ForestRow, draw_forests
from slipstream.reporting.pages.comparison import draw_loads, draw_run, list_strips
from slipstream.reporting.pages.drawing import (
    TEXT_WIDTH,
    draw,
    frame,
    protect,
    shorten,
    write,
)
from slipstream.reporting.pages.html_page import Figure, render_page
from slipstream.reporting.pages.sides import Side, take_sides
from slipstream.reporting.text.arena import describe_arena, show_contenders
from slipstream.reporting.text.contest import ALL_KINDS, show_estimate, show_load

LEFT, WIDTH, TILE, BETWEEN, BAR = 96.0, 360.0, 40.0, 6.0, 8.0
NAME, NAME_LETTERS = LEFT + BAR + 8, 24


def render_arena_html(arena: Arena) -> str:
    """Write an arena as one page."""
    sides = take_sides(arena)
    first, *others = sides
    verdict = arena.verdict
    places = Figure(
        "who wins where",
        f"The fastest arm for each kind of prompt and load, and its speed against {first.name}. "
        "A bar of several colours: no arm was shown to be faster than any of these.",
        _draw_places(verdict, sides),
        sides,
        "broad",
    )
    speeds = Figure(
        f"every arm against {first.name}",
        f"{verdict.measure.capitalize()}, as a ratio, with an interval that holds for all arms and "
        "rows together. The grey band around 1 is what a restart alone does. A mark that points "
        "right is faster, left slower; a square is even within 5 %; a hollow mark is unclear.",
        draw_forests(_list_rows(verdict, others)),
        layout="broad",
    )
    run = draw_run(list_strips(arena), sides)
    return render_page(describe_arena(arena), [places, speeds, *draw_loads(sides), run])


def _list_rows(verdict: ArenaVerdict, sides: Sequence[Side]) -> list[ForestRow]:
    """List the arms of each place under its kind."""
    rows: list[ForestRow] = []
    columns = [verdict.find(side.name) for side in sides]
    for found in zip(*columns, strict=True):
        kind = found[0].kind or ALL_KINDS
        rows.append(ForestRow(kind, found[0].concurrency, None, heading=True))
        rows += [
            ForestRow(side.name, one.concurrency, one, told=f"{kind} {side.name}")
            for side, one in zip(sides, found, strict=True)
        ]
    return rows


def _draw_places(verdict: ArenaVerdict, sides: Sequence[Side]) -> list[str]:
    """Draw a panel for each concurrency with a tile for each kind."""
    arms = {side.name: side.arm.lower() for side in sides}
    panels = []
    for load in sorted({place.concurrency for place in verdict.places}):
        places = [place for place in verdict.places if place.concurrency == load]
        tiles = [
            _draw_tile(place, 24 + (TILE + BETWEEN) * row, arms) for row, place in enumerate(places)
        ]
        told = "; ".join(f"{place.kind or ALL_KINDS} {_tell_place(place)}" for place in places)
        panels.append(
            frame(
                WIDTH,
                24 + (TILE + BETWEEN) * len(places),
                f"Who wins, {show_load(load)}",
                told,
                write(0, 14, show_load(load), "strong"),
                *tiles,
            )
        )
    return panels


def _draw_tile(place: Place, top: float, arms: dict[str, str]) -> str:
    part = TILE / len(place.contenders)
    right = WIDTH - 10
    ratio, interval = "1", ""
    if place.speed_up:
        ratio = f"{place.speed_up.ratio:.2f}"
        interval = f"{place.speed_up.low:.2f} \N{EN DASH} {place.speed_up.high:.2f}"
    return draw(
        "g",
        draw("title", protect(show_contenders(place))),
        write(
            0, top + 24, shorten(place.kind or ALL_KINDS, LEFT - 6), "" if place.kind else "strong"
        ),
        draw("rect", x=LEFT, y=top, width=WIDTH - LEFT, height=TILE, kind="load"),
        *(
            draw(
                "rect", x=LEFT, y=top + part * row, width=BAR, height=part, kind=f"bar {arms[arm]}"
            )
            for row, arm in enumerate(place.contenders)
        ),
        *_write_contenders(place, top, arms),
        write(right, top + 17, ratio, "strong", "end"),
        write(right, top + 33, interval, "soft", "end"),
    )


def _write_contenders(place: Place, top: float, arms: dict[str, str]) -> list[str]:
    """Write the winner in its colour, or those between whom it is open in two lines."""
    if place.winner:
        kind = f"value {arms[place.winner]}"
        return [write(NAME, top + 24, shorten(place.winner, TEXT_WIDTH * NAME_LETTERS), kind)]
    lines = wrap(
        show_contenders(place), NAME_LETTERS, max_lines=2, placeholder=" \N{HORIZONTAL ELLIPSIS}"
    )
    top += 17 if lines[1:] else 24
    return [write(NAME, top + 16 * row, line, "soft") for row, line in enumerate(lines)]


def _tell_place(place: Place) -> str:
    ratio = f" {show_estimate(place.speed_up)}" if place.speed_up else ""
    return f"{show_contenders(place)}{ratio}"
