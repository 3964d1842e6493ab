"""`slipstream chat` with the real engine: in a terminal and through a pipe, against its ledger."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slipstream.steering.ledger import LedgerLine, read_ledger
from tests.engine.service import Service
from tests.unit.cli.serving.typist import PATIENCE_SECONDS, open_terminal

pytestmark = [pytest.mark.engine, pytest.mark.beside]

QUESTION = "Write a Python function that adds two numbers."
GREEDY = ("--temperature", "0", "--max-tokens", "40")
ANSWERED_WITHIN_SECONDS = 240
ESCAPE = re.compile(r"\r[^\r\n]*\x1b\[K|\x1b\[[\d;?]*[A-Za-z]")
SHOWN = re.compile(r".*?\n(.*)\n(?:plain: )?(\d+) tokens, .*?, ([\d.]+) tokens per step", re.DOTALL)


@pytest.fixture(scope="module")
def service(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    running = Service(tmp_path_factory.mktemp("chat"), target)
    try:
        running.serve()
        yield running
    finally:
        running.end()


def split(shown: bytes) -> list[str]:
    """Return what a terminal shows before the first prompt, and after each, without spinners."""
    return ESCAPE.sub("", shown.decode(errors="replace")).replace("\r", "").split("\n> ")


def read_lines(service: Service) -> list[LedgerLine]:
    folder, _ = service.newest
    return [line for line in read_ledger(folder.list_ledgers()) if line.key == "anyone"]


def test_a_terminal_shows_the_text_of_plain_decoding_and_the_ledgers_figures(
    service: Service,
) -> None:
    before = len(read_lines(service))
    with open_terminal("chat", *GREEDY, NO_COLOR="", **service.variables) as typist:
        typist.read_until(lambda shown: len(split(shown)) == 2)
        typist.type(QUESTION.encode() + b"\n")
        typist.read_until(lambda shown: len(split(shown)) == 3, ANSWERED_WITHIN_SECONDS)
        typist.type(b"/plain\n")
        typist.read_until(lambda shown: len(split(shown)) == 4, ANSWERED_WITHIN_SECONDS)
        typist.type(b"\x04")
        assert typist.child.wait(PATIENCE_SECONDS) == 0
    sys.stdout.write(f"\n{typist.shown.decode()}")
    assert b"\x1b[32m" in typist.shown
    _, drafted, plain, _ = split(typist.shown)
    answers = [SHOWN.match(drafted), SHOWN.match(plain)]
    texts, tokens, steps = zip(*(one.groups() for one in answers if one), strict=True)
    assert texts[0] == texts[1]
    assert "the same text" in plain
    lines = read_lines(service)[before:]
    assert tokens == tuple(str(line.tokens) for line in lines)
    assert steps == tuple(f"{line.tokens / line.steps:.2f}" for line in lines)
    assert float(steps[0]) > 1.2
    assert (lines[1].drafts, lines[1].copies, steps[1]) == (0, 0, "1.00")


def test_a_pipe_gets_events_whose_marks_are_the_accepted_tokens(service: Service) -> None:
    done = service.command("chat", *GREEDY, "--json", typed=f"{QUESTION}\n")
    *parts, answer = map(json.loads, done.stdout.splitlines())
    line = read_lines(service)[-1]
    accepted = sum(line.accepted) + line.copied_accepted
    assert (answer["output_tokens"], answer["steps"]) == (line.tokens, line.steps)
    assert answer["accepted"] == accepted
    assert answer["text"] == "".join(part["text"] for part in parts)
    assert answer["chunks"] == sum(part["tokens"] > 0 for part in parts) <= line.steps
    # A last draft may be accepted beyond the end of the answer.
    assert 0 < line.tokens - line.steps <= accepted
    assert None not in [part["drafted"] for part in parts]
    assert [bool(part["drafted"]) for part in parts if len(part["text"]) > 1].count(True) > 3
    assert not any(part["drafted"] for part in parts if part["tokens"] == 1)
