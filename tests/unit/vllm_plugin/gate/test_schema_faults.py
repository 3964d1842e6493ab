"""Schemas that cannot be compiled are refused by name, and none that can be."""

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from slipstream.vllm_plugin.gate.answers import Refusal
from slipstream.vllm_plugin.gate.compiled_constraints import (
    require_affordable_forms,
    require_tokens_left,
)
from slipstream.vllm_plugin.gate.schema_faults import require_sound
from tests.unit.vllm_plugin.gate.agent_tools import TOOL_SETS

SELF = {"$ref": "#"}
FAULTS: dict[str, dict[str, Any]] = {
    "$ref is 5 and not a text": {"$ref": 5},
    "$ref: there is no '#/$defs/a'": {"type": "array", "items": {"$ref": "#/$defs/a"}},
    "{'$ref': '#'} only leads to itself": SELF,
    "{'anyOf': [{'$ref': '#'}, {'allOf': [{'$ref': '#'}]}]} only": {
        "anyOf": [SELF, {"allOf": [SELF]}]
    },
    "enum is not a list of values": {"properties": {"a": {"enum": []}}},
    "type is 'matrix', which is none": {"type": ["string", "matrix"]},
    "type is None, which is none": {"type": None},
    "1 stands where a schema should": {"anyOf": [1]},
    "anyOf is not a list": {"anyOf": {}},
    "maxLength is '9' and not a whole number": {"type": "string", "maxLength": "9"},
    "maxLength is True and not a whole": {"type": "string", "maxLength": True},
    "minLength and maxLength leave no text": {"type": "string", "minLength": 4, "maxLength": 3},
    "maximum is past 64 bits": {"type": "integer", "maximum": 2**70},
    "minimum is 'a' and not a number": {"type": "number", "minimum": "a"},
    "minimum and maximum leave no number": {"type": "number", "minimum": 2, "exclusiveMaximum": 2},
    "required is not a list of names": {"type": "object", "required": [None]},
    "properties is not an object": {"type": "object", "properties": []},
    "items is not a schema": {"type": "array", "items": 5},
    "'\\ud800' has half a character": {"type": "object", "properties": {"\ud800": {}}},
}
SOUND: list[dict[str, Any]] = [
    {},
    {"const": {"type": "matrix", "enum": []}},
    {"enum": [{"$ref": 5}]},
    {"type": "string", "default": {"type": None}, "examples": [{"anyOf": 1}]},
    {"properties": {"type": {"type": "string"}, "required": {}, "enum": {}, "$ref": True}},
    {"$ref": "https://elsewhere/schema.json"},
    {"type": "object", "properties": {"next": SELF}, "required": ["next"]},
    {"anyOf": [SELF, {"type": "string"}]},
    {"type": "integer", "minimum": 2, "maximum": 2, "maxLength": "unread"},
    {"type": "array", "prefixItems": [{"type": "string"}], "items": False},
]


@pytest.mark.parametrize(("told", "schema"), FAULTS.items(), ids=FAULTS)
def test_the_part_at_fault_is_named(told: str, schema: dict[str, Any]) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    for field, value in (
        ("response_format", form),
        ("text", {"format": {"type": "json_schema", "schema": schema}}),
        ("structured_outputs", {"json": schema}),
        ("structured_outputs", {"json": json.dumps(schema)}),
    ):
        with pytest.raises(Refusal) as refused:
            require_affordable_forms({field: value}, 3000)
        name = "json" if field == "structured_outputs" else field
        assert refused.value.message.startswith(f"{name}: {told}")
        assert (refused.value.status, refused.value.field) == (400, name)


def test_a_forced_tool_is_read_and_an_offered_one_is_not() -> None:
    tool = {"type": "function", "function": {"name": "a", "parameters": {"type": "matrix"}}}
    assert require_affordable_forms({"tools": [tool]}, 3000) == []
    with pytest.raises(Refusal, match="tools: type is 'matrix'"):
        require_affordable_forms({"tools": [tool], "tool_choice": "required"}, 3000)


@pytest.mark.parametrize(
    "form",
    [
        {"response_format": {"type": "json_object"}},
        {"structured_outputs": {"json_object": True}},
        {"structured_outputs": {"choice": ["a"]}},
        {"text": {"format": {"type": "json_object"}}},
    ],
    ids=str,
)
def test_tokens_are_chosen_by_the_caller_or_by_a_form(form: dict[str, Any]) -> None:
    with pytest.raises(Refusal, match="allowed_token_ids beside"):
        require_tokens_left({**form, "allowed_token_ids": [5]})
    for alone in (form, {"allowed_token_ids": [5]}, {**form, "allowed_token_ids": None}):
        require_tokens_left(alone)


@pytest.mark.parametrize("schema", SOUND, ids=str)
def test_what_is_data_or_unread_is_no_fault(schema: dict[str, Any]) -> None:
    assert require_affordable_forms({"structured_outputs": {"json": schema}}, 10**9) == []


@pytest.mark.parametrize("tools", TOOL_SETS.values(), ids=TOOL_SETS)
def test_the_tools_of_agents_are_sound(tools: list[dict[str, Any]]) -> None:
    assert require_affordable_forms({"tools": tools, "tool_choice": "required"}, 10**9) == []


@pytest.mark.parametrize("ends", [{"type": "string"}, {"$ref": "#/$defs/d0"}])
def test_long_chains_of_references_take_a_bounded_time(ends: dict[str, Any]) -> None:
    links = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(1500)}
    document = {"$ref": "#/$defs/d0", "$defs": {**links, "d1500": ends}}
    require_sound(document, "json")
    straight = {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(1500)}
    document = {"$ref": "#/$defs/d0", "$defs": {**straight, "d1500": ends}}
    if "$ref" in ends:
        with pytest.raises(Refusal, match="only leads to itself"):
            require_sound(document, "json")
    else:
        require_sound(document, "json")


_values: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, 0, 3, -2, 2.5, 2**70, "a", "string", [], {}, ["a"], [None]]
)
_keywords = st.sampled_from(
    [
        *("minLength", "maxLength", "minimum", "maximum", "exclusiveMaximum", "required", "const"),
        *("enum", "default", "additionalProperties", "pattern", "minItems"),
    ]
)
_references = st.sampled_from(["#", "#/$defs/a", "#/$defs/b", "#/nowhere", "urn:x"])
_leaves = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["string", "integer", "number", "object", "array", None, ["null"]]),
        "$ref": _references,
    },
)


def _nest(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(inner, max_size=2)
    parts = {
        "properties": st.dictionaries(st.sampled_from(["a", "type"]), inner, max_size=2),
        **{"anyOf": several, "oneOf": several, "allOf": several, "items": inner},
    }
    one = st.one_of(*(st.fixed_dictionaries({name: part}) for name, part in parts.items()))
    odd = st.dictionaries(_keywords, _values, max_size=2)
    return st.builds(lambda *many: {**many[0], **many[1], **many[2]}, _leaves, one, odd)


schemas = st.builds(
    lambda whole, a, b: {**whole, "$defs": {"a": a, "b": b}},
    st.recursive(_leaves, _nest, max_leaves=4),
    *(_leaves, _leaves),
)


@given(schemas)
@example({"items": {}, "required": None})
@settings(max_examples=100)
def test_what_is_refused_xgrammar_does_not_compile_either(schema: dict[str, Any]) -> None:
    xgrammar = pytest.importorskip("xgrammar")
    try:
        require_sound(schema, "json")
        return
    except Refusal as refusal:
        if "only leads to itself" in refusal.message:
            return  # It is read, and leaves no token: see the engine's tests.
    with pytest.raises((RuntimeError, ValueError)):
        xgrammar.Grammar.from_json_schema(schema)
