"""Schemas that the engine cannot compile, refused with the name of the faulty part.

vLLM 0.32 has xgrammar read a schema before it takes the request, and answers with a line of its
source. Schemas that only lead to themselves are read, and then leave no token to choose: vLLM fails
the request with a 500. What is refused here, xgrammar refuses or fails on, too.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from math import inf
from typing import Any

from slipstream.vllm_plugin.gate.answers import Refusal

Schema = dict[str, Any]
TYPES = frozenset({"string", "integer", "number", "boolean", "null", "array", "object"})
# Of these xgrammar reads the first that it finds, and nothing beside it.
ALONE = ("$ref", "const", "enum", "anyOf", "oneOf", "allOf")
UNIONS = ("anyOf", "oneOf", "allOf")
INT64 = 2**63
# References that are followed in one schema, and unions within unions by way of them.
MOST_STEPS = 5_000
MOST_UNIONS = 50


class Fault(Exception):
    """What is wrong with a part of a schema."""


def require_sound(schema: Any, field: str) -> None:
    """Refuse a schema that cannot be compiled."""
    try:
        if not isinstance(schema, dict):
            raise Fault("it is not an object")
        _require_text(schema)
        reader = _Reader(schema)
        for part in reader.walk():
            reader.check(part)
    except Fault as fault:
        raise Refusal(400, f"{field}: {fault}", field=field, reason="faulty_schema") from None


class _Reader:
    """Walks through the parts of a schema that are schemas: not constants, names or examples."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._steps = 0

    def walk(self) -> Iterator[Schema]:
        """Yield every part that the engine reads, each once."""
        waiting: list[Any] = [self._root]
        seen: set[int] = set()
        while waiting:
            part = waiting.pop()
            if isinstance(part, bool):
                continue
            if not isinstance(part, dict):
                raise Fault(f"{_show(part)} stands where a schema should")
            if id(part) not in seen:
                seen.add(id(part))
                yield part
                waiting += self._list_children(part)

    def check(self, part: Schema) -> None:
        """Refuse what a part says in a way that the engine does not read."""
        if self._leads_nowhere(part, set()):
            raise Fault(f"{_show(part)} only leads to itself")
        alone = next((name for name in ALONE if name in part), None)
        if alone == "enum" and not (isinstance(part["enum"], list) and part["enum"]):
            raise Fault("enum is not a list of values")
        if alone is not None:
            return
        kinds = _read_types(part)
        for kind, check in _CHECKS.items():
            if kind in kinds:
                check(part)

    def _list_children(self, part: Schema) -> list[Any]:
        if "$ref" in part:
            target = self._resolve(part["$ref"])
            return [] if target is None else [target]
        if any(name in part for name in ALONE):
            return _read_branches(part)
        kinds, children = _read_types(part), []
        if "object" in kinds:
            children += list(part.get("properties", {}).values())
        if "array" in kinds and isinstance(part.get("items"), dict):
            children.append(part["items"])
        return children

    def _resolve(self, reference: Any) -> Any:
        """Return what a reference names; None if it is for another document, which is ignored."""
        if not isinstance(reference, str):
            raise Fault(f"$ref is {_show(reference)} and not a text")
        if reference == "#":
            return self._root
        if not reference.startswith("#/"):
            return None
        found: Any = self._root
        for name in reference[2:].split("/"):
            if not isinstance(found, dict) or name not in found:
                raise Fault(f"$ref: there is no {_show(reference)}")
            found = found[name]
        return found

    def _leads_nowhere(self, part: Any, before: set[str], unions: int = 0) -> bool:
        """Return whether a part is only references that come back to themselves."""
        while isinstance(part, dict) and self._steps < MOST_STEPS:
            self._steps += 1
            if "$ref" in part:
                reference, part = part["$ref"], self._resolve(part["$ref"])
                if reference in before:
                    return True
                before.add(reference)
                continue
            branches = _read_branches(part)
            if len(branches) != 1:
                return (
                    len(branches) > 1
                    and unions < MOST_UNIONS
                    and all(self._leads_nowhere(one, {*before}, unions + 1) for one in branches)
                )
            (part,) = branches
        return False


def _read_branches(part: Schema) -> list[Any]:
    """Return the schemas of which one is to be kept; several at once are none to xgrammar."""
    if "const" in part or "enum" in part:
        return []
    name = next((name for name in UNIONS if name in part), None)
    branches = part[name] if name else []
    if not isinstance(branches, list):
        raise Fault(f"{name} is not a list")
    return [] if name == "allOf" and len(branches) > 1 else branches


def _read_types(part: Schema) -> set[str]:
    if "type" not in part:
        implied = (kind for names, kind in _IMPLIED.items() if not names.isdisjoint(part))
        return {*islice(implied, 1)}
    kinds = part["type"] if isinstance(part["type"], list) else [part["type"]]
    for kind in kinds:
        if not isinstance(kind, str) or kind not in TYPES:
            raise Fault(f"type is {_show(kind)}, which is none")
    return set(kinds)


def _check_string(part: Schema) -> None:
    if "format" in part or "pattern" in part:
        return
    bounds = []
    for name, otherwise in (("minLength", 0), ("maxLength", INT64)):
        value = part.get(name, otherwise)
        if isinstance(value, bool) or not isinstance(value, int):
            raise Fault(f"{name} is {_show(value)} and not a whole number")
        bounds.append(value)
    if bounds[0] > bounds[1] or min(bounds) < 0:
        raise Fault("minLength and maxLength leave no text")


def _check_integer(part: Schema) -> None:
    _check_number(part)
    for name in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
        if abs(part.get(name, 0)) > INT64:
            raise Fault(f"{name} is past 64 bits")


def _check_number(part: Schema) -> None:
    names = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
    bounds = {name: part[name] for name in names if name in part}
    for name, value in bounds.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Fault(f"{name} is {_show(value)} and not a number")
    least, above, most, below = map(bounds.get, names)
    lower = max((one for one in (least, above) if one is not None), default=-inf)
    upper = min((one for one in (most, below) if one is not None), default=inf)
    if lower > upper or (lower == upper and (lower == above or upper == below)):
        raise Fault("minimum and maximum leave no number")


def _check_array(part: Schema) -> None:
    if not isinstance(part.get("items", {}), dict | bool):
        raise Fault("items is not a schema")
    if not isinstance(part.get("prefixItems", []), list):
        raise Fault("prefixItems is not a list")


def _check_object(part: Schema) -> None:
    if not isinstance(part.get("properties", {}), dict):
        raise Fault("properties is not an object")
    required = part.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise Fault("required is not a list of names")


_CHECKS: dict[str, Callable[[Schema], None]] = {
    "string": _check_string,
    "integer": _check_integer,
    "number": _check_number,
    "object": _check_object,
    "array": _check_array,
}
# What xgrammar takes a schema without a type for, the first that fits.
_IMPLIED = {
    frozenset({"properties", "additionalProperties", "unevaluatedProperties"}): "object",
    frozenset({"items", "prefixItems", "unevaluatedItems"}): "array",
}


def _require_text(schema: Schema) -> None:
    waiting: list[Any] = [schema]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            waiting += [*one, *one.values()]
        elif isinstance(one, list):
            waiting += one
        elif isinstance(one, str) and not one.isascii():
            try:
                one.encode()
            except UnicodeEncodeError:
                raise Fault(f"{_show(one)} has half a character") from None


def _show(value: Any) -> str:
    return ascii(value)[:60]
