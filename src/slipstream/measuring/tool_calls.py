"""Whether a client can use a tool call: a known tool, with arguments that fit its JSON schema.

The check knows what our own tools and schemas use of JSON Schema.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from slipstream.measuring.client.sample import CallOutcome, ToolCall

_TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}


def check_call(
    calls: Sequence[ToolCall], expected: str | None, tools: Sequence[Mapping[str, Any]]
) -> CallOutcome:
    """Return whether the arguments of the first call fit its tool; `expected` may be any tool."""
    if not calls:
        return "no call"
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
    call = calls[0]
    if call.name not in schemas or expected not in (None, call.name):
        return "wrong tool"
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return "not JSON"
    return "schema mismatch" if find_misfit(arguments, schemas[call.name]) else "parsed"


def find_misfit(value: Any, schema: dict[str, Any]) -> str | None:
    """Return the first place where a value does not fit, and why; None if it fits."""
    return next(_list_misfits(value, schema, "arguments"), None)


def _list_misfits(value: Any, schema: dict[str, Any], path: str) -> Iterator[str]:
    kinds = schema.get("type", ())
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(_is(value, kind) for kind in kinds):
        yield f"{path} is not {' or '.join(kinds)}: {value!r}"
        return
    if "enum" in schema and not any(_equals(value, one) for one in schema["enum"]):
        yield f"{path} is none of the choices: {value!r}"
    if isinstance(value, dict):
        yield from _list_field_misfits(value, schema, path)
    elif isinstance(value, list):
        yield from _list_bounds(len(value), schema, "Items", f"the length of {path}")
        for at, entry in enumerate(value):
            yield from _list_misfits(entry, schema.get("items", {}), f"{path}[{at}]")
    elif isinstance(value, str):
        yield from _list_bounds(len(value), schema, "Length", f"the length of {path}")
    elif isinstance(value, int | float):
        yield from _list_bounds(value, schema, "imum", path)


def _list_field_misfits(value: dict[str, Any], schema: dict[str, Any], path: str) -> Iterator[str]:
    properties = schema.get("properties", {})
    yield from (
        f"{path}.{name} is missing" for name in schema.get("required", ()) if name not in value
    )
    for name, entry in value.items():
        if name in properties:
            yield from _list_misfits(entry, properties[name], f"{path}.{name}")
        elif schema.get("additionalProperties") is False:
            yield f"{path}.{name} is not a field"


def _list_bounds(size: float, schema: dict[str, Any], suffix: str, what: str) -> Iterator[str]:
    least, most = schema.get(f"min{suffix}"), schema.get(f"max{suffix}")
    if (least is not None and size < least) or (most is not None and size > most):
        yield f"{what} is out of bounds: {size}"


def _is(value: Any, kind: str) -> bool:
    """Return whether a value is of a type; JSON's true is no number, and 2.0 is an integer."""
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES[kind])


def _equals(value: Any, other: Any) -> bool:
    return bool(value == other) and isinstance(value, bool) == isinstance(other, bool)
