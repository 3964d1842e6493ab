"""A comparison on the terminal, as Markdown and as a page."""

from typing import Any

import pytest

from slipstream.measuring.comparing.cautions import Caution
from slipstream.measuring.comparing.comparison import Comparison
from slipstream.measuring.comparing.verdict import BreakEven, SpeedFinding, SpeedRatio, Verdict
from slipstream.reporting.pages.comparison import render_comparison_html
from slipstream.reporting.pages.report import render_markdown, render_text
from slipstream.reporting.text.comparison import describe_comparison
from tests.snapshots import read_snapshot
from tests.unit.reporting.pages.page_reading import Reader, find_drawings, list_texts, parse
from tests.unit.reporting.records import make_comparison


def render_comparison_text(comparison: Comparison) -> str:
    return render_text(describe_comparison(comparison))


def render_comparison_markdown(comparison: Comparison) -> str:
    return render_markdown(describe_comparison(comparison))


RENDERERS = (render_comparison_text, render_comparison_markdown, render_comparison_html)
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
VERDICT = Verdict(
    arms=("plain", "drafted"),
    blocks=8,
    findings=FINDINGS,
    break_evens=(
        BreakEven(kind="code", concurrency=None, low=6.2, high=None, largest=8),
        BreakEven(kind="prose", concurrency=0.0, low=0.0, high=1.3, largest=8),
        BreakEven(kind=None, concurrency=5.04, low=3.0, high=7.0, largest=8),
    ),
    cautions=(
        Caution(code="few-prompts", message="only 3 prompts of a kind"),
        Caution(code="silent-block", message="1 of the blocks answered nothing", grave=True),
    ),
    answer="use for some",
    more_blocks=None,
    sentence="Use drafted instead of plain for code (2.50 times as fast).",
)


def reviewed() -> Comparison:
    made = make_comparison(kinds=("code", "prose"), concurrencies=(1, 8))
    return made.model_copy(update={"verdict": VERDICT})


def change_cells(comparison: Comparison, **changes: Any) -> Comparison:
    reports = tuple(
        report.model_copy(
            update={"cells": tuple(cell.model_copy(update=changes) for cell in report.cells)}
        )
        for report in comparison.reports
    )
    return comparison.model_copy(update={"reports": reports})


def rename(comparison: Comparison, name: str) -> Comparison:
    """Call model, workload, arms, kinds and cautions by this name."""
    conditions = comparison.conditions.model_copy(
        update={"model": name, "workload": name, "command": name, "left_out": {name: name}}
    )
    caution = Caution(code="lengths", message=name)
    verdict = comparison.verdict.model_copy(
        update={
            "arms": (name, name),
            "sentence": name,
            "cautions": (caution,),
            "findings": tuple(
                found.model_copy(update={"kind": found.kind and name})
                for found in comparison.verdict.findings
            ),
        }
    )
    blocks = tuple(
        block.model_copy(
            update={
                "samples": tuple(
                    sample.model_copy(update={"kind": name, "prompt_id": name, "error": name})
                    for sample in block.samples
                )
            }
        )
        for block in comparison.blocks
    )
    arms = tuple(arm.model_copy(update={"name": name}) for arm in comparison.arms)
    changed = {"conditions": conditions, "verdict": verdict, "blocks": blocks, "arms": arms}
    return change_cells(comparison.model_copy(update=changed), kind=name)


def test_a_comparison_is_shown_as_reviewed() -> None:
    shown = render_comparison_text(reviewed()) + "\n"
    assert shown == read_snapshot("comparison.txt", shown)


def test_the_sentence_comes_first() -> None:
    comparison = reviewed()
    assert render_comparison_text(comparison).startswith(VERDICT.sentence + "\n")
    heading = parse(render_comparison_html(comparison)).find(".//h1")
    assert heading is not None
    assert "".join(heading.itertext()) == "use for some" + VERDICT.sentence


@pytest.mark.parametrize("render", RENDERERS)
def test_every_figure_of_every_finding_is_shown(render: Any) -> None:
    comparison = make_comparison()
    shown = render(comparison)
    for found in comparison.verdict.findings:
        for estimate in (found.speed_up, found.throughput):
            assert f"{estimate.ratio:.2f} ({estimate.low:.2f} to {estimate.high:.2f})" in shown
        assert f"{100 * (found.noise - 1):.1f} %" in shown


def test_the_arms_throughputs_have_the_ratio_that_was_found() -> None:
    comparison = make_comparison()
    rows = render_comparison_text(comparison).splitlines()[4:19]
    for row, found in zip(rows, comparison.verdict.findings, strict=True):
        plain, drafted = map(float, row.split(")")[1].split()[:2])
        assert drafted / plain == pytest.approx(found.throughput.ratio, rel=0.01)


@pytest.mark.parametrize("render", RENDERERS)
def test_what_is_not_known_is_called_unknown(render: Any) -> None:
    none = {"tokens_per_step": None, "by_position": (), "per_token": None, "first_token": None}
    comparison = change_cells(reviewed(), **none)
    bare = comparison.conditions.model_copy(update={"host": None, "versions": {}})
    shown = render(comparison.model_copy(update={"conditions": bare}))
    assert shown.count("unknown") >= len(FINDINGS) + 2
    assert "None" not in shown
    assert "nan" not in shown


@pytest.mark.parametrize("render", RENDERERS)
def test_an_arm_with_drafts_has_its_tokens_a_step_beside_the_others(render: Any) -> None:
    assert "a tokens/step" not in render(reviewed()).lower()
    assert "a tokens/step" in render(change_cells(reviewed(), tokens_per_step=2.5)).lower()


@pytest.mark.parametrize("render", RENDERERS)
def test_the_conditions_are_told(render: Any) -> None:
    shown = render(reviewed())
    for fact in ("5f0c" * 16, "vllm 0.32.0", "NVIDIA GB10", "2026-11-15 08:10:30 UTC", "cold"):
        assert fact in shown
    assert "slipstream compare Qwen/Qwen3-8B --rounds 2 --html page.html" in shown


@pytest.mark.parametrize("render", RENDERERS[1:])
def test_both_command_lines_and_their_differences_are_told_in_full(render: Any) -> None:
    comparison = reviewed()
    shown = render(comparison)
    assert shown.count("  --model Qwen/Qwen3-8B \\\n") == 2
    assert shown.count("--per-request-spec-decode-metrics") == 1
    assert "speculative-config.method" in shown
    plain = comparison.arms[0]
    same = comparison.model_copy(update={"arms": (plain, plain)})
    assert "the plans are the same" in render(same)


def test_a_grave_caution_is_told_from_a_light_one() -> None:
    lines = render_comparison_text(reviewed()).splitlines()
    assert "  only 3 prompts of a kind" in lines
    assert "  grave: 1 of the blocks answered nothing" in lines


def test_a_page_is_well_formed_and_asks_nobody() -> None:
    page = render_comparison_html(make_comparison())
    assert parse(page).tag == "html"
    read = Reader(page)
    assert read.dangers == []
    assert not {"script", "link", "img", "iframe", "object", "base"} & set(read.tags)


@pytest.mark.parametrize("render", RENDERERS)
def test_hostile_names_are_only_text(render: Any) -> None:
    shown = render(rename(reviewed(), HOSTILE))
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    if render is render_comparison_html:
        read = Reader(shown)
        assert read.dangers == []
        assert not {"script", "img"} & set(read.tags)
        assert read.tags == Reader(render(rename(reviewed(), "harmless"))).tags
        assert any('<script>alert("x")' in text for text in read.words)
        assert parse(shown).tag == "html"
    if render is render_comparison_markdown:
        assert "<script>" not in shown.replace("\\<script\\>", "").split("```")[0]
        widths = {line.count(" | ") for line in shown.splitlines() if line.startswith("| ---")}
        assert widths <= {1, 3, 8}


def test_every_drawing_tells_its_figures_in_words() -> None:
    drawings = find_drawings(render_comparison_html(reviewed()))
    told = [(drawing.findtext("title"), drawing.findtext("desc")) for drawing in drawings]
    assert all(title and text for title, text in told)
    assert told[0] == (
        "Speed-up, concurrency 1",
        "code 2.50 (2.25 to 2.75), faster; prose 1.00 (0.90 to 1.10), even; "
        "all kinds 1.60 (1.44 to 1.76), faster",
    )


def test_speed_ups_have_a_panel_a_concurrency_and_the_rest_a_panel_a_kind() -> None:
    titles = [
        drawing.findtext("title") for drawing in find_drawings(render_comparison_html(reviewed()))
    ]
    assert titles == [
        "Speed-up, concurrency 1",
        "Speed-up, concurrency 8",
        *(
            f"{kind}: {what}"
            for what in (
                "throughput, tokens/s",
                "time per token, ms",
                "time to the first token, ms",
                "accepted up to each position",
            )
            for kind in ("code", "prose")
        ),
        "The run, start by start",
    ]


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


def test_intervals_beyond_any_axis_stay_in_their_panel() -> None:
    wild = SpeedFinding(
        kind="code",
        concurrency=1,
        prompts=2,
        speed_up=SpeedRatio(ratio=40.0, low=1e-9, high=1e9),
        throughput=SpeedRatio(ratio=1.0, low=0.1, high=10.0),
        noise=1e6,
        outcome="unclear",
    )
    verdict = VERDICT.model_copy(update={"findings": (wild,), "break_evens": ()})
    page = render_comparison_html(reviewed().model_copy(update={"verdict": verdict}))
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


def test_failed_requests_are_crosses_and_are_counted() -> None:
    comparison = make_comparison(failing=0.06, rounds=1)
    failed = sum(sample.error is not None for b in comparison.blocks for sample in b.samples)
    timeline = find_drawings(render_comparison_html(comparison))[-1]
    crosses = [p.get("d") or "" for p in timeline.iter("path") if p.get("class") == "fail"]
    assert failed > 5
    assert sum(path.count("l6 6") for path in crosses) == failed
    requests = [p.get("d") or "" for p in timeline.iter("path") if "request" in str(p.attrib)]
    assert sum(path.count("h") for path in requests) == 4 * 4 * 3 * 8 - failed


def test_the_timeline_tells_the_starts_in_order_and_a_warm_up_that_was_not_flat() -> None:
    comparison = reviewed()
    report = comparison.reports[0]
    uneven = report.model_copy(
        update={"warm_up": report.warm_up.model_copy(update={"flat": False})}
    )
    changed = comparison.model_copy(update={"reports": (uneven, *comparison.reports[1:])})
    texts = list_texts(find_drawings(render_comparison_html(changed))[-1])
    assert [text for text in texts if text in ("plain", "drafted")] == [
        {"A": "plain", "B": "drafted"}[arm] for arm in "ABBAABBA"
    ]
    assert texts.count("not flat") == 1
    assert "1 of 4 warm-ups did not become stable" in render_comparison_text(changed)


def test_a_page_of_a_long_run_stays_small() -> None:
    assert len(render_comparison_html(make_comparison())) < 150_000


def test_a_start_that_answered_nothing_keeps_its_place() -> None:
    comparison = reviewed()
    silent = comparison.blocks[1].model_copy(update={"samples": ()})
    blocks = (comparison.blocks[0], silent, *comparison.blocks[2:])
    timeline = find_drawings(
        render_comparison_html(comparison.model_copy(update={"blocks": blocks}))
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
