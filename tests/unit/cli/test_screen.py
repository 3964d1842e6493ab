"""What people see of errors, in colour and without, and what machines get."""

import io
import json

import pytest

from slipstream.cli.screen import Screen, open_screen
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
        screen = Screen(output, messages, json=as_json, colour=True)
        screen.show_progress("training: step 5")
        screen.show_progress("training: step 6")
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
