"""An arena on the terminal, as Markdown and as a page."""

from itertools import pairwise
from typing import Any

import pytest

from slipstream.measuring.comparing.comparison import Arena
from slipstream.measuring.comparing.verdict import PairFindings
from slipstream.reporting.pages.arena import render_arena_html
from slipstream.reporting.pages.report import render_markdown, render_text
from slipstream.reporting.text.arena import describe_arena
from tests.snapshots import read_snapshot
from tests.unit.reporting.pages.page_reading import Reader, find_drawings, list_texts, parse
from tests.unit.reporting.pages.test_comparison import HOSTILE
from tests.unit.reporting.records import make_arena


def render_arena_text(arena: Arena) -> str:
    return render_text(describe_arena(arena))


def render_arena_markdown(arena: Arena) -> str:
    return render_markdown(describe_arena(arena))


RENDERERS = (render_arena_text, render_arena_markdown, render_arena_html)


def rename(arena: Arena, *names: str) -> Arena:
    """Call the arms by these names wherever they are named."""
    new = dict(zip(arena.verdict.arms, names, strict=True))
    verdict = arena.verdict.model_copy(
        update={
            "arms": names,
            "sentence": names[0],
            "pairs": tuple(
                PairFindings(arms=(new[pair.arms[0]], new[pair.arms[1]]), findings=pair.findings)
                for pair in arena.verdict.pairs
            ),
            "places": tuple(
                place.model_copy(
                    update={"contenders": tuple(map(new.__getitem__, place.contenders))}
                )
                for place in arena.verdict.places
            ),
        }
    )
    arms = tuple(
        arm.model_copy(update={"name": name}) for arm, name in zip(arena.arms, names, strict=True)
    )
    return arena.model_copy(update={"verdict": verdict, "arms": arms})


def test_an_arena_is_shown_as_reviewed() -> None:
    shown = render_arena_text(make_arena(kinds=("code", "prose"), concurrencies=(1, 8))) + "\n"
    assert shown == read_snapshot("arena.txt", shown)


@pytest.mark.parametrize("render", RENDERERS)
def test_every_arm_against_the_first_is_shown_and_in_full_every_pair(render: Any) -> None:
    arena = make_arena(kinds=("code", "prose"), concurrencies=(1, 8))
    shown = render(arena)
    for pair in arena.verdict.pairs:
        for found in pair.findings:
            if pair.arms[0] == "plain" or render is not render_arena_text:
                ratio = found.speed_up
                assert f"{ratio.ratio:.2f} ({ratio.low:.2f} to {ratio.high:.2f})" in shown


def test_the_grid_names_the_winner_of_each_place_with_its_ratio_and_interval() -> None:
    arena = make_arena()
    panels = find_drawings(render_arena_html(arena))[:3]
    for load, panel in zip((1, 4, 8), panels, strict=True):
        texts = " ".join(list_texts(panel))
        for place in arena.verdict.places:
            if place.concurrency == load:
                assert " or ".join(place.contenders) in texts
                if place.speed_up:
                    assert f"{place.speed_up.ratio:.2f}" in texts
                    assert f"{place.speed_up.low:.2f} \N{EN DASH}" in texts


def test_a_place_that_is_open_has_the_colours_of_all_contenders() -> None:
    arena = make_arena()
    letters = dict(zip(arena.verdict.arms, "abcd", strict=True))
    panels = find_drawings(render_arena_html(arena))[:3]
    bars = [
        (part.get("class") or "")[4:]
        for panel in panels
        for part in panel.iter("rect")
        if (part.get("class") or "").startswith("bar")
    ]
    places = sorted(arena.verdict.places, key=lambda place: place.concurrency)
    assert bars == [letters[arm] for place in places for arm in place.contenders]
    assert any(len(place.contenders) > 1 for place in places)


def test_every_arm_has_a_row_for_each_kind_and_a_line_in_each_panel() -> None:
    arena = make_arena(kinds=("code", "prose"), concurrencies=(1, 8))
    drawings = find_drawings(render_arena_html(arena))
    titles = [drawing.findtext("title") for drawing in drawings]
    assert titles[:4] == [
        "Who wins, concurrency 1",
        "Who wins, concurrency 8",
        "Speed-up, concurrency 1",
        "Speed-up, concurrency 8",
    ]
    texts = list_texts(drawings[2])
    assert [texts.count(name) for name in ("dflash", "ngram", "eagle3", "code")] == [3, 3, 3, 1]
    throughput = drawings[titles.index("code: throughput, tokens/s")]
    ends = [t for t in throughput.iter("text") if (t.get("class") or "").startswith("value")]
    heights = sorted(float(end.get("y") or 0) for end in ends)
    assert len(heights) == 4
    assert min(b - a for a, b in pairwise(heights)) >= 13


@pytest.mark.parametrize("render", RENDERERS)
def test_hostile_names_of_arms_are_only_text(render: Any) -> None:
    arena = make_arena(kinds=("code", "prose"), concurrencies=(1, 8))
    shown = render(rename(arena, *(f"{HOSTILE}{number}" for number in range(4))))
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    if render is render_arena_html:
        read = Reader(shown)
        assert read.dangers == []
        assert not {"script", "img"} & set(read.tags)
        assert parse(shown).tag == "html"


@pytest.mark.parametrize("load", [{"kinds": ("code",)}, {"concurrencies": (4,)}, {"tasks": True}])
def test_one_kind_one_load_and_tasks_are_shown(load: dict[str, Any]) -> None:
    arena = make_arena(rounds=1, **load)
    for render in RENDERERS:
        assert "dflash" in render(arena)
    assert Arena.model_validate_json(arena.to_json()) == arena
    assert ("By wall time per task: " in arena.verdict.sentence) == ("tasks" in load)
