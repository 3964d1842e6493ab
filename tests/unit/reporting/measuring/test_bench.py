"""A server's figures on the terminal, as Markdown and as a page."""

from typing import Any

import pytest

from slipstream.measuring.bench import BenchReport
from slipstream.measuring.tasks import TaskFigures
from slipstream.reporting.measuring.bench import (
    describe_bench,
    render_bench_html,
    render_cell_line,
)
from slipstream.reporting.report import render_text
from tests.snapshots import read_snapshot
from tests.unit.reporting.page_reading import Reader, find_drawings, list_texts, parse
from tests.unit.reporting.records import BUSY, make_bench


def render_bench_text(report: BenchReport) -> str:
    return render_text(describe_bench(report))


def change_cells(report: BenchReport, **changes: Any) -> BenchReport:
    cells = tuple(cell.model_copy(update=changes) for cell in report.cells)
    return report.model_copy(update={"cells": cells})


def test_a_bench_is_shown_as_reviewed() -> None:
    shown = render_bench_text(make_bench(failing=0.04)) + "\n"
    assert shown == read_snapshot("bench.txt", shown)


def test_p99_is_shown_from_a_hundred_requests_on() -> None:
    counts = []
    for prompts in (99, 100):
        report = describe_bench(make_bench(kinds=("code",), concurrencies=(1,), prompts=prompts))
        assert report.sections[0].table is not None
        counts.append(report.sections[0].table.rows[0][5].count("/"))
    assert counts == [2, 3]


def test_kinds_that_arrive_by_the_clock_are_one_load_with_their_own_concurrencies() -> None:
    report = make_bench(kinds=("code", "prose"), concurrencies=(1,))
    code, prose = report.cells
    conditions = report.conditions.model_copy(update={"arrivals_per_second": 2.5})
    cells = (code, prose.model_copy(update={"concurrency": 7}))
    described = describe_bench(report.model_copy(update={"conditions": conditions, "cells": cells}))
    speed = (code.output_tokens + prose.output_tokens) / (code.seconds + prose.seconds)
    place = "at 2.5 requests per second, with up to 7 in flight"
    assert f"reaches {speed:.1f} tokens/s {place} over all kinds." in described.sentence


def test_a_strange_server_of_which_little_is_known_is_still_shown() -> None:
    report = change_cells(
        make_bench(),
        first_token=None,
        per_token=None,
        total=None,
        tokens_per_step=None,
        acceptance_rate=None,
        by_position=(),
        memory_bytes=None,
    )
    nothing: dict[str, Any] = {"plan": None, "host": None, "versions": {}, "start_seconds": None}
    conditions = report.conditions.model_copy(update={**nothing, "max_tokens": None})
    warm = report.warm_up.model_copy(update={"rounds": 0, "seconds_per_token": (), "flat": False})
    shown = render_bench_html(report.model_copy(update={"conditions": conditions, "warm_up": warm}))
    assert shown.count("unknown") >= 9 * len(report.cells) + 3
    assert "None" not in shown


def test_a_report_without_cells_says_so() -> None:
    empty = make_bench().model_copy(update={"cells": (), "samples": ()})
    assert "Nothing was measured." in render_bench_html(empty)


def test_where_every_request_failed_the_speed_is_zero() -> None:
    report = make_bench(failing=1.0)
    assert "96 of 96 requests failed" in render_bench_text(report)
    panels = find_drawings(render_bench_html(report))
    assert {text for text in list_texts(panels[0]) if text.startswith("0")} == {"0.0"}
    assert "unknown" in list_texts(panels[4])


def test_a_page_is_well_formed_asks_nobody_and_needs_no_key() -> None:
    page = render_bench_html(make_bench())
    assert parse(page).findall(".//span[@class='key value b']") == []
    assert Reader(page).dangers == []
    assert len(find_drawings(page)) == 4 * 4 + 1


def test_a_server_without_drafts_has_no_chart_of_them() -> None:
    page = render_bench_html(change_cells(make_bench(), tokens_per_step=None, by_position=()))
    assert len(find_drawings(page)) == 3 * 4 + 1


def test_concurrency_has_a_logarithmic_axis() -> None:
    panel = find_drawings(render_bench_html(make_bench(concurrencies=(1, 4, 16))))[0]
    dots = [float(dot.get("cx", "")) for dot in panel.iter("circle")]
    assert dots[1] - dots[0] == pytest.approx(dots[2] - dots[1])


def test_a_cell_is_a_line_while_it_is_measured() -> None:
    cell = make_bench().cells[4].model_copy(update={"failed": 2})
    assert render_cell_line(cell) == (
        "code         concurrency 4      151.3 tokens/s  first token   211 ms"
        "  then  24.0 ms per token  5.96 tokens per step  2 of 8 failed"
    )


def test_a_cell_with_nothing_but_failures_is_a_line_too() -> None:
    none = {"first_token": None, "per_token": None, "tokens_per_step": None, "kind": "\x1b[2J"}
    line = render_cell_line(make_bench().cells[0].model_copy(update={**none, "failed": 8}))
    assert line.count("unknown") == 2
    assert line.endswith("8 of 8 failed")
    assert line.isprintable()


def test_figures_from_a_busy_machine_say_so_first() -> None:
    report = describe_bench(make_bench().model_copy(update={"machine": BUSY}))
    assert report.answer == "cannot tell"
    assert report.sentence.startswith(
        "The machine was busy: other processes used 0.9 of 2 cores, most of it ffmpeg. Meanwhile, "
    )
    quiet = BUSY.model_copy(update={"other_cpu_share": 0.01})
    told = render_bench_text(make_bench().model_copy(update={"machine": quiet}))
    assert "quiet: other processes used 0.02 of 2 cores" in told


def test_the_tasks_of_a_server_are_shown_with_their_turns_cache_and_calls() -> None:
    shown = render_bench_text(make_bench(tasks=True))
    assert "over all kinds; wall time per task: agent-2k 7.9 s, agent-8k 9.4 s." in shown
    assert "32 of 32 parsed" in shown
    assert "each call is requested by its tool's name" in shown
    assert "agent-8k" in render_bench_html(make_bench(tasks=True))
    rows = [line.split() for line in shown.splitlines()]
    cached = [row[-2:] for row in rows if row[:2] == ["agent-2k", "1"]]
    assert ["80", "%"] in cached
    assert ["0", "%"] in cached


def test_tasks_that_all_failed_are_shown_without_turns() -> None:
    tasks = TaskFigures(tasks=8, failed=8, seconds=None, cached_share=None, calls={}, turns=())
    shown = render_bench_html(
        change_cells(make_bench(tasks=True), tasks=tasks, cache_hit_share=None)
    )
    assert "not requested" in shown
    assert "wall time per task: agent-2k unknown, agent-8k unknown" in shown
