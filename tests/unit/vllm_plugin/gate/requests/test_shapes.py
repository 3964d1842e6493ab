"""Faulty lists are refused before vLLM tries every type that it knows on every entry."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from slipstream.vllm_plugin.gate.requests.shapes import JUDGED, MOST_JUDGED
from tests.unit.vllm_plugin.gate.pieces import CHAT, HELLO, Engine, ask, make_gate

MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
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
ODD: list[dict[str, Any]] = [
    {},
    {"type": "x"},
    {"type": ["message"]},
    {"role": "root", "content": "a"},
    {"role": "user"},
    {"role": "user", "content": None},
    {"role": "user", "content": [{"type": "output_text", "text": "a"}]},
    {"role": "user", "content": [{"type": "input_text", "text": 5}]},
    {"role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
    {**TURN, "status": "over"},
    {**TURN, "phase": 5},
    {"type": "function_call", "call_id": "1", "name": "a", "arguments": {}},
    {"type": "function_call", "call_id": "1", "name": "a"},
    {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_text"}]},
    {"type": "reasoning", "summary": []},
]


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Put a protocol in vLLM's place that finds fault with every item, and remembers it."""
    seen: list[Any] = []

    class Request:
        def __init__(self, **fields: Any) -> None:
            ((entry,),) = [value for name, value in fields.items() if name != "model"]
            seen.append(entry)
            if entry.get("status") != "fine":
                raise ValueError("236 errors")

    for _, name, request in JUDGED.values():
        protocol = ModuleType("protocol")
        setattr(protocol, request, Request)
        monkeypatch.setitem(sys.modules, name, protocol)
    return seen


def test_a_plain_conversation_is_not_judged_twice(tmp_path: Path, judged: list[Any]) -> None:
    engine = Engine()
    answer = ask(make_gate(tmp_path, engine), RESPONSES, json={"model": "m", "input": PLAIN})
    assert (answer.status_code, judged) == (200, [])
    assert engine.document["input"] == PLAIN


@pytest.mark.parametrize("item", ODD)
def test_the_first_faulty_item_ends_the_judgement(
    tmp_path: Path, engine: Engine, judged: list[Any], item: dict[str, Any]
) -> None:
    document = {"model": "m", "input": [*PLAIN, *[item] * 1000]}
    answer = ask(make_gate(tmp_path, engine), RESPONSES, json=document)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input")
    assert answer.json()["error"]["message"].startswith(f"input[{len(PLAIN)}] is not of this API")
    assert (judged in ([item], []), engine.scopes) == (True, [])


def test_parts_are_judged_one_by_one(tmp_path: Path, judged: list[Any]) -> None:
    text, odd = {"type": "input_text", "text": "a"}, {"type": "x"}
    item = {"role": "user", "status": "fine", "content": [text, text, odd, text, odd]}
    answer = ask(make_gate(tmp_path, Engine()), RESPONSES, json={"input": [item]})
    assert answer.status_code == 200
    assert [entry["content"] for entry in judged] == [[text], [odd], [odd]]


@pytest.mark.parametrize(
    "more",
    [
        {"content": ["x"] * 10**5},
        {"content": [{"type": "text", "annotations": [5] * 10**5}]},
        {"tool_calls": [5] * 10**5},
        {"content": [{"type": "x"}] * 5000},
    ],
)
def test_nothing_large_is_judged(tmp_path: Path, judged: list[Any], more: dict[str, Any]) -> None:
    turn = {"role": "root", "status": "fine", **more}
    answer = ask(make_gate(tmp_path, Engine()), CHAT, json={**HELLO, "messages": [turn]})
    assert answer.status_code == 400
    assert len(judged) <= MOST_JUDGED


@pytest.mark.parametrize(
    ("turn", "status"),
    [
        (TURN, 200),
        ({"role": "tool", "content": "4", "tool_call_id": "1"}, 200),
        ({"role": "user", "content": ["bare", {"type": "x"}]}, 200),
        ({"role": "assistant", "content": None, "tool_calls": [], "status": "fine"}, 200),
        ({"role": 5, "content": "a"}, 400),
        ({"role": "root", "content": ["x"] * 9}, 400),
        ({"role": "user", "content": 5}, 400),
        ({"role": "user", "content": "a", "name": 5}, 400),
        ({"role": "user"}, 400),
        ("x", 400),
    ],
)
def test_the_turns_of_a_chat_are_judged_the_same_way(
    tmp_path: Path, judged: list[Any], turn: Any, status: int
) -> None:
    document = {**HELLO, "messages": [TURN, *[turn] * 100]}
    answer = ask(make_gate(tmp_path, Engine()), CHAT, json=document)
    assert answer.status_code == status
    assert len(judged) <= (1 if status == 400 else 100)


@pytest.mark.parametrize("path", [MESSAGES, f"{MESSAGES}/count_tokens", RESPONSES])
@pytest.mark.parametrize("entry", ["x", 5, None, ["x"]])
def test_entries_that_are_no_objects_never_reach_vllm(
    tmp_path: Path, engine: Engine, path: str, entry: Any
) -> None:
    gate = make_gate(tmp_path, engine)
    nested = {"type": "tool_result", "content": [entry]}
    for field, value in (
        ("messages", [entry]),
        ("messages", [{"role": "user", "content": [entry]}]),
        ("messages", [{"role": "user", "content": [nested]}]),
        ("system", [entry]),
        ("tools", [{"type": "namespace", "tools": [entry]}]),
        *((("input", [entry]), ("input", [{"summary": [entry]}])) if path == RESPONSES else ()),
    ):
        answer = ask(gate, path, json={"model": "m", field: value})
        assert answer.status_code == 400
        message = answer.json()["error"]["message"]
        assert message == f"{field} has an entry that is not an object"
    assert engine.scopes == []
