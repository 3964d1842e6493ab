"""Whether a client can use a tool call: a known tool, with arguments that fit it."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from slipstream.measuring.client.sample import CallOutcome, ToolCall


def judge_call(
    calls: Sequence[ToolCall], expected: str | None, tools: Sequence[Mapping[str, Any]]
) -> CallOutcome:
    """Return whether the arguments of the first call fit its tool; `expected` may be any tool."""
    if not calls:
        return "no call"
    shapes = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
    call = calls[0]
    if call.name not in shapes or expected not in (None, call.name):
        return "another tool"
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return "not JSON"
    return "parsed" if _fits(arguments, shapes[call.name]) else "against the schema"


def _fits(value: Any, shape: Mapping[str, Any]) -> bool:
    """Compare a value with what the schemas of our own tools use of JSON Schema."""
    kind = shape["type"]
    if kind == "object":
        properties = shape["properties"]
        return (
            isinstance(value, dict)
            and set(shape["required"]) <= set(value) <= set(properties)
            and all(_fits(part, properties[name]) for name, part in value.items())
        )
    if kind == "array":
        return (
            isinstance(value, list)
            and shape["minItems"] <= len(value) <= shape["maxItems"]
            and all(_fits(part, shape["items"]) for part in value)
        )
    if kind == "string":
        allowed, longest = shape.get("enum"), shape.get("maxLength")
        return isinstance(value, str) and (
            value in allowed if allowed else longest is None or len(value) <= longest
        )
    if kind == "boolean":
        return isinstance(value, bool)
    whole = isinstance(value, int) and not isinstance(value, bool)
    return whole and shape["minimum"] <= value <= shape["maximum"]
