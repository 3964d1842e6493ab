"""Messages and responses on the real engine: their answers, errors, tokens and ends."""

import json
from typing import Any

import pytest

from tests.engine.gate.gated_server import LONGEST_ANSWER, Gated, wait_until
from tests.engine.gate.hostile import HELLO, MESSAGES, RESPONSES
from tests.engine.gate.test_records import find_lines
from tests.engine.gate.wire import Answer, connect, make_request

pytestmark = pytest.mark.engine

TURN = {"role": "user", "content": "Hello"}
PLAIN: list[dict[str, Any]] = [
    TURN,
    {"type": "message", **TURN},
    {"role": "developer", "content": [{"type": "input_text", "text": "a"}]},
    {
        **{"type": "message", "role": "assistant", "id": "msg_1", "status": "completed"},
        "content": [{"type": "output_text", "text": "a"}],
    },
    {"type": "function_call", "call_id": "1", "name": "a", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "1", "output": "4"},
]

COUNT = f"{MESSAGES}/count_tokens"
MESSAGE = {"model": "target", "messages": [HELLO], "max_tokens": 6}
# What Claude Code sends beside a prompt.
HEADERS = ("anthropic-version: 2023-06-01", "anthropic-beta: context-management-2025-06-27")
EXTRAS = {
    "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    "metadata": {"user_id": "user_1"},
    "thinking": {"type": "adaptive"},
    "context_management": {"edits": []},
    "output_config": {"effort": "high"},
    # This server has no parser for calls.
    "tools": [{"name": "Bash", "description": "Run", "input_schema": {"type": "object"}}],
    "tool_choice": {"type": "none"},
}


def post(gated: Gated, path: str, client_id: str, **document: object) -> Answer:
    """Ask as Anthropic's clients do: with the key in a header of its own."""
    headers = (*HEADERS, f"x-api-key: {gated.attacker}", f"X-Request-Id: {client_id}")
    return gated.ask(path, method="POST", body=document, headers=headers)


def test_a_message_has_its_tokens_on_record(gated: Gated) -> None:
    answer = post(gated, f"{MESSAGES}?beta=true", "message", **MESSAGE | EXTRAS)
    assert answer.status == 200, answer.body
    message = json.loads(answer.body)
    assert (message["type"], message["role"]) == ("message", "assistant")
    used = message["usage"]
    wait_until(lambda: bool(find_lines(gated, "message")), within_seconds=5)
    (line,) = find_lines(gated, "message")
    assert (line.route, line.completion_tokens) == (f"POST {MESSAGES}", used["output_tokens"])
    assert line.prompt_tokens == used["input_tokens"] > 0
    counted = {key: value for key, value in (MESSAGE | EXTRAS).items() if key != "max_tokens"}
    answer = post(gated, COUNT, "count", **counted)
    assert json.loads(answer.body)["input_tokens"] == line.prompt_tokens


@pytest.mark.parametrize("path", [MESSAGES, RESPONSES])
def test_a_stream_has_its_tokens_on_record(gated: Gated, path: str) -> None:
    asked = MESSAGE if path == MESSAGES else {"input": "Say hello.", "max_output_tokens": 6}
    name = f"agent-{path.rpartition('/')[2]}"
    answer = post(gated, path, name, **{"model": "target", **asked}, stream=True)
    assert answer.status == 200, answer.body
    wait_until(lambda: bool(find_lines(gated, name)), within_seconds=5)
    (line,) = find_lines(gated, name)
    assert (line.completion_tokens, line.ended) == (6, "complete")
    assert line.prompt_tokens
    assert line.first_seconds
    if path == RESPONSES:
        assert f'"id":"resp_{line.id}"'.encode() in answer.body


def test_vllms_errors_have_anthropics_form(gated: Gated) -> None:
    faults = ({"max_tokens": -1}, {"model": "other"}, {"messages": [{"role": "x"}]})
    answers = [post(gated, MESSAGES, "fault", **{**MESSAGE, **fault}) for fault in faults]
    kinds = [json.loads(answer.body)["error"]["type"] for answer in answers]
    assert [answer.status for answer in answers] == [400, 404, 400]
    assert kinds == ["invalid_request_error", "not_found_error", "invalid_request_error"]
    assert all(json.loads(answer.body)["type"] == "error" for answer in answers)


def test_a_conversation_of_every_item_that_the_gate_takes_for_sound_passes(gated: Gated) -> None:
    asked = {"model": "target", "max_output_tokens": 2, "input": [*PLAIN, PLAIN[0]]}
    answer = post(gated, RESPONSES, "items", **asked)
    assert answer.status == 200, answer.body


def test_a_response_is_not_kept(gated: Gated) -> None:
    body = {"model": "target", "input": "Say hello.", "max_output_tokens": 2, "store": True}
    made = post(gated, RESPONSES, "kept", **body)
    identity = json.loads(made.body)["id"]
    assert gated.ask(f"{RESPONSES}/{identity}", key=gated.attacker).status == 404
    cancel = f"{RESPONSES}/{identity}/cancel"
    gone = gated.ask(cancel, method="POST", key=gated.attacker)
    assert (gone.status, json.loads(gone.body)["error"]["param"]) == (404, "response_id")


@pytest.mark.parametrize("path", [MESSAGES, RESPONSES])
def test_a_client_that_leaves_ends_its_answer(gated: Gated, path: str) -> None:
    said = {"messages": [HELLO]} if path == MESSAGES else {"input": "Say hello."}
    length = "max_tokens" if path == MESSAGES else "max_output_tokens"
    document = {"model": "target", "stream": True, length: LONGEST_ANSWER, **said}
    content, name = json.dumps(document).encode(), f"leaves-{path.rpartition('/')[2]}"
    named = (f"X-Request-Id: {name}",)
    with connect(gated.port) as connection:
        connection.sendall(
            make_request(path, method="POST", key=gated.attacker, body=content, headers=named)
        )
        received = b""
        while b"delta" not in received:
            received += connection.recv(65536)
    wait_until(lambda: bool(find_lines(gated, name)), within_seconds=10)
    (line,) = find_lines(gated, name)
    assert line.ended == "left"
    running = "vllm:num_requests_running"
    wait_until(lambda: gated.read_metric(running) == 0, within_seconds=10)
    assert gated.read_counts().in_flight == 0
