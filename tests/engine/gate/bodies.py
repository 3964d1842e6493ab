"""Bodies made from vLLM's own request classes: every field of a route, as large as it may be.

A class is read as a JSON schema. Wherever a value may stand, there is a body with each of some
hostile values in its place, and around it the least that the class needs.
"""

import json
from collections.abc import Iterator
from typing import Any

from pydantic import TypeAdapter

from slipstream.serving.access.gate_file import GateLimits
from slipstream.vllm_plugin.gate.requests.policy import MOST_TOKENS

Schema = dict[str, Any]
LIMITS = GateLimits()
DEEPEST = 5
# Beside it, a body has a few values that its class needs.
MOST = LIMITS.values - 100


def list_bodies(request: Any) -> Iterator[tuple[str, Any]]:
    """Yield documents by name."""
    schema = TypeAdapter(request).json_schema()
    return _fill(schema, schema.get("$defs", {}), "", 0, set())


def _fill(node: Schema, known: Schema, name: str, depth: int, seen: set[str]) -> Iterator[Any]:
    """Yield values of a node with something hostile at each place within it."""
    if depth > DEEPEST:
        return
    for one in _list_choices(node, known):
        least = _make_least(one, known)
        for field, inner in one.get("properties", {}).items():
            where = f"{name}.{field}"
            # A type that stands at several places is filled at the first of them.
            mark = json.dumps([field, inner], sort_keys=True)
            if depth and mark in seen:
                continue
            seen.add(mark)
            for what, hostile in _list_hostile(inner, known):
                yield f"{where} {what}", {**least, field: hostile}
            for within, value in _fill(inner, known, where, depth + 1, seen):
                yield within, {**least, field: value}
        items = one.get("items")
        if isinstance(items, dict):
            for within, value in _fill(items, known, f"{name}[]", depth + 1, seen):
                yield within, [value]
        further = one.get("additionalProperties")
        if isinstance(further, dict):
            for within, value in _fill(further, known, f"{name}{{}}", depth + 1, seen):
                yield within, {"k": value}


def _list_anywhere() -> Iterator[tuple[str, Any]]:
    empty: tuple[Any, ...] = ({}, "", 0, None, True, 0.5, [])
    for value in empty:
        yield f"list of {json.dumps(value)}", [value] * MOST
        yield f"turns of {json.dumps(value)}", [value] * (LIMITS.turns - 10)
        yield f"list of a list of {json.dumps(value)}", [[value] * MOST]
    for value in empty[:3]:
        keys = {f"{key:x}": value for key in range(MOST)}
        yield f"keys with {json.dumps(value)}", keys
        yield f"list of keys with {json.dumps(value)}", [keys]
    yield "text", "a b " * (LIMITS.body_bytes // 4 - 1000)
    yield "tokens", [1] * (LIMITS.body_bytes // 2 - 1000)
    yield "as many tokens as may be", [1] * MOST_TOKENS


ANYWHERE = tuple(_list_anywhere())


def _list_hostile(node: Schema, known: Schema) -> Iterator[tuple[str, Any]]:
    yield from ANYWHERE
    for one in _list_choices(node, known):
        for item in _list_choices(one.get("items") or {}, known):
            entry = _make_least(item, known)
            count, what = MOST // _count(entry), json.dumps(entry)[:60]
            yield f"list of {what}", [entry] * count
            # As many as may be in a conversation, in lists within lists, too.
            yield f"turns of {what}", [entry] * min(count, LIMITS.turns // _count(entry))


def _list_choices(node: Schema, known: Schema) -> list[Schema]:
    """List what a value may be, without references and alternatives."""
    if "$ref" in node:
        return _list_choices(known[node["$ref"].rpartition("/")[2]], known)
    several = node.get("anyOf") or node.get("oneOf") or node.get("allOf")
    if several is None:
        return [node]
    return [choice for one in several for choice in _list_choices(one, known)]


def _make_least(node: Schema, known: Schema) -> Any:
    """Make a small value that the node allows."""
    one = _list_choices(node, known)[0]
    if "const" in one:
        return one["const"]
    if "enum" in one:
        return one["enum"][0]
    kind = one.get("type")
    if kind == "object" or "properties" in one:
        needed = one.get("required", ())
        return {name: _make_least(one["properties"][name], known) for name in needed}
    if kind == "array":
        return [_make_least(one["items"], known)] if one.get("items") else []
    return {"string": "a", "integer": 1, "number": 1.0, "boolean": True}.get(str(kind))


def _count(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(_count, inner))
