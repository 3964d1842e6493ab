"""A tool call counts if a client can make it: a known tool, JSON, and what the schema allows."""

import pytest

from slipstream.measuring.client.sample import ToolCall
from slipstream.measuring.tool_calls import judge_call

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
        ("[]", "against the schema"),
        ("{}", "against the schema"),
        ('{"path": "longer"}', "against the schema"),
        ('{"path": 1}', "against the schema"),
        ('{"path": "a", "more": 1}', "against the schema"),
        ('{"path": "a", "kind": "glob"}', "against the schema"),
        ('{"path": "a", "lines": 0}', "against the schema"),
        ('{"path": "a", "lines": true}', "against the schema"),
        ('{"path": "a", "lines": 1.5}', "against the schema"),
        ('{"path": "a", "all": 0}', "against the schema"),
        ('{"path": "a", "parts": []}', "against the schema"),
        ('{"path": "a", "parts": "ab"}', "against the schema"),
        ('{"path": "a", "parts": ["a", "b", "c"]}', "against the schema"),
        ('{"path": "a", "parts": [null]}', "against the schema"),
    ],
)
def test_arguments_are_held_against_the_tools_schema(arguments: str, outcome: str) -> None:
    assert judge_call([ToolCall(name="look", arguments=arguments)], "look", TOOLS) == outcome
    assert judge_call([ToolCall(name="look", arguments=arguments)], None, TOOLS) == outcome


def test_no_call_and_another_tool_are_told_apart() -> None:
    look = ToolCall(name="look", arguments='{"path": "a"}')
    assert judge_call([], "look", TOOLS) == "no call"
    assert judge_call([look], "stop", TOOLS) == "another tool"
    assert judge_call([ToolCall(name="rm", arguments="{}")], None, TOOLS) == "another tool"
