"""`scripts/record-demo`: the picture shows what the terminal did, when it did."""

import re
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "record-demo"
it: Any = SimpleNamespace(**runpy.run_path(str(SCRIPT)))
SVG = "{http://www.w3.org/2000/svg}"


def events(*told: tuple[float, str]) -> list[Any]:
    return [it.Event(*one) for one in told]


def replay(*told: tuple[float, str]) -> Any:
    terminal = it.Terminal()
    for event in events(*told):
        terminal.feed(event)
    terminal.end()
    return terminal


def see(terminal: Any, now: float) -> list[str]:
    """Return the lines that are seen at a time, as a terminal would show them."""
    signs = {
        (span.row, span.column): span.sign
        for span in terminal.spans
        if span.begin <= now and (span.end is None or now < span.end)
    }
    rows = range(max((row for row, _ in signs), default=-1) + 1)
    return ["".join(signs.get((row, at), " ") for at in range(100)).rstrip() for row in rows]


def test_a_terminal_writes_moves_and_erases_as_told() -> None:
    told = ((0, "one\r\ntwo\r\n"), (1, "\033[2AONE more\033[K\r\n"), (2, "t\033[K\r\n\033[1mx"))
    terminal = replay(*told)
    assert see(terminal, 0.5) == ["one", "two"]
    assert see(terminal, 1.5) == ["ONE more", "two"]
    assert see(terminal, 2.5) == ["ONE more", "t", "x"]
    assert [span.style for span in terminal.spans if span.sign == "x"] == ["b"]


def test_a_sign_that_is_written_again_stays_one() -> None:
    terminal = replay((0, "same\n"), (1, "\033[1Asame\n"), (2, "\033[1Asome\n"))
    ends = {span.sign: span.end for span in terminal.spans if span.row == 0}
    assert ends == {"s": None, "a": 2.0, "m": None, "e": None, "o": None}


def test_a_long_line_goes_on_below_and_a_full_sheet_scrolls() -> None:
    assert see(replay((0, "x" * 101)), 1) == ["x" * 100, "x"]
    assert replay((0, "\n" * 29), (3, "\n\n")).tops == {0.0: 0, 3.0: 2}


def test_an_unknown_sequence_is_a_fault() -> None:
    with pytest.raises(ValueError, match=r"unknown: '\\x1b\[2J"):
        replay((0, "fine\033[2J"))


def test_waits_are_shortened_and_marked_but_frames_come_when_they_came() -> None:
    kept, shortened = it.squeeze(
        events((0, "$\n"), (10, "\r 1 s"), (20, "\r 2 s\n"), (21, "frame\n"), (31, "\033[1Anext\n"))
    )
    assert [event.seconds for event in kept] == pytest.approx([0, 0.75, 1.5, 2.5, 12.5])
    assert shortened == [(0, 1.5)]


def test_each_wait_is_shortened_for_itself() -> None:
    told = ((0, "$\n"), (10, "\r 1 s"), (20, "\r 2 s\n"), (21, "\r 1 s"), (40, "\r 20 s\n"))
    kept, shortened = it.squeeze(events(*told))
    assert [event.seconds for event in kept] == pytest.approx([0, 0.75, 1.5, 1.575, 3])
    assert shortened == [(0, 1.5), (1.5, 3)]


def test_a_wait_that_nobody_counts_is_shortened_too() -> None:
    kept, shortened = it.squeeze(events((0, "a"), (1, "b"), (61, "c"), (62, "d")))
    assert [event.seconds for event in kept] == pytest.approx([0, 1, 2.5, 3.5])
    assert shortened == [(1, 2.5)]


def test_the_picture_is_sound_and_shows_each_text_in_its_time() -> None:
    picture = it.draw(
        events((0, "$ <demo>\n"), (2, "\033[32mgreen\033[0m end\n"), (4, "\033[1Agr\033[K\n"))
    )
    root = ElementTree.fromstring(picture)
    texts = {text.text: text.get("class") or "" for text in root.iter(f"{SVG}text")}
    assert texts["$ <demo>"] == ""
    assert texts["gr"].startswith("t")
    style = root.findtext(f"{SVG}style") or ""
    kind, name = texts["green"].split()
    assert kind == "g"
    frames = re.search(rf"@keyframes {name}{{(.*?)}}}}", style)
    assert frames is not None
    assert re.findall(r"([\d.]+)%{visibility:(\w+)", frames[0]) == [
        ("0", "hidden"),
        ("15.79", "visible"),
        ("36.84", "hidden"),
    ]


def test_folders_of_this_machine_are_found() -> None:
    assert it.find_paths("written: slipstream-demo.html") == []
    assert it.find_paths(f"written: {Path.home()}/x") != []
