"""A tool call counts if a client can make it: a known tool, JSON, and what the schema allows."""

from typing import Any

import pytest

from slipstream.measuring.client.sample import ToolCall
from slipstream.measuring.tool_calls import check_call, find_misfit
from slipstream.measuring.verifying.conformance.cases import CASES
from slipstream.measuring.verifying.conformance.cases import TOOLS as CASE_TOOLS
from tests.unit.measuring.verifying.conformance.toy_calls import fill

TRIP = CASE_TOOLS["book_trip"].schema
SCHEMAS = [
    *(tool.schema for tool in CASE_TOOLS.values()),
    *(case.schema for case in CASES if case.schema),
]

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "parameters": {
                "type": "object",
                "properties": {
                    "path": {"type": "string", "maxLength": 5},
                    "kind": {"type": "string", "enum": ["text", "regex"]},
                    "lines": {"type": "integer", "minimum": 1, "maximum": 9},
                    "all": {"type": "boolean"},
                    "text": {"type": "string"},
                    "parts": {
                        "type": "array",
                        "items": {"type": "string", "maxLength": 2},
                        "minItems": 1,
                        "maxItems": 2,
                    },
                },
                "required": ["path"],
                "additionalProperties": False,
            },
        },
    },
    {"type": "function", "function": {"name": "stop", "parameters": {}}},
]


@pytest.mark.parametrize(
    ("arguments", "outcome"),
    [
        ('{"path": "a.py"}', "parsed"),
        ('{"path": "", "kind": "text", "lines": 9, "all": false, "parts": ["é"]}', "parsed"),
        ('{"path": "a", "text": "as long as one likes"}', "parsed"),
        ('{"path": "a.py"', "not JSON"),
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "schema mismatch"),
        ("{}", "schema mismatch"),
        ('{"path": "longer"}', "schema mismatch"),
        ('{"path": 1}', "schema mismatch"),
        ('{"path": "a", "more": 1}', "schema mismatch"),
        ('{"path": "a", "kind": "glob"}', "schema mismatch"),
        ('{"path": "a", "lines": true}', "schema mismatch"),
        ('{"path": "a", "all": 0}', "schema mismatch"),
        ('{"path": "a", "parts": []}', "schema mismatch"),
        ('{"path": "a", "parts": [null]}', "schema mismatch"),
    ],
)
def test_arguments_are_held_against_the_tools_schema(arguments: str, outcome: str) -> None:
    assert check_call([ToolCall(name="look", arguments=arguments)], "look", TOOLS) == outcome
    assert check_call([ToolCall(name="look", arguments=arguments)], None, TOOLS) == outcome


def test_no_call_and_another_tool_are_told_apart() -> None:
    look = ToolCall(name="look", arguments='{"path": "a"}')
    assert check_call([], "look", TOOLS) == "no call"
    assert check_call([look], "stop", TOOLS) == "wrong tool"
    assert check_call([ToolCall(name="rm", arguments="{}")], None, TOOLS) == "wrong tool"


@pytest.mark.parametrize("schema", SCHEMAS)
def test_what_fits_has_no_misfit(schema: dict[str, Any]) -> None:
    assert find_misfit(fill(schema), schema) is None


@pytest.mark.parametrize(
    ("change", "misfit"),
    [
        ({"budget": True}, "arguments.budget is not number: True"),
        ({"budget": 100}, "arguments.budget is out of bounds: 100"),
        ({"insured": 1}, "arguments.insured is not boolean: 1"),
        ({"stops": []}, "the length of arguments.stops is out of bounds: 0"),
        ({"stops": [{"city": "Oslo"}, {"city": "Bonn"}]}, "arguments.stops[1].city is none of"),
        ({"stops": [{}, {}]}, "arguments.stops[0].city is missing"),
        ({"{": ""}, "arguments.{ is not a field"),
        ({"traveller": None}, "arguments.traveller is not object: None"),
        (
            {"traveller": {"name": "A name too long", "contact": {"phone": None}}},
            "the length of arguments.traveller.name is out of bounds: 15",
        ),
    ],
)
def test_a_misfit_is_named_by_its_place(change: dict[str, Any], misfit: str) -> None:
    assert (find_misfit(fill(TRIP) | change, TRIP) or "").startswith(misfit)


@pytest.mark.parametrize(
    ("value", "fits"), [(2, True), (2.0, True), (2.5, False), ("2", False), (True, False)]
)
def test_an_integer_is_whole_and_no_truth_value(value: Any, fits: bool) -> None:
    assert (find_misfit(value, {"type": "integer"}) is None) == fits
    assert (find_misfit(value, {"enum": [1, 2]}) is None) == fits
    for schema in ({"type": ["string", "null"]}, {"enum": ["C", None]}):
        assert find_misfit(None, schema) is None
