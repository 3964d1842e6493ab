"""Faulty bodies are refused by vLLM's own types, at the first faulty entry of a list.

The types here are a stand-in's; `tests/engine/gate/test_bodies.py` has vLLM's.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field, model_validator

from slipstream.vllm_plugin.gate.requests.shapes import MOST_ERRORS
from tests.unit.vllm_plugin.gate.pieces import CHAT, HELLO, Engine, ask, make_gate

COUNTED: list[Any] = []


class Part(BaseModel):
    type: Literal["text"]
    text: str


class Turn(BaseModel):
    role: Literal["user", "assistant"]
    content: str | list[Part]

    @model_validator(mode="before")
    @classmethod
    def count(cls, turn: Any) -> Any:
        COUNTED.append(turn)
        return turn if turn else turn["role"]


class Call(BaseModel):
    call: str


class Body(BaseModel):
    messages: list[Turn | Call] = Field(min_length=1)
    temperature: float | None = None
    metadata: dict[str, str] = {}


TYPED = SimpleNamespace(
    state=SimpleNamespace(),
    routes=[
        SimpleNamespace(path="/health"),
        SimpleNamespace(path="/metrics"),
        SimpleNamespace(
            path=CHAT,
            methods={"POST"},
            body_field=SimpleNamespace(field_info=SimpleNamespace(annotation=Body)),
        ),
    ],
)


def send(folder: Path, engine: Engine, **fields: Any) -> tuple[int, Any]:
    gate = make_gate(folder, engine)
    gate._read_engine(TYPED)
    answer = ask(gate, CHAT, json={**HELLO, **fields})
    return answer.status_code, answer.json().get("error")


def test_what_the_types_allow_passes_as_it_came(tmp_path: Path, engine: Engine) -> None:
    turns = [{"role": "user", "content": [{"type": "text", "text": "a"}]}, {"call": "b"}]
    assert send(tmp_path, engine, messages=turns, user="x")[0] == 200
    assert engine.document["messages"] == turns


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"messages": [{"role": "user", "content": 5}] * 900}, "messages", "messages[0]"),
        ({"messages": [*HELLO["messages"], *[{}] * 900]}, None, "the body does not match this API"),
        (
            {"messages": [*HELLO["messages"], {"role": "x", "content": "a"}] * 900},
            "messages",
            "messages[1] is not part of this API, or invalid",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}] * 900}]},
            "messages",
            "messages[0]",
        ),
        ({"temperature": "hot"}, "temperature", "temperature: Input should be a valid number"),
        ({"metadata": {str(one): 1 for one in range(MOST_ERRORS + 1)}}, None, "1001 values"),
    ],
)
def test_the_first_faulty_entry_ends_the_judgement(
    tmp_path: Path, engine: Engine, fields: dict[str, Any], field: str | None, words: str
) -> None:
    COUNTED.clear()
    status, error = send(tmp_path, engine, **fields)
    assert (status, error["param"], engine.scopes) == (400, field, [])
    assert words in error["message"]
    assert len(COUNTED) < 5
