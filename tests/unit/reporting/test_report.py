"""A report says the same on the terminal, as Markdown and as a page, whoever wrote its texts."""

from collections.abc import Callable

import pytest

from slipstream.reporting.html_page import render_page
from slipstream.reporting.report import Report, Section, Table, render_markdown, render_text
from tests.unit.reporting.page_reading import Reader, parse

HOSTILE = '</title><script>alert("x")</script><img src=x onerror=y>|`*\x1b[31m\u202e\n&amp;'
RENDERERS = (render_text, render_markdown, lambda report: render_page(report, []))


def make_report(*sections: Section, word: str = "word") -> Report:
    return Report(f"{word} title", "use", f"{word} sentence.", sections, "1.5", f"{word} 2", word)


@pytest.mark.parametrize("render", RENDERERS)
def test_every_part_is_shown(render: Callable[[Report], str]) -> None:
    table = Table(("kind", "speed"), [("code", "61.6"), ("prose", "26.7")])
    shown = render(make_report(Section("my part", table, ["a line"], "a command"), word="my"))
    for part in ("my sentence.", "my part", "code", "61.6", "26.7", "a line", "a command"):
        assert part in shown
    assert shown.index("my sentence.") < shown.rindex("my part")


@pytest.mark.parametrize("render", RENDERERS)
def test_hostile_texts_are_only_text(render: Callable[[Report], str]) -> None:
    table = Table((HOSTILE, "b"), [(HOSTILE, HOSTILE)])
    shown = render(make_report(Section(HOSTILE, table, [HOSTILE], HOSTILE), word=HOSTILE))
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    if shown.startswith("<!DOCTYPE"):
        read = Reader(shown)
        assert (read.dangers, parse(shown).tag) == ([], "html")
        assert not {"script", "img"} & set(read.tags)
        assert any('<script>alert("x")' in text for text in read.words)
    elif shown.startswith("# "):
        assert "<script>" not in shown.replace("\\<script\\>", "").split("```")[0]
        assert [line.count(" | ") for line in shown.splitlines() if line.startswith("| ---")] == [1]


def test_the_page_has_its_answer_first_and_folds_what_is_long() -> None:
    page = parse(render_page(make_report(Section("a"), Section("b", code="x", in_full=True)), []))
    heading = page.find(".//h1")
    assert heading is not None
    assert "".join(heading.itertext()) == "useword sentence."
    assert ["".join(one.itertext()) for one in page.findall(".//details/summary")] == ["b"]


def test_figures_are_aligned_right_and_words_left() -> None:
    table = Table(("kind", "tokens/s", "outcome"), [("a", "9.0", "even"), ("bcdef", "10.0", "x")])
    shown = render_text(make_report(Section("part", Table(*(table.header, table.rows), (0, 2)))))
    assert shown.splitlines()[3:] == [
        "  KIND   TOKENS/S  OUTCOME",
        "  a           9.0  even",
        "  bcdef      10.0  x",
    ]


def test_a_section_in_full_is_not_for_the_terminal() -> None:
    report = make_report(Section("part", code="vllm serve", in_full=True))
    assert render_text(report) == "word sentence."
    assert "vllm serve" in render_markdown(report)


def test_a_fence_is_longer_than_any_within() -> None:
    shown = render_markdown(make_report(Section("part", code="a ```` b")))
    assert "\n`````\na ```` b\n`````\n" in shown
