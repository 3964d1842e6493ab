"""What people read fits into 80 columns of a terminal; commands stay whole, to be pasted."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slipstream.cli.arguments import PUBLIC_VERBS, load_verb, make_verb_parser
from slipstream.cli.main import run
from slipstream.cli.screen import wrap

Capture = pytest.CaptureFixture[str]
Show = Callable[[str], tuple[str, str]]
WIDTH = 80
OUTPUTS = (
    "models",
    "models --host gb10",
    "models --recipe gemma-4-31b-it-b300",
    "models Qwen/Qwen3-8B",
    "plan google/gemma-4-31B-it --host gb10 --explain",
    "plan Intel/Qwen3.5-35B-A3B-int4-AutoRound --host gb10",
    "plan Qwen/Qwen3-8B --host apple-laptop",
    "plan Qwen/Qwen3-32B --host cpu-server",
    "probe --host h100",
    "status",
    "keys list",
    "connect",
    "config",
    "fleet",
)


@pytest.fixture
def show(capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Show:
    """Return what runs a command on a terminal, and returns what it prints."""

    def run_there(words: str) -> tuple[str, str]:
        for stream in (sys.stdout, sys.stderr):
            monkeypatch.setattr(stream, "isatty", lambda: True)
        run(words.split(), os.environ)
        shown = capsys.readouterr()
        return shown.out, shown.err

    monkeypatch.setenv("COLUMNS", str(WIDTH))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("TERM", "dumb")
    return run_there


def find_wide(text: str) -> Iterator[str]:
    """Return the lines that a terminal would break, but for commands and words without a blank."""
    continued = False
    for line in text.splitlines():
        words = line.split()
        command = continued or any(
            line.strip().startswith(start)
            for start in ("slipstream ", "hint: slipstream ", "python ")
        )
        continued = line.endswith("\\")
        if len(line) > WIDTH and len(words) > 1 and not (command or continued):
            yield line


@pytest.mark.parametrize("name", PUBLIC_VERBS)
def test_a_help_fits(name: str) -> None:
    assert list(find_wide(make_verb_parser(name, load_verb(name)).format_help())) == []


@pytest.mark.parametrize("words", OUTPUTS)
def test_an_output_fits(words: str, show: Show) -> None:
    output, messages = show(words)
    assert output
    assert list(find_wide(output + messages)) == []


@pytest.mark.parametrize("words", ["plan M --host no-such-machine", "connect nothing", "swap"])
def test_an_error_fits(words: str, show: Show) -> None:
    output, messages = show(words)
    assert output == ""
    assert "\nhint: " in messages
    assert list(find_wide(messages)) == []


def test_the_rest_of_a_line_stands_below_its_column() -> None:
    assert wrap("memory  12 GiB are left to the system", 32) == (
        "memory  12 GiB are left to the\n        system"
    )
    assert wrap("note: one two three", 12) == "note: one\n  two three"
    assert wrap("  # one two three", 12) == "  # one two\n  # three"


def test_a_command_is_not_broken() -> None:
    for line in (
        "slipstream plan one two",
        "hint: slipstream plan one",
        "A=1 \\\nrun one two three",
    ):
        assert wrap(line, 12) == line
