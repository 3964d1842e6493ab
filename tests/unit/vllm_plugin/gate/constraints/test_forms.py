"""What the engine compiles of a request, in the forms of every API."""

import json
from typing import Any

import pytest

from slipstream.vllm_plugin.gate.answers import Refusal
from slipstream.vllm_plugin.gate.constraints.forms import (
    find_compiled_tools,
    lighten,
    list_forms,
    require_forms,
    require_tokens_left,
)

SCHEMA = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 9}}}
JSON = {"type": "json_schema", "schema": SCHEMA}
FUNCTION = {"type": "function", "function": {"name": "a", "parameters": SCHEMA}}
FLAT = {"type": "function", "name": "a", "parameters": SCHEMA}
ANTHROPIC = {"name": "a", "input_schema": SCHEMA}
NAMED = {"type": "function", "function": {"name": "a"}}


def add(**tool: Any) -> dict[str, Any]:
    """Make a message in which a turn of the system adds a tool."""
    change = {"type": "tool_definition", "definition": {**ANTHROPIC, **tool}}
    turn = {"role": "system", "content": [{"type": "tool_addition", "tool": change}]}
    return {"messages": [turn]}


def gather(**tool: Any) -> dict[str, Any]:
    """Make a response with a tool in a namespace."""
    return {"tools": [{"type": "namespace", "name": "n", "tools": [{**FLAT, **tool}]}]}


def strict(tool: dict[str, Any], value: Any) -> dict[str, Any]:
    return {**tool, "function": {**tool["function"], "strict": value}}


FOUND: list[tuple[dict[str, Any], list[str]]] = [
    ({"structured_outputs": {"json": SCHEMA}}, ["json"]),
    ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, ["json"]),
    ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, ["regex", "choice"]),
    ({"structured_outputs": {"json_object": True, "json": None}}, []),
    ({"structured_outputs": "regex"}, []),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}, ["respons"]),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}}, ["respons"]),
    ({"response_format": {"type": "json_schema"}}, []),
    ({"response_format": {"type": "json_object"}}, []),
    ({"text": {"format": JSON}}, ["text"]),
    ({"text": {"type": "text", "format": JSON}}, ["text"]),
    ({"text": {"format": {"type": "text"}, "verbosity": "low"}}, []),
    ({"output_config": {"format": {"schema": SCHEMA}}}, ["output_"]),
    ({"output_config": {"effort": "high"}}, []),
    ({"tools": [FUNCTION]}, []),
    ({"tools": [FUNCTION], "tool_choice": "auto"}, []),
    ({"tools": [FUNCTION], "tool_choice": {"type": "none"}}, []),
    ({"tools": [FUNCTION], "tool_choice": "required"}, ["tools"]),
    ({"tools": [FUNCTION], "tool_choice": NAMED}, ["tools"]),
    ({"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "a"}}, ["tools"]),
    ({"tools": [FUNCTION], "tool_choice": {"type": "allowed_tools", "tools": []}}, ["tools"]),
    ({"tools": [strict(FUNCTION, True)]}, ["tools"]),
    ({"tools": [strict(FUNCTION, "true")], "tool_choice": "auto"}, ["tools"]),
    ({"tools": [strict(FUNCTION, 1)]}, ["tools"]),
    ({"tools": [strict(FUNCTION, False)]}, []),
    ({"tools": [ANTHROPIC], "tool_choice": {"type": "any"}}, ["tools"]),
    ({"tools": [{**ANTHROPIC, "strict": True}]}, ["tools"]),
    (add(), []),
    ({**add(), "tool_choice": {"type": "any"}}, ["tools"]),
    (add(strict=True), ["tools"]),
    (gather(), []),
    ({**gather(), "tool_choice": "required"}, ["tools"]),
    ({**gather(), "tool_choice": {"type": "function", "name": "n__a"}}, ["tools"]),
    (gather(strict=True), ["tools"]),
    ({"guided_json": SCHEMA, "guided_regex": "a"}, []),
]


@pytest.mark.parametrize(("document", "fields"), FOUND, ids=lambda one: json.dumps(one)[:60])
def test_what_the_engine_compiles_is_found(document: dict[str, Any], fields: list[str]) -> None:
    forms = list_forms(document)
    assert [form.field[: len(name)] for form, name in zip(forms, fields, strict=True)] == fields
    for form in forms:
        if form.kind == "json":
            assert "properties" in form.text or form.text == "{}"


def test_tools_are_joined_as_vllm_does_and_a_named_one_is_alone() -> None:
    first = {"$defs": {"d": {"type": "integer"}}, **SCHEMA}
    tools = [{"name": "a", "parameters": first}, {"name": "b"}]
    (form,) = list_forms({"tools": tools, "tool_choice": "required"})
    schema = json.loads(form.text)
    branches = schema["items"]["anyOf"]
    assert schema["$defs"] == {"d": {"type": "integer"}}
    assert [branch["properties"]["name"]["enum"] for branch in branches] == [["a"], ["b"]]
    assert [branch["properties"]["parameters"] for branch in branches] == [
        SCHEMA,
        {"type": "object"},
    ]
    assert find_compiled_tools({"tools": tools, "tool_choice": {"name": "b", "type": "tool"}}) == [
        tools[1]
    ]


def test_tools_can_do_without_lengths_patterns_and_formats() -> None:
    kept = {"format": {"type": "string"}, "b": {"type": "string"}}
    text = {**kept["b"], "format": "date", "pattern": "a", "minLength": 1, "maxLength": 2.0}
    tool = {"name": "a", "parameters": {"type": "object", "properties": {**kept, "b": text}}}
    assert lighten([tool]) == 4
    assert tool["parameters"] == {"type": "object", "properties": kept}
    assert lighten([tool]) == 0


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({"structured_outputs": {"grammar": "root ::= root"}}, "grammar"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structural_tag"),
        ({"response_format": {"type": "structural_tag", "format": {}}}, "response_format"),
        ({"text": {"type": "grammar"}}, "text"),
    ],
)
def test_grammars_and_tags_are_refused(document: dict[str, Any], field: str) -> None:
    with pytest.raises(Refusal) as refused:
        require_forms(document)
    assert (refused.value.status, refused.value.field) == (400, field)
    require_forms({"structured_outputs": {"grammar": None, "json": {}}, "text": None})


@pytest.mark.parametrize(
    "form",
    [
        {"response_format": {"type": "json_object"}},
        {"structured_outputs": {"json_object": True}},
        {"structured_outputs": {"choice": ["a"]}},
        {"text": {"format": {"type": "json_object"}}},
        {"tools": [FUNCTION], "tool_choice": "required"},
    ],
    ids=str,
)
def test_tokens_are_chosen_by_the_caller_or_by_a_form(form: dict[str, Any]) -> None:
    with pytest.raises(Refusal) as refused:
        require_tokens_left({**form, "allowed_token_ids": [5]})
    assert (refused.value.status, refused.value.field) == (400, "allowed_token_ids")
    for alone in (form, {"allowed_token_ids": [5], "text": {"type": "text"}}):
        require_tokens_left(alone)
