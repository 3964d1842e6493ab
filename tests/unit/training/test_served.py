"""Served acceptance is counted by kind, from what the engine itself reports."""

from typing import Any

import pytest

from slipstream.errors import EngineError
from slipstream.training.prompts import Conversation, Message
from slipstream.training.served import ServedAcceptance, measure_served
from tests.unit.measuring.client.test_completions import FakeServer, chat, run_server

# Drafts by how many tokens held, of a prompt with this text.
HISTOGRAMS = {"a": [1, 1, 0], "b": [0, 0, 2], "c": [3, 0, 1], "plain": None}


def converse(**kinds: str) -> list[Conversation]:
    return [
        Conversation(
            id=text,
            kind=kind,
            group=text,
            held_out=True,
            messages=(Message(role="user", content=text),),
        )
        for text, kind in kinds.items()
    ]


def respond(body: dict[str, Any]) -> tuple[int, Any]:
    return 200, chat([9, 9, 9], HISTOGRAMS[body["messages"][0]["content"]])


def measure(
    server: FakeServer, conversations: list[Conversation]
) -> tuple[dict[str, ServedAcceptance], list[tuple[int, int]]]:
    reports: list[tuple[int, int]] = []
    measured = measure_served(
        server.url,
        conversations,
        max_tokens=16,
        thinking=False,
        concurrency=2,
        report=lambda *figures: reports.append(figures),
    )
    return measured, reports


def test_drafts_are_added_up_by_kind() -> None:
    with run_server(respond) as server:
        measured, reports = measure(server, converse(a="code", c="prose", b="code"))
    code, prose = measured["code"], measured["prose"]
    assert list(measured) == ["code", "prose"]
    assert (code.requests, code.tokens, code.drafts, code.accepted) == (2, 6, 4, 5)
    assert code.tokens_per_step == pytest.approx(1 + 5 / 4)
    assert code.by_position == (3 / 4, 2 / 4)
    assert (prose.requests, prose.drafts, prose.accepted) == (1, 4, 2)
    assert prose.by_position == (1 / 4, 1 / 4)
    assert reports == [(0, 3), (1, 3), (2, 3), (3, 3)]


def test_the_positions_add_up_to_the_tokens_per_step() -> None:
    with run_server(respond) as server:
        measured, _ = measure(server, converse(a="code", b="code", c="code"))
    assert 1 + sum(measured["code"].by_position) == pytest.approx(measured["code"].tokens_per_step)


def test_an_answer_without_drafts_does_not_hide_the_others() -> None:
    with run_server(respond) as server:
        measured, _ = measure(server, converse(plain="code", a="code"))
    assert measured["code"].requests == 2
    assert measured["code"].by_position == (1 / 2, 0)


def test_answers_are_greedy_and_end_by_themselves() -> None:
    with run_server(respond) as server:
        measure(server, converse(a="code"))
    (body,) = server.bodies
    assert (body["temperature"], body["max_tokens"]) == (0, 16)
    assert body["chat_template_kwargs"] == {"enable_thinking": False}
    assert "ignore_eos" not in body


def test_a_server_that_reports_no_drafts_is_not_measured() -> None:
    with (
        run_server(respond) as server,
        pytest.raises(EngineError, match="no drafts for 1 prompts of kind code") as failed,
    ):
        measure(server, converse(plain="code"))
    assert "--per-request-spec-decode-metrics summary" in failed.value.hint
