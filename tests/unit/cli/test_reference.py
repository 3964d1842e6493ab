"""docs/reference.md is what the command says of itself."""

from pathlib import Path

import pytest

from slipstream.cli.arguments import (
    FLEET_VERBS,
    VERBS,
    load_verb,
    make_fleet_parser,
    make_root_parser,
    make_verb_parser,
)
from tests.snapshots import read_snapshot

DOCS = Path(__file__).parents[3] / "docs"


def test_the_reference_is_the_commands_own_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    parts = ["# Reference", "Written by the command itself and checked by a test."]
    names = [name for name in VERBS if name != "fleet"]
    parsers = [make_root_parser(), *(make_verb_parser(name, load_verb(name)) for name in names)]
    parsers.append(make_fleet_parser())
    fleet = [f"fleet {name}" for name in FLEET_VERBS]
    parsers += [make_verb_parser(name, load_verb(name)) for name in fleet]
    for parser in parsers:
        parts.append(f"## {parser.prog}\n\n```\n{parser.format_help().rstrip()}\n```")
    shown = "\n\n".join(parts) + "\n"
    assert shown == read_snapshot("reference.md", shown, DOCS)
