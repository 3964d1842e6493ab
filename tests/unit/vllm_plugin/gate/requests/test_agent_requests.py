"""What agents ask over Messages and Responses is limited and passed on like a chat."""

import json
from pathlib import Path
from typing import Any

import pytest

from slipstream.vllm_plugin.gate.requests.limits import list_tools
from slipstream.vllm_plugin.gate.requests.policy import LEAST_BUDGET
from tests.unit.vllm_plugin.gate.callers.test_key_ring import new_key
from tests.unit.vllm_plugin.gate.pieces import HELLO, Engine, ask, make_gate

MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
COUNT = f"{MESSAGES}/count_tokens"
WARNING = "x-slipstream-warning"
MESSAGE = {**HELLO, "max_tokens": 5}
RESPONSE = {"model": "m", "input": "Hello"}
MARKED = {"cache_control": {"type": "ephemeral"}}
# As Claude Code writes it.
CODING = {
    "model": "m",
    "max_tokens": 32_000,
    "system": [{"type": "text", "text": "You are an agent.", **MARKED}],
    "messages": [{"role": "user", "content": [{"type": "text", "text": "Hello", **MARKED}]}],
    "tools": [{"name": "Bash", "description": "", "input_schema": {"type": "object"}}],
    "metadata": {"user_id": "user_1_account__session_2"},
    "thinking": {"type": "enabled", "budget_tokens": 31_999},
    "context_management": {"edits": []},
    "output_config": {"effort": "high"},
    "stream": True,
}


def add(definition: Any, **choice: Any) -> dict[str, Any]:
    """Make a message in which a turn of the system adds a tool."""
    change = {"type": "tool_definition", "definition": definition}
    turn = {"role": "system", "content": [{"type": "tool_addition", "tool": change}]}
    return {**MESSAGE, "messages": [turn, *HELLO["messages"]], **choice}


def gather(*tools: Any, **choice: Any) -> dict[str, Any]:
    """Make a response with tools in a namespace."""
    space = {"type": "namespace", "name": "n", "description": "", "tools": list(tools)}
    return {**RESPONSE, "tools": [space], **choice}


FREE = {"type": "function", "name": "a"}


@pytest.mark.parametrize(
    "tools", [None, "x", [None, 3, "x"], {"tools": []}, [{"tools": "x"}], [{"tools": [3]}]]
)
def test_odd_tools_are_the_engines_to_refuse(tools: Any) -> None:
    odd = [{"role": "system", "content": [{"tool": 3}, {"tool": {"definition": []}}, None]}, 3]
    listed = list_tools({"tools": tools, "messages": odd})
    assert listed == [tool for tool in tools or () if isinstance(tool, dict) and tools != {}]


@pytest.mark.parametrize(
    ("path", "document"),
    [
        (MESSAGES, {**MESSAGE, "n": 1000}),
        (MESSAGES, {**MESSAGE, "stop_sequences": ["a"] * 5}),
        (MESSAGES, {**MESSAGE, "max_tokens": "9"}),
        (MESSAGES, {**MESSAGE, "chat_template_kwargs": {"tools": 1}}),
        (MESSAGES, {**MESSAGE, "vllm_xargs": {}}),
        (MESSAGES, add({"name": "a", "input_schema": {"x": "y" * 70_000}})),
        (RESPONSES, {**RESPONSE, "top_logprobs": 21}),
        (RESPONSES, {**RESPONSE, "max_output_tokens": 101}),
        (RESPONSES, {**RESPONSE, "priority": -1}),
        (RESPONSES, {**RESPONSE, "request_id": "mine"}),
        (RESPONSES, {**RESPONSE, "structured_outputs": {"grammar": "root ::= root"}}),
        (RESPONSES, gather({**FREE, "parameters": {"x": "y" * 70_000}})),
    ],
)
def test_the_limits_of_a_chat_are_theirs(
    tmp_path: Path, path: str, document: dict[str, Any]
) -> None:
    engine = Engine()
    gate = make_gate(tmp_path, engine, limits={"max_tokens": 100})
    answer = ask(gate, path, json=document)
    assert (answer.status_code, engine.scopes) == (400, [])


@pytest.mark.parametrize("field", ["background", "previous_response_id", "conversation"])
def test_what_needs_stored_responses_is_refused(tmp_path: Path, field: str) -> None:
    engine = Engine()
    gate = make_gate(tmp_path, engine)
    answer = ask(gate, RESPONSES, json={**RESPONSE, field: "resp_1", "store": True})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)
    assert engine.scopes == []
    assert ask(gate, RESPONSES, json={**RESPONSE, field: None, "store": True}).status_code == 200


def test_a_response_has_the_id_that_is_logged(tmp_path: Path) -> None:
    file, engine = tmp_path / "keys.json", Engine()
    (_, key), _ = new_key(file), new_key(file)
    gate = make_gate(tmp_path, engine, keys_file=file)
    answer = ask(gate, RESPONSES, key=key, json={**RESPONSE, "request_id": None})
    assert engine.document["request_id"] == f"resp_{answer.headers['x-request-id']}"
    assert len(engine.document["cache_salt"]) == 64
    assert int(engine.headers[b"content-length"]) == len(engine.bodies[0])


def test_a_coding_agents_request_passes_as_it_came(tmp_path: Path) -> None:
    engine = Engine()
    gate = make_gate(tmp_path, engine, context=65_536, speculation=True)
    answer = ask(gate, f"{MESSAGES}?beta=true", json=CODING)
    assert (answer.status_code, WARNING in answer.headers) == (200, False)
    assert engine.document == CODING
    assert ask(gate, COUNT, json=CODING).status_code == 200


def test_what_vllm_router_adds_to_every_body_is_no_reason_for_a_warning(tmp_path: Path) -> None:
    chat = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    added = {
        **{"logprobs": False, "ignore_eos": False, "continue_final_message": False},
        **{"no_stop_trim": False, "separate_reasoning": True, "stream_reasoning": True},
        **{"return_hidden_states": False, "include_reasoning": True, "skip_special_tokens": True},
    }
    answer = ask(make_gate(tmp_path, Engine()), "/v1/chat/completions", json={**chat, **added})
    assert (answer.status_code, WARNING in answer.headers) == (200, False)


def test_a_field_that_nobody_knows_is_dropped_and_named(tmp_path: Path) -> None:
    engine = Engine()
    for path in (MESSAGES, COUNT):
        answer = ask(make_gate(tmp_path, engine), path, json={**MESSAGE, "fallbacks": []})
        assert answer.headers[WARNING] == "fallbacks dropped: not a field of this API"
    assert [json.loads(body) for body in engine.bodies] == [MESSAGE] * 2


@pytest.mark.parametrize(
    ("context", "tokens", "thinking"),
    [
        (65_536, 32_000, {"type": "enabled", "budget_tokens": 31_999}),
        (16_384, 16_384, {"type": "enabled", "budget_tokens": 16_383}),
        (LEAST_BUDGET, LEAST_BUDGET, {"type": "adaptive"}),
        (None, 32_000, {"type": "enabled", "budget_tokens": 31_999}),
    ],
)
def test_an_answer_beyond_the_context_is_lowered_with_its_budget_of_thought(
    tmp_path: Path, context: int | None, tokens: int, thinking: dict[str, Any]
) -> None:
    engine = Engine()
    answer = ask(make_gate(tmp_path, engine, context=context), MESSAGES, json=CODING)
    asked = engine.document
    assert (asked["max_tokens"], asked["thinking"]) == (tokens, thinking)
    assert (WARNING in answer.headers) is (tokens < 32_000)


def test_a_chat_beyond_the_context_is_the_engines_to_refuse(tmp_path: Path) -> None:
    engine = Engine()
    ask(make_gate(tmp_path, engine, context=100), json={**HELLO, "max_tokens": 200})
    assert engine.document["max_tokens"] == 200


@pytest.mark.parametrize(
    "route", ["POST /v1/embeddings", "POST /v1/rerank", "POST /v1/score", "POST /pooling"]
)
def test_a_list_of_texts_has_an_end(tmp_path: Path, route: str) -> None:
    gate = make_gate(tmp_path, Engine(), routes=(route,), limits={"list_items": 3})
    path = route.removeprefix("POST ")
    for field in ("input", "documents", "text_2"):
        statuses = [
            ask(gate, path, json={field: given}).status_code
            for given in (["a"] * 3, [1] * 9, "text", ["a"] * 4)
        ]
        assert (field, statuses) == (field, [200, 200, 200, 400])
