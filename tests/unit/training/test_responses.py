"""Every conversation is answered once, however often the stage is interrupted."""

import json
from pathlib import Path
from typing import Any

import pytest

from slipstream.errors import EngineError, InvalidInputError
from slipstream.training.prompts import Conversation, Message
from slipstream.training.responses import Response, read_responses, regenerate
from tests.unit.measuring.client.test_completions import FakeServer, chat, run_server


def converse(*names: str) -> list[Conversation]:
    return [
        Conversation(
            id=name,
            kind="chat",
            group=name,
            held_out=False,
            messages=(
                Message(role="system", content="Be brief."),
                Message(role="user", content=name),
            ),
        )
        for name in names
    ]


def echo(body: dict[str, Any]) -> tuple[int, Any]:
    """Answer with as many tokens as the prompt has characters; `fail` fails."""
    text = body["messages"][-1]["content"]
    return (500, "broken") if text == "fail" else (200, chat([9] * len(text)))


def run(
    server: FakeServer, path: Path, *names: str, thinking: bool | None = None
) -> list[tuple[int, int, int]]:
    reports: list[tuple[int, int, int]] = []
    regenerate(
        server.url,
        converse(*names),
        path,
        max_tokens=32,
        thinking=thinking,
        concurrency=1,
        report=lambda *figures: reports.append(figures),
    )
    return reports


def test_every_answer_is_a_line_with_its_tokens(tmp_path: Path) -> None:
    path = tmp_path / "responses.jsonl"
    with run_server(echo) as server:
        reports = run(server, path, "a", "bcd")
    assert read_responses(path) == (
        Response(id="a", prompt_ids=(1, 2), response_ids=(9,), finish_reason="stop"),
        Response(id="bcd", prompt_ids=(1, 2), response_ids=(9, 9, 9), finish_reason="stop"),
    )
    assert reports == [(0, 2, 0), (1, 2, 1), (2, 2, 4)]


def test_the_whole_conversation_is_asked_greedily(tmp_path: Path) -> None:
    with run_server(echo) as server:
        run(server, tmp_path / "responses.jsonl", "a")
    (body,) = server.bodies
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "a"},
    ]
    assert (body["temperature"], body["max_tokens"]) == (0, 32)


@pytest.mark.parametrize(
    ("thinking", "sent"),
    [(None, None), (True, {"enable_thinking": True}), (False, {"enable_thinking": False})],
)
def test_thinking_is_asked_for_only_if_decided(
    tmp_path: Path, thinking: bool | None, sent: dict[str, bool] | None
) -> None:
    with run_server(echo) as server:
        run(server, tmp_path / "responses.jsonl", "a", thinking=thinking)
    assert server.bodies[0].get("chat_template_kwargs") == sent


def test_an_interrupted_stage_asks_only_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "responses.jsonl"
    with run_server(echo) as server:
        with pytest.raises(EngineError, match="answered 500"):
            run(server, path, "a", "bc", "fail", "d")
        assert [row.id for row in read_responses(path)] == ["a", "bc"]
        server.bodies.clear()
        reports = run(server, path, "a", "bc", "d")
    assert [body["messages"][-1]["content"] for body in server.bodies] == ["d"]
    assert [row.id for row in read_responses(path)] == ["a", "bc", "d"]
    assert reports == [(2, 3, 3), (3, 3, 4)]


def test_a_line_that_was_half_written_is_asked_again(tmp_path: Path) -> None:
    path = tmp_path / "responses.jsonl"
    with run_server(echo) as server:
        run(server, path, "a", "bc")
        whole = path.read_bytes()
        path.write_bytes(whole[:-7])
        run(server, path, "a", "bc")
    assert path.read_bytes() == whole


def test_a_file_of_half_a_line_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "responses.jsonl"
    path.write_text('{"id": "a", "prom')
    with run_server(echo) as server:
        run(server, path, "a")
    assert [row.id for row in read_responses(path)] == ["a"]


def test_a_whole_file_needs_no_server(tmp_path: Path) -> None:
    path = tmp_path / "responses.jsonl"
    with run_server(echo) as server:
        run(server, path, "a")
    assert run(server, path, "a") == [(1, 1, 1)]


def test_rows_of_other_conversations_are_kept_but_not_counted(tmp_path: Path) -> None:
    path = tmp_path / "responses.jsonl"
    with run_server(echo) as server:
        run(server, path, "other")
        assert run(server, path, "a") == [(0, 1, 0), (1, 1, 1)]
    assert [row.id for row in read_responses(path)] == ["other", "a"]


def test_an_answer_without_tokens_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "responses.jsonl"
    with run_server(echo) as server:
        run(server, path, "")
    assert read_responses(path)[0].response_ids == ()


def test_a_line_that_is_no_response_is_named(tmp_path: Path) -> None:
    path = tmp_path / "responses.jsonl"
    good = Response(id="a", prompt_ids=(1,), response_ids=(2,), finish_reason="stop")
    path.write_text(f"{good.model_dump_json()}\n{json.dumps({'id': 'b'})}\n")
    with pytest.raises(InvalidInputError, match="line 2 of") as faulty:
        read_responses(path)
    assert "prompt_ids: Field required" in faulty.value.details


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="No such file"):
        read_responses(tmp_path / "responses.jsonl")
