"""Every conversation is answered once; the drafts of an engine are counted by kind."""

import json
from pathlib import Path
from typing import Any

import pytest

from slipstream.errors import EngineError, InvalidInputError
from slipstream.steering.drafts import Drafts
from slipstream.training.responses import Response, measure_served, read_responses, regenerate
from tests.unit.measuring.client.test_completions import FakeServer, chat, run_server
from tests.unit.training.pieces import change, converse


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
        [converse(name) for name in names],
        path,
        change(max_tokens=32, thinking=thinking),
        lambda *figures: reports.append(figures),
        concurrency=1,
    )
    return reports


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "responses.jsonl"


def test_every_answer_is_a_line_with_its_tokens(path: Path) -> None:
    with run_server(echo) as server:
        reports = run(server, path, "a", "bcd", "")
    assert read_responses(path) == (
        Response(id="a", prompt_ids=(1, 2), response_ids=(9,), finish_reason="stop"),
        Response(id="bcd", prompt_ids=(1, 2), response_ids=(9, 9, 9), finish_reason="stop"),
        Response(id="", prompt_ids=(1, 2), response_ids=(), finish_reason="stop"),
    )
    assert reports == [(0, 3, 0), (1, 3, 1), (2, 3, 4), (3, 3, 4)]


@pytest.mark.parametrize(
    ("thinking", "sent"),
    [(None, None), (True, {"enable_thinking": True}), (False, {"enable_thinking": False})],
)
def test_the_whole_conversation_is_asked_greedily(
    path: Path, thinking: bool | None, sent: dict[str, bool] | None
) -> None:
    with run_server(echo) as server:
        run(server, path, "a", thinking=thinking)
    (body,) = server.bodies
    assert body["messages"] == [{"role": "user", "content": "a"}]
    assert (body["temperature"], body["max_tokens"]) == (0, 32)
    assert body.get("chat_template_kwargs") == sent


def test_an_interrupted_stage_asks_only_what_is_missing(path: Path) -> None:
    with run_server(echo) as server:
        with pytest.raises(EngineError, match="answered 500"):
            run(server, path, "a", "bc", "fail", "d")
        assert [row.id for row in read_responses(path)] == ["a", "bc"]
        server.bodies.clear()
        reports = run(server, path, "a", "bc", "d")
        assert [body["messages"][-1]["content"] for body in server.bodies] == ["d"]
        assert [row.id for row in read_responses(path)] == ["a", "bc", "d"]
        assert reports == [(2, 3, 3), (3, 3, 4)]
        # A line that was half written is asked again.
        whole = path.read_bytes()
        for half in (b'{"id": "a", "prom', whole[:-7]):
            path.write_bytes(half)
            run(server, path, "a", "bc", "d")
            assert path.read_bytes() == whole
    # A whole file needs no server, and rows of other conversations are not counted.
    assert run(server, path, "a") == [(1, 1, 1)]


def test_a_file_that_cannot_be_read_is_named(path: Path) -> None:
    with pytest.raises(InvalidInputError, match="No such file"):
        read_responses(path)
    good = Response(id="a", prompt_ids=(1,), response_ids=(2,), finish_reason="stop")
    path.write_text(f"{good.model_dump_json()}\n{json.dumps({'id': 'b'})}\n")
    with pytest.raises(InvalidInputError) as faulty:
        read_responses(path)
    assert f"{path}:2: prompt_ids: Field required" in faulty.value.details[0]
    assert f"remove {path}" in faulty.value.hint


# Drafts by how many tokens held, of a prompt with this text.
HISTOGRAMS = {"a": [1, 1, 0], "b": [0, 0, 2], "c": [3, 0, 1], "plain": None}


def measure(server: FakeServer, **kinds: str) -> tuple[dict[str, Drafts], list[tuple[int, int]]]:
    """Measure what is served to prompts of these texts and kinds."""
    rows = [converse(text, kind=kind, held_out=True) for text, kind in kinds.items()]
    reports: list[tuple[int, int]] = []
    settings = change(max_tokens=16, thinking=False)
    measured = measure_served(server.url, rows, settings, lambda *done: reports.append(done))
    return measured, reports


def respond(body: dict[str, Any]) -> tuple[int, Any]:
    return 200, chat([9, 9, 9], HISTOGRAMS[body["messages"][0]["content"]])


def test_drafts_are_added_up_by_kind() -> None:
    with run_server(respond) as server:
        measured, reports = measure(server, a="code", c="prose", b="code", plain="prose")
    assert measured == {
        "code": Drafts(drafts=4, drafted=8, accepted=(3, 2)),
        "prose": Drafts(drafts=4, drafted=8, accepted=(1, 1)),
    }
    assert reports == [(done, 4) for done in range(5)]
    body = server.bodies[0]
    assert (body["temperature"], body["max_tokens"]) == (0, 16)
    assert body["chat_template_kwargs"] == {"enable_thinking": False}
    assert "ignore_eos" not in body


def test_a_server_that_reports_no_drafts_is_not_measured() -> None:
    with (
        run_server(respond) as server,
        pytest.raises(EngineError, match="no drafts for 1 prompts of kind code") as failed,
    ):
        measure(server, plain="code")
    assert "--per-request-spec-decode-metrics summary" in failed.value.hint
