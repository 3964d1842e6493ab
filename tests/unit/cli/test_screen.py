"""What people see of errors and of long work, on a terminal and elsewhere, and machines get."""

import io
import json
from contextlib import suppress
from threading import Event

import pytest

from slipstream.cli import screen
from slipstream.cli.main import run
from slipstream.cli.planning import plan
from slipstream.cli.screen import CountedWork, Screen, StatusLine, open_screen
from slipstream.errors import InvalidInputError

ERROR = InvalidInputError(
    "recipe.toml has two faults",
    details=("target: missing", "evidence[0].date: not a date"),
    hint="slipstream models --recipe recipe.toml",
)


def render(*, as_json: bool = False, verbose: bool = False, colour: bool = False) -> str:
    output, messages = io.StringIO(), io.StringIO()
    Screen(output, messages, json=as_json, verbose=verbose, colour=colour).fail(ERROR)
    assert output.getvalue() == ""
    return messages.getvalue()


def test_an_error_is_a_fact_its_details_and_a_hint() -> None:
    assert render() == (
        "error: recipe.toml has two faults\n"
        "  - target: missing\n"
        "  - evidence[0].date: not a date\n"
        "\n"
        "hint: slipstream models --recipe recipe.toml\n"
    )


def test_colour_touches_only_the_labels() -> None:
    coloured = render(colour=True)
    assert "\033[1;31merror:\033[0m recipe.toml" in coloured
    assert "\033[36mhint:\033[0m slipstream" in coloured
    plain = coloured
    for code in ("\033[1;31m", "\033[36m", "\033[0m"):
        plain = plain.replace(code, "")
    assert plain == render()


def test_a_machine_gets_the_error_as_one_document() -> None:
    assert json.loads(render(as_json=True)) == {
        "error": {
            "kind": "InvalidInputError",
            "message": "recipe.toml has two faults",
            "details": ["target: missing", "evidence[0].date: not a date"],
            "hint": "slipstream models --recipe recipe.toml",
            "exit_code": 1,
        }
    }


def test_a_traceback_comes_only_when_asked_for() -> None:
    assert "InvalidInputError" not in render()
    assert "InvalidInputError" in render(verbose=True)


def test_a_warning_is_for_people_only() -> None:
    for as_json, shown in ((False, "warning: recipe.toml"), (True, "")):
        messages = io.StringIO()
        Screen(io.StringIO(), messages, json=as_json).warn(ERROR)
        assert messages.getvalue().startswith(shown)
        assert bool(messages.getvalue()) is not as_json


def test_progress_is_a_line_for_people_and_never_among_the_data() -> None:
    for as_json, shown in ((False, "training: step 5\ntraining: step 6\n"), (True, "")):
        output, messages = io.StringIO(), io.StringIO()
        shown_to = Screen(output, messages, json=as_json, colour=True)
        for step in (5, 6):
            shown_to.show_progress(f"training: step {step}")
        assert (output.getvalue(), messages.getvalue()) == ("", shown)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("environment", "colour"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)],
)
def test_a_terminal_has_colour_unless_told_otherwise(
    environment: dict[str, str], colour: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr", Terminal())
    assert open_screen(environment, as_json=False, verbose=False).colour is colour


def test_a_pipe_has_no_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", io.StringIO())
    assert open_screen({}, as_json=False, verbose=False).colour is False


def test_a_line_is_rewritten_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    messages = io.StringIO()
    shown = Screen(io.StringIO(), messages)
    assert not shown.live
    monkeypatch.setattr(messages, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "20")
    assert shown.live
    shown.draw("x" * 40)
    assert messages.getvalue() == f"\r{'x' * 19}\033[K"


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
    monkeypatch.setattr(screen, "REDRAW_SECONDS", 3600.0)
    monkeypatch.setattr(StatusLine, "_redraw", lambda self: None)
    return StatusLine(Terminal(), clock)


def read(line: StatusLine) -> str:
    stream = line._stream
    assert isinstance(stream, Terminal)
    return stream.getvalue()


def test_work_without_a_count_shows_its_time() -> None:
    work = CountedWork("starting the engine", 100.0)
    assert work.describe(112.0).endswith(" starting the engine (12 s)")
    assert work.describe(400.0).endswith(" starting the engine (5 min)")


def test_work_with_a_count_shows_rate_and_remaining_time() -> None:
    work = CountedWork("code, concurrency 4", 100.0, 6, 24, "requests")
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
    clock.now += screen.SILENT_SECONDS
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
    shown = Screen(io.StringIO(), Terminal(), status=line)
    with suppress(ZeroDivisionError), shown.busy("dividing"):
        clock.now = 5.0
        line.draw()
        raise ZeroDivisionError
    assert read(line).endswith("\r\033[K")
    line.draw()
    assert read(line).endswith("\r\033[K")


def test_a_verb_that_takes_long_says_so_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = Event()

    class Screened(Terminal):
        def write(self, text: str) -> int:
            if "planning (" in text:
                drawn.set()
            return super().write(text)

    def wait_for_line(name: str | None) -> None:
        assert drawn.wait(10)
        raise ZeroDivisionError(name)

    monkeypatch.setattr(screen, "SILENT_SECONDS", 0.0)
    monkeypatch.setattr(screen, "REDRAW_SECONDS", 0.01)
    monkeypatch.setattr(plan, "find_host", wait_for_line)
    terminal = Screened()
    monkeypatch.setattr("sys.stderr", terminal)
    assert run(["plan", "a/model"], {}) == 70
    assert "\r\033[K" in terminal.getvalue()
    log = io.StringIO()
    monkeypatch.setattr("sys.stderr", log)
    assert run(["plan", "a/model"], {}) == 70
    assert "\033" not in log.getvalue()
