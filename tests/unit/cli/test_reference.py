"""docs/reference.md is what the command says of itself."""

from importlib import import_module
from pathlib import Path

import pytest

from slipstream.cli.arguments import (
    VERBS,
    make_root_parser,
    make_verb_parser,
    parse_arguments,
)
from tests.docs.documents import Block, find_commands
from tests.snapshots import read_snapshot

DOCS = Path(__file__).parents[3] / "docs"


def test_the_reference_is_the_commands_own_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    parts = ["# Reference", "Written by the command itself and checked by a test."]
    parsers = [make_root_parser()]
    parsers += [make_verb_parser(name, import_module(f"slipstream.cli.{name}")) for name in VERBS]
    for parser in parsers:
        parts.append(f"## {parser.prog}\n\n```\n{parser.format_help().rstrip()}\n```")
    shown = "\n\n".join(parts) + "\n"
    assert shown == read_snapshot("reference.md", shown, DOCS)


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_shows_two_examples_that_can_be_typed(name: str) -> None:
    verb = import_module(f"slipstream.cli.{name}")
    commands = list(find_commands(Block(name, ("sh",), verb.EXAMPLES)))
    assert len(commands) >= 2
    for words in commands:
        assert words[0] == name
        parse_arguments(words)


@pytest.mark.parametrize("name", VERBS)
def test_every_option_says_what_it_sets(name: str) -> None:
    parser = make_verb_parser(name, import_module(f"slipstream.cli.{name}"))
    unexplained = [action.dest for action in parser._actions if len(action.help or "") < 12]
    assert unexplained == []
