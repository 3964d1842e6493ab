"""All machines are on the screen at a time: redrawn on a terminal, a line per change elsewhere."""

import io

import pytest

from slipstream.cli.fleet import Board
from slipstream.cli.screen import Screen
from tests.unit.cli.test_screen import Terminal


def test_a_log_gets_a_line_for_every_change_and_none_for_the_same_again() -> None:
    messages = io.StringIO()
    board = Board(Screen(io.StringIO(), messages), ["one", "three"])
    for state in ("starting", "starting", "ready"):
        board.show("one", state, "now")
    assert messages.getvalue().splitlines() == [
        "one    starting     now",
        "one    ready        now",
    ]


def test_a_terminal_shows_every_machine_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("LINES", "24")
    monkeypatch.setenv("COLUMNS", "80")
    messages = Terminal()
    board = Board(Screen(io.StringIO(), messages), ["one", "two"])
    board.show("two", "starting", "x" * 200)
    board.show("one", "ready", "now")
    drawn = messages.getvalue()
    assert drawn.count("\033[2A") == 1
    last = drawn.rpartition("\033[2A")[2].split("\n")
    assert last[0].startswith("\rone  ready")
    assert last[1].startswith("\rtwo  starting")
    assert all(len(line) < 90 for line in last)
