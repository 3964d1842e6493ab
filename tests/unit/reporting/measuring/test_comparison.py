"""A comparison of two arms or more on the terminal, as Markdown and as a page."""

from itertools import pairwise
from typing import Any

import pytest

from slipstream.measuring.bench import BenchCell, list_cells
from slipstream.measuring.comparing.cautions import Caution
from slipstream.measuring.comparing.comparison import Comparison, Start
from slipstream.measuring.comparing.verdict import (
    BreakEven,
    PairFindings,
    Place,
    SpeedFinding,
    SpeedRatio,
    Verdict,
)
from slipstream.reporting.measuring.comparison import describe_comparison, render_comparison_html
from slipstream.reporting.report import render_text
from tests.snapshots import read_snapshot
from tests.unit.reporting.page_reading import Reader, find_drawings, list_texts, parse
from tests.unit.reporting.records import make_comparison

ARMS = ("plain", "dflash", "ngram", "eagle3")


def render_comparison_text(comparison: Comparison) -> str:
    return render_text(describe_comparison(comparison))


HOSTILE = '</title><script>alert("x")</script><img src=x onerror=y>|`*\x1b[31m\u202e\n&amp;'


def find(kind: str | None, concurrency: int, ratio: float, outcome: Any) -> SpeedFinding:
    estimate = SpeedRatio(ratio=ratio, low=ratio * 0.9, high=ratio * 1.1)
    flow = SpeedRatio(ratio=ratio * 0.96, low=ratio * 0.85, high=ratio * 1.07)
    return SpeedFinding(
        kind=kind,
        concurrency=concurrency,
        prompts=8,
        speed_up=estimate,
        throughput=flow,
        noise=1.031,
        outcome=outcome,
    )


FINDINGS = (
    find("code", 1, 2.5, "faster"),
    find("code", 8, 1.02, "unclear"),
    find("prose", 1, 1.0, "even"),
    find("prose", 8, 0.7, "slower"),
    find(None, 1, 1.6, "faster"),
    find(None, 8, 0.85, "slower"),
)
PAIR = PairFindings(
    arms=("plain", "drafted"),
    findings=FINDINGS,
    break_evens=(
        BreakEven(kind="code", concurrency=None, low=6.2, high=None, largest=8),
        BreakEven(kind="prose", concurrency=0.0, low=0.0, high=1.3, largest=8),
        BreakEven(kind=None, concurrency=5.04, low=3.0, high=7.0, largest=8),
    ),
)
VERDICT = Verdict(
    arms=("plain", "drafted"),
    blocks=8,
    pairs=(PAIR,),
    places=tuple(
        Place(
            kind=found.kind,
            concurrency=found.concurrency,
            contenders=("drafted",),
            even=False,
            speed_up=found.speed_up,
        )
        for found in FINDINGS
    ),
    cautions=(
        Caution(code="few-prompts", message="only 3 prompts of a kind"),
        Caution(code="silent-block", message="1 of the starts answered nothing", grave=True),
    ),
    answer="use for some",
    more_blocks=None,
    sentence="Use drafted instead of plain for code (2.50 times as fast).",
)


def reviewed() -> Comparison:
    made = make_comparison(kinds=("code", "prose"), concurrencies=(1, 8))
    return made.model_copy(update={"verdict": VERDICT})


def with_findings(*findings: SpeedFinding) -> Comparison:
    pair = PAIR.model_copy(update={"findings": findings, "break_evens": ()})
    places = VERDICT.places[: len(findings)]
    verdict = VERDICT.model_copy(update={"pairs": (pair,), "places": places})
    return reviewed().model_copy(update={"verdict": verdict})


def change_cells(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """Have the figures of every load be these."""

    def cells(start: Start) -> list[BenchCell]:
        found = list_cells(start.loads, start.samples)
        return [cell.model_copy(update=changes) for cell in found]

    monkeypatch.setattr(Start, "cells", property(cells))


def rename(comparison: Comparison, name: str) -> Comparison:
    """Call model, workload, arms, kinds and cautions by this name, with a number for each."""
    verdict, conditions = comparison.verdict, comparison.conditions
    caution = Caution(code="lengths", message="a caution")
    changed = verdict.model_copy(update={"cautions": (caution,)})
    old = ["code", "prose", caution.message, verdict.sentence, *verdict.arms]
    old += [conditions.model, conditions.workload, conditions.command]
    new = {one: f"{name}{number}" for number, one in enumerate(old)}

    def call(part: Any) -> Any:
        if isinstance(part, dict):
            return {key: call(value) for key, value in part.items()}
        if isinstance(part, list | tuple):
            return [call(value) for value in part]
        return new.get(part, part) if isinstance(part, str) else part

    named = comparison.model_copy(update={"verdict": changed})
    return Comparison.model_validate(call(named.model_dump()))


def test_a_comparison_is_shown_as_reviewed() -> None:
    shown = render_comparison_text(reviewed()) + "\n"
    assert shown == read_snapshot("comparison.txt", shown)


def test_the_arms_throughputs_have_the_ratio_that_was_found() -> None:
    comparison = make_comparison()
    (table,) = (
        section.table
        for section in describe_comparison(comparison).sections
        if section.title == "figures of each arm" and section.table
    )
    for row, found in zip(table.rows, comparison.verdict.find("drafted"), strict=True):
        plain, drafted = map(float, row[2:4])
        assert drafted / plain == pytest.approx(found.throughput.ratio, rel=0.01)


def test_what_is_not_known_is_called_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    none = {"tokens_per_step": None, "by_position": (), "per_token": None, "first_token": None}
    comparison = reviewed()
    change_cells(monkeypatch, **none)
    bare = comparison.conditions.model_copy(update={"host": None, "versions": {}})
    shown = render_comparison_html(comparison.model_copy(update={"conditions": bare}))
    assert shown.count("unknown") >= len(FINDINGS) + 2
    assert "None" not in shown
    assert "nan" not in shown


def test_an_arm_with_drafts_has_its_tokens_a_step_beside_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "A TOKENS/STEP" not in render_comparison_text(reviewed())
    change_cells(monkeypatch, tokens_per_step=2.5)
    assert "A TOKENS/STEP" in render_comparison_text(reviewed())


def test_the_headline_is_the_range_over_all_loads_and_the_break_even() -> None:
    report = describe_comparison(reviewed())
    assert (report.figure, report.interval) == (
        "0.85\N{EN DASH}1.60\N{MULTIPLICATION SIGN}",
        "at concurrency 1 to 8",
    )
    assert report.figure_note.endswith("all kinds; break-even at concurrency 5.0")
    one = describe_comparison(make_comparison(kinds=("code",), concurrencies=(4,)))
    assert (one.figure.count("\N{EN DASH}"), one.interval) == (0, "at concurrency 4")
    several = describe_comparison(make_comparison(ARMS))
    assert several.figure_note.startswith("the speed of ")
    busy = Caution(code="busy-machine", message="busy", grave=True)
    verdict = VERDICT.model_copy(update={"cautions": (busy,)})
    lost = describe_comparison(reviewed().model_copy(update={"verdict": verdict}))
    assert (lost.figure, lost.interval) == ("?", "")


def test_both_command_lines_and_their_differences_are_told_in_full() -> None:
    comparison = reviewed()
    shown = render_comparison_html(comparison)
    assert shown.count("  --model Qwen/Qwen3-8B \\\n") == 2
    assert shown.count("--per-request-spec-decode-metrics") == 1
    assert "speculative-config.method" in shown
    plan = comparison.arms[0].plan
    same = comparison.model_copy(
        update={"arms": tuple(arm.model_copy(update={"plan": plan}) for arm in comparison.arms)}
    )
    assert "the plans are the same" in render_comparison_html(same)


@pytest.mark.parametrize("arms", [("plain", "drafted"), ARMS])
def test_a_page_asks_nobody_and_hostile_names_are_only_text(arms: tuple[str, ...]) -> None:
    comparison = make_comparison(arms, kinds=("code", "prose"), concurrencies=(1, 8), rounds=1)
    shown = render_comparison_html(rename(comparison, HOSTILE))
    assert parse(shown).tag == "html"
    read = Reader(shown)
    assert read.dangers == []
    assert not {"script", "link", "img", "iframe", "object", "base"} & set(read.tags)
    assert any('<script>alert("x")' in text for text in read.words)
    assert "\x1b" not in shown + render_comparison_text(rename(comparison, HOSTILE))


def test_every_drawing_tells_its_figures_in_words() -> None:
    drawings = find_drawings(render_comparison_html(reviewed()))
    told = [(drawing.findtext("title"), drawing.findtext("desc")) for drawing in drawings]
    assert all(title and text for title, text in told)
    assert told[0] == (
        "Speed-up, concurrency 1",
        "code 2.50 (2.25 to 2.75), faster; prose 1.00 (0.90 to 1.10), even; "
        "all kinds 1.60 (1.44 to 1.76), faster",
    )


def test_each_outcome_has_a_mark_of_its_own_shape() -> None:
    drawings = find_drawings(render_comparison_html(reviewed()))[:2]
    marks = {
        path.get("class"): path.get("d")
        for drawing in drawings
        for path in drawing.iter("path")
        if (path.get("class") or "").startswith("outcome")
    }
    assert len(marks) == 4
    assert len(set(marks.values())) == 4


def test_a_forest_has_ticks_enough_to_read_a_ratio_by() -> None:
    """An axis from a half to two had a single tick."""
    wide = with_findings(find("code", 1, 0.5, "slower"), find("prose", 1, 1.9, "faster"))
    texts = list_texts(find_drawings(render_comparison_html(wide))[0])
    assert {"0.5", "0.7", "1", "1.4", "2"} <= set(texts)


def test_the_run_and_the_commands_are_folded() -> None:
    page = parse(render_comparison_html(reviewed()))
    titles = {"".join(one.itertext()) for one in page.findall(".//details/summary")}
    assert {"the run, start by start", "machine", "engine of plain"} <= titles
    assert "cautions" not in titles


def test_acceptance_is_written_at_the_first_position() -> None:
    drawings = find_drawings(render_comparison_html(reviewed()))
    panel = next(d for d in drawings if "accepted up to" in (d.findtext("title") or ""))
    (value,) = (t for t in panel.iter("text") if (t.get("class") or "").startswith("value"))
    assert float(value.get("x") or 999) < 60
    assert int((value.text or "0").split()[0]) > 50


def test_intervals_beyond_any_axis_stay_in_their_panel() -> None:
    ratio = SpeedRatio(ratio=40.0, low=1e-9, high=1e9)
    wild = find("code", 1, 1.0, "unclear").model_copy(update={"speed_up": ratio, "noise": 1e6})
    page = render_comparison_html(with_findings(wild))
    (forest,) = (d for d in find_drawings(page) if (d.findtext("title") or "").startswith("Speed"))
    lines = [line for line in forest.iter("line") if "unclear" in (line.get("class") or "")]
    assert [(line.get("x1"), line.get("x2")) for line in lines] == [("96", "234")]


@pytest.mark.parametrize(
    "load", [{"kinds": ("code",)}, {"concurrencies": (4,)}, {"kinds": ("code",), "rounds": 1}]
)
def test_one_kind_one_concurrency_and_one_round_are_enough(load: dict[str, Any]) -> None:
    comparison = make_comparison(**{"concurrencies": (1, 8), **load})
    page = render_comparison_html(comparison)
    kinds, places = len(load.get("kinds", "abcd")), len(load.get("concurrencies", "ab"))
    assert len(find_drawings(page)) == places + 4 * kinds + 1
    assert ("where the speed-up ends" in render_comparison_text(comparison)) == (places > 1)
    several = make_comparison(ARMS, **{**load, "rounds": 1})
    assert "dflash" in render_comparison_html(several)
    assert Comparison.model_validate_json(several.to_json()) == several


def test_failed_requests_are_crosses_and_are_counted() -> None:
    comparison = make_comparison(failing=0.06, rounds=1)
    failed = sum(
        sample.error is not None for start in comparison.starts for sample in start.samples
    )
    timeline = find_drawings(render_comparison_html(comparison))[-1]
    crosses = [p.get("d") or "" for p in timeline.iter("path") if p.get("class") == "fail"]
    assert failed > 5
    assert sum(path.count("l6 6") for path in crosses) == failed
    requests = [p.get("d") or "" for p in timeline.iter("path") if "request" in str(p.attrib)]
    assert sum(path.count("h") for path in requests) == 4 * 4 * 3 * 8 - failed


def test_the_timeline_tells_the_starts_in_order_and_a_warm_up_that_was_not_flat() -> None:
    comparison = reviewed()
    start = comparison.starts[0]
    uneven = start.model_copy(update={"warm_up": start.warm_up.model_copy(update={"flat": False})})
    changed = comparison.model_copy(update={"starts": (uneven, *comparison.starts[1:])})
    texts = list_texts(find_drawings(render_comparison_html(changed))[-1])
    assert [text for text in texts if text in ("plain", "drafted")] == [
        {"A": "plain", "B": "drafted"}[arm] for arm in "ABBAABBA"
    ]
    assert texts.count("not flat") == 1
    assert "1 of 4 warm-ups did not become stable" in render_comparison_text(changed)


def test_a_start_that_answered_nothing_keeps_its_place() -> None:
    comparison = reviewed()
    silent = Start(**(dict(comparison.starts[1]) | {"samples": (), "loads": ()}))
    starts = (comparison.starts[0], silent, *comparison.starts[2:])
    timeline = find_drawings(
        render_comparison_html(comparison.model_copy(update={"starts": starts}))
    )[-1]
    rows = timeline.findall("g")
    assert [len(row.findall("g")) for row in rows] == [4, 0, 4, 4, 4, 4, 4, 4]


def test_tasks_are_shown_by_wall_time_and_turn_by_turn() -> None:
    shown = render_comparison_text(make_comparison(tasks=True)) + "\n"
    assert shown == read_snapshot("comparison-tasks.txt", shown)
    loaded = Comparison.model_validate_json(make_comparison(tasks=True).to_json())
    page = render_comparison_html(loaded)
    titles = [drawing.findtext("title") or "" for drawing in find_drawings(page)]
    for kind in ("agent-2k", "agent-8k"):
        assert f"{kind}: first token, concurrency 1" in titles
    assert "Wall time per task, as a ratio" in page
    assert "first token by turn" not in render_comparison_html(make_comparison())


def test_several_arms_are_shown_as_reviewed() -> None:
    shown = (
        render_comparison_text(make_comparison(ARMS, kinds=("code", "prose"), concurrencies=(1, 8)))
        + "\n"
    )
    assert shown == read_snapshot("comparison-arms.txt", shown)


def test_the_grid_names_the_winner_of_each_place_with_its_ratio_and_interval() -> None:
    comparison = make_comparison(ARMS)
    panels = find_drawings(render_comparison_html(comparison))[:3]
    for load, panel in zip((1, 4, 8), panels, strict=True):
        texts = " ".join(list_texts(panel))
        for place in comparison.verdict.places:
            if place.concurrency == load:
                assert " or ".join(place.contenders) in texts
                if place.speed_up:
                    assert f"{place.speed_up.ratio:.2f}" in texts
                    assert f"{place.speed_up.low:.2f} \N{EN DASH}" in texts


def test_a_place_that_is_open_has_the_colours_of_all_contenders() -> None:
    comparison = make_comparison(ARMS)
    letters = dict(zip(comparison.verdict.arms, "abcd", strict=True))
    panels = find_drawings(render_comparison_html(comparison))[:3]
    bars = [
        (part.get("class") or "")[4:]
        for panel in panels
        for part in panel.iter("rect")
        if (part.get("class") or "").startswith("bar")
    ]
    places = sorted(comparison.verdict.places, key=lambda place: place.concurrency)
    assert bars == [letters[arm] for place in places for arm in place.contenders]
    assert any(len(place.contenders) > 1 for place in places)


def test_every_arm_has_a_row_for_each_kind_and_a_line_in_each_panel() -> None:
    comparison = make_comparison(ARMS, kinds=("code", "prose"), concurrencies=(1, 8))
    drawings = find_drawings(render_comparison_html(comparison))
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
