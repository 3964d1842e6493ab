"""An answer may be held to a schema, to choices or to a plain pattern; more is for the trusted."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.vllm_plugin.gate.pieces import HELLO, Engine, ask_chat, make_gate, read_error

BOMB = "(.*){1,100}[bc]"
DATE = r"^\d{4}-\d{2}-\d{2}$"


def response_format(**schema: Any) -> dict[str, Any]:
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    return {"response_format": form}


def tools(**schema: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": {"name": "a", "parameters": schema}}]}


PLAIN: list[dict[str, Any]] = [
    {"structured_outputs": {"regex": DATE}},
    {"structured_outputs": {"choice": ["(.*)*", "b"]}},
    {"structured_outputs": {"json": {"type": "string", "pattern": DATE}}},
    {"structured_outputs": {"json": json.dumps({"pattern": DATE})}},
    {"structured_outputs": {"grammar": None, "json_object": True}},
    {"response_format": {"type": "text"}},
    {"response_format": {"type": "json_object"}},
    response_format(type="object", properties={"pattern": {"type": "string"}}),
    response_format(patternProperties={"^x-": {}, "^y-": {"pattern": "a+"}}),
    tools(pattern=DATE, patternProperties={"^x-": {}}),
]
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"structured_outputs": {"regex": BOMB}}, "regex: '(.*){1,100}[bc]' can be read in several"),
    ({"structured_outputs": {"regex": DATE, "whitespace_pattern": BOMB}}, "whitespace_pattern: '("),
    ({"structured_outputs": {"json": {"items": [{"pattern": BOMB}]}}}, "json: '(.*){1,100}[bc]' c"),
    ({"structured_outputs": {"json": json.dumps({"pattern": BOMB})}}, "json: '(.*){1,100}[bc]' c"),
    ({"structured_outputs": {"json": "{"}}, "json: it is not an object"),
    ({"structured_outputs": {"json": "[" * 60_000}}, "json is nested too deep"),
    (response_format(patternProperties={BOMB: {}}), "response_format: '(.*){1,100}[bc]' can be"),
    (response_format(items={"pattern": "x" * 16385}), "response_format: this server allows up to"),
    (
        {"text": {"format": {"type": "json_schema", "schema": {"pattern": BOMB}}}},
        "text: '(.*){1,100}[bc]' can be read",
    ),
    ({"structured_outputs": {"grammar": "root ::= root"}}, "grammar: this server takes JSON"),
    ({"structured_outputs": {"structural_tag": "{}"}}, "structural_tag: this server takes JSON"),
    (
        {"response_format": {"type": "structural_tag", "format": {}}},
        "response_format: this server takes JSON schemas, choices and plain patterns",
    ),
    (
        {"tools": [{"pattern": str(number) * 2000} for number in range(9)]},
        "tools: this server allows up to 16384 characters of patterns",
    ),
]


def name(fields: Any) -> str:
    return json.dumps(fields)[:50]


@pytest.mark.parametrize("fields", PLAIN, ids=name)
def test_a_plain_form_passes_as_it_came(tmp_path: Path, fields: dict[str, Any]) -> None:
    engine = Engine()
    answer = ask_chat(make_gate(tmp_path, engine), **fields)
    assert (answer.status_code, answer.headers.get("x-slipstream-warning")) == (200, None)
    assert engine.document == HELLO | fields


@pytest.mark.parametrize(("fields", "message"), REFUSED, ids=name)
def test_a_form_that_could_stop_the_engine_is_refused(
    tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    engine = Engine()
    long = {"regex_characters": 10**5}
    answer = ask_chat(make_gate(tmp_path, engine, limits=long), **fields)
    assert answer.status_code == 400
    assert read_error(answer).startswith(message)
    assert answer.json()["error"]["param"] == message.split()[0].rstrip(":")
    assert engine.scopes == []


@pytest.mark.parametrize("fields", [*PLAIN, *(fields for fields, _ in REFUSED)], ids=name)
def test_callers_one_trusts_may_ask_for_any_form(tmp_path: Path, fields: dict[str, Any]) -> None:
    engine = Engine()
    gate = make_gate(tmp_path, engine, constraints="any", limits={"regex_characters": 10**5})
    assert ask_chat(gate, **fields).status_code == 200
    assert engine.document == HELLO | fields


def test_the_tools_of_an_agent_lose_their_ambiguous_patterns(tmp_path: Path) -> None:
    engine = Engine()
    asked = tools(
        properties={"a": {"pattern": BOMB, "type": "string"}, "b": {"pattern": DATE}},
        patternProperties={BOMB: {"pattern": BOMB}, "^x-": {}},
    )
    answer = ask_chat(make_gate(tmp_path, engine), **asked)
    assert answer.headers["x-slipstream-warning"] == "2 patterns dropped from tools: ambiguous"
    assert engine.document == HELLO | tools(
        properties={"a": {"type": "string"}, "b": {"pattern": DATE}},
        patternProperties={"^x-": {}},
    )
