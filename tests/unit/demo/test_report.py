"""A demo's outcome in words and as a page, with what it cannot tell."""

from slipstream.reporting.demo_report import render_demo_html
from slipstream.reporting.demo_text import describe_demo, render_demo_text
from tests.snapshots import read_snapshot
from tests.unit.demo.pieces import TEXT, make_demo
from tests.unit.reporting.pages import Reader, find_drawings, list_texts


def test_the_terminal_gets_the_sentence_the_prompts_and_the_limits() -> None:
    shown = render_demo_text(make_demo(TEXT[:8] + "!" + TEXT[9:])) + "\n"
    assert shown == read_snapshot("demo.txt", shown)


def test_equal_texts_are_not_sold_as_a_proof() -> None:
    shown = render_demo_text(make_demo())
    assert "the same text for 2 prompts is no proof; `slipstream verify` is one" in shown
    assert "nearly tied" not in shown


def test_the_outcome_has_a_name() -> None:
    answers = [describe_demo(make_demo(step=step)).answer for step in (1.0, 2.8, 4.0)]
    assert answers == ["faster", "even", "slower"]


def test_the_page_draws_each_prompt_and_has_both_texts_and_every_second() -> None:
    page = render_demo_html(make_demo(TEXT[:-5]))
    drawings = find_drawings(page)
    assert len(drawings) == 2
    assert "4.5 s" in list_texts(drawings[0])
    assert [len(drawing.findall(".//path")) for drawing in drawings] == [2, 2]
    read = Reader(page)
    assert read.dangers == []
    for told in (TEXT, TEXT[:-5], "Some prose, please.", "one is longer", "9.5", "2.79"):
        assert any(told in words for words in read.words), told


def test_a_step_of_the_stairs_is_a_chunk() -> None:
    plain, drafted = find_drawings(render_demo_html(make_demo()))[1].findall(".//path")
    assert (plain.get("d") or "").count("V") == len(TEXT)
    assert (drafted.get("d") or "").count("V") == 11
