"""A help is printed by few modules, and is the same as with all of them."""

import os
import subprocess
import sys

import pytest

from slipstream.cli.arguments import PUBLIC_VERBS, load_verb, make_verb_parser
from slipstream.cli.quick_help import asks_for_help

MOST_MODULES = 40
CODE = """
import sys
from slipstream.cli.main import run_and_exit
sys.argv[0] = "slipstream"
try:
    run_and_exit()
finally:
    named = [name for name, module in sys.modules.items() if getattr(module, "__file__", None)]
    print(*named, file=sys.stderr)
"""


@pytest.mark.parametrize("name", PUBLIC_VERBS)
def test_a_help_needs_few_modules_and_is_whole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    words = [sys.executable, "-c", CODE, *name.split(), "--help"]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ})
    assert done.stdout == make_verb_parser(name, load_verb(name)).format_help()
    loaded = done.stderr.split()
    assert "pydantic" not in loaded
    assert 5 < sum(module.startswith("slipstream") for module in loaded) < MOST_MODULES


@pytest.mark.parametrize(
    ("words", "asks"),
    [
        ("plan --help", True),
        ("plan M -h", True),
        ("help plan", True),
        ("plan M", False),
        ("connect claude --launch -- --help", False),
        ("", False),
    ],
)
def test_only_a_help_is_printed_with_stand_ins(words: str, asks: bool) -> None:
    assert asks_for_help(words.split()) is asks
