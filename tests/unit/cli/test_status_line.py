"""A terminal shows what goes on, how far it is and how long it will take; a log gets lines only."""

import io
from contextlib import suppress
from threading import Event

import pytest

from slipstream.cli import screen as status_line
from slipstream.cli.main import run
from slipstream.cli.planning import plan
from slipstream.cli.screen import Screen, StatusLine, Work


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def line(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> StatusLine:
    """Return a line that only the test draws."""
    monkeypatch.setattr(status_line, "REDRAW_SECONDS", 3600.0)
    monkeypatch.setattr(StatusLine, "_redraw", lambda self: None)
    return StatusLine(Terminal(), clock)


def read(line: StatusLine) -> str:
    stream = line._stream
    assert isinstance(stream, Terminal)
    return stream.getvalue()


def test_work_without_a_count_shows_its_time() -> None:
    work = Work("starting the engine", 100.0)
    assert work.describe(112.0).endswith(" starting the engine (12 s)")
    assert work.describe(400.0).endswith(" starting the engine (5 min)")


def test_work_with_a_count_shows_rate_and_remaining_time() -> None:
    work = Work("code, concurrency 4", 100.0, 6, 24, "requests")
    shown = work.describe(103.0)
    assert shown.startswith("[" + "#" * 6 + " " * 18 + "] ")
    assert shown.endswith("code, concurrency 4: 6 of 24 requests, 2/s, 9 s left")


def test_nothing_is_drawn_while_lines_come_or_no_work_goes_on(
    line: StatusLine, clock: Clock
) -> None:
    clock.now = 60.0
    line.draw()
    line.begin("measuring")
    line.print("warming up")
    line.draw()
    assert read(line) == "warming up\n"
    clock.now += status_line.SILENT_SECONDS
    line.draw()
    assert "warming up (1 s)\033[K" in read(line)


def test_a_line_comes_in_the_place_of_what_was_drawn(line: StatusLine, clock: Clock) -> None:
    line.begin("measuring")
    clock.now = 5.0
    line.draw()
    drawn = read(line)
    line.print("code: 50 tokens/s")
    assert read(line) == f"{drawn}\r\033[Kcode: 50 tokens/s\n"


def test_the_rate_is_that_of_one_load(line: StatusLine, clock: Clock) -> None:
    line.begin("measuring")
    clock.now = 100.0
    line.count("code", 0, 10, "requests")
    clock.now = 110.0
    line.count("code", 5, 10, "requests")
    line.draw()
    assert "code: 5 of 10 requests, 0.5/s, 10 s left" in read(line)
    line.count("prose", 0, 10, "requests")
    line.draw()
    assert read(line).endswith("prose: 0 of 10 requests\033[K")


def test_after_the_work_nothing_is_left_of_it(line: StatusLine, clock: Clock) -> None:
    screen = Screen(io.StringIO(), Terminal(), status=line)
    with suppress(ZeroDivisionError), screen.busy("dividing"):
        clock.now = 5.0
        line.draw()
        raise ZeroDivisionError
    assert read(line).endswith("\r\033[K")
    line.draw()
    assert read(line).endswith("\r\033[K")


def test_a_verb_that_takes_long_says_so_on_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn = Event()

    class Screened(Terminal):
        def write(self, text: str) -> int:
            if "planning (" in text:
                drawn.set()
            return super().write(text)

    def wait_for_line(name: str | None) -> None:
        assert drawn.wait(10)
        raise ZeroDivisionError(name)

    monkeypatch.setattr(status_line, "SILENT_SECONDS", 0.0)
    monkeypatch.setattr(status_line, "REDRAW_SECONDS", 0.01)
    monkeypatch.setattr(plan, "find_host", wait_for_line)
    terminal = Screened()
    monkeypatch.setattr("sys.stderr", terminal)
    assert run(["plan", "a/model"], {}) == 70
    assert "\r\033[K" in terminal.getvalue()
    log = io.StringIO()
    monkeypatch.setattr("sys.stderr", log)
    assert run(["plan", "a/model"], {}) == 70
    assert "\033" not in log.getvalue()
