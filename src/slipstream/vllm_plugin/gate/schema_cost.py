"""The cost of a constraint for the engine: one figure, from how xgrammar compiles each part.

A unit is about one millisecond of a core's compile time, with a vocabulary of 49,152 tokens. What
slows down every token instead is charged at 0.1 ms a token for about 40 units. Measured with
xgrammar 0.2.8:

| part of a schema | units |
| --- | --- |
| a distinct pair of string lengths | 15 for each character up to minLength, 25 from there on |
| `n` optional properties of one object | n / 3 + n**2 / 15 |
| a property beside others that are free to choose | 25 |
| `n` properties under minProperties or maxProperties k | 0.6 n k |
| an item of minItems or maxItems (the first 128) | 0.00018 for each object of the whole schema |
| a further alternative that the first property does not tell | 30 |
| a set of characters in a pattern, for each repeat | 0.1 to 6 by its letters, 18 with a space |
| format email, uri, uri-reference / hostname, ipv6 / others | 50 / 20 / 5 |
| format uri-template | 20,000, which is never allowed by default |
| a character of an enum, a const, a choice or a property's name | 0.01 |
| `n` characters at the start or end of a value that another value beside it shares | n**2 / 5000 |
| each object of the schema | 0.2 |

A `$ref` is free, since what it names is compiled once. So is a nullable, and a union whose members
a constant tells apart. Items are counted out in the grammar, which is passed over for each of them:
one array of 100,000 compiles in 20 ms, but 200 arrays of 100 take 1.4 s. Values of an enum that end
alike are merged state by state: two of 4,000 characters take 6.5 s, five of other words 0.1 s.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import chain, pairwise
from math import inf
from typing import Any, NamedTuple

from slipstream.vllm_plugin.gate.patterns import list_patterns, weigh_pattern
from slipstream.vllm_plugin.gate.request_limits import walk

LENGTHS = ("minLength", "maxLength")
MIN_LENGTH_UNITS = 15
MAX_LENGTH_UNITS = 25
OPEN_PROPERTY_UNITS = 25
COUNTED_PROPERTY_UNITS = 0.6
ALTERNATIVE_UNITS = 30
CHARACTER_UNITS = 0.01
SHARED_PAIRS_FOR_ONE_UNIT = 5000
OBJECT_UNITS = 0.2
OPTIONAL_FOR_ONE_UNIT = 3
OPTIONAL_PAIRS_FOR_ONE_UNIT = 15
ITEM_UNITS_PER_OBJECT = 0.00018
MOST_ITEMS_COUNTED = 128
# 16 to 59 ms of the engine's loop for every token; the other formats take 0.02 to 1.
COSTLY_FORMAT, COSTLY_FORMAT_UNITS = "uri-template", 20_000
FORMAT_UNITS = {
    **{"email": 50, "uri": 50, "uri-reference": 50, "hostname": 20, "ipv6": 20},
    COSTLY_FORMAT: COSTLY_FORMAT_UNITS,
}
OTHER_FORMAT_UNITS = 5
COSTLY_KEYS = frozenset(
    {
        *LENGTHS,
        *("minItems", "maxItems", "minProperties", "maxProperties"),
        *("properties", "patternProperties", "pattern", "format"),
        *("anyOf", "oneOf", "enum", "const"),
    }
)
# A bound that is no sound number is the engine's to refuse, and a large one is large enough.
MOST_COUNTED = 10**6
MOST_BRANCHES_READ = 500


Definitions = Callable[[], dict[str, Any]]


class Cost(NamedTuple):
    """The cost units of a constraint, and its most expensive part."""

    units: int
    mostly: str


def weigh(constraint: Any, most: float = inf) -> Cost:
    """Add up what a schema compiles to, and stop counting soon after it is too much."""
    return _add_up(_weigh_parts(constraint, most))


def weigh_choices(choices: Any, most: float = inf) -> Cost:
    """Add up what a list of texts compiles to."""
    units = _weigh_text(choices)
    if isinstance(choices, list) and units <= most:
        units += _weigh_shared(choices)
    return _add_up({"choices": units})


def weigh_regex(pattern: str) -> Cost:
    """Add up what a pattern compiles to."""
    return _add_up({"repeated sets of characters": weigh_pattern(pattern)})


def _add_up(parts: Mapping[str, float]) -> Cost:
    return Cost(round(sum(parts.values())), max(parts, key=lambda name: parts[name]))


def _weigh_parts(constraint: Any, most: float) -> dict[str, float]:
    parts: dict[str, float] = defaultdict(float)
    definitions = cache(lambda: _find_definitions(constraint))
    lengths: set[tuple[int, int]] = set()
    objects = items = 0
    for part in walk(constraint):
        objects += isinstance(part, dict)
        if not isinstance(part, dict) or COSTLY_KEYS.isdisjoint(part):
            continue
        items += _count_items(part)
        lengths.add(_read_bounds(part, *LENGTHS))
        parts["properties"] += _weigh_properties(part)
        parts["alternatives"] += _weigh_alternatives(part, definitions)
        parts["formats (uri-template is the costliest)"] += _weigh_format(part)
        parts["patterns"] += _weigh_patterns(part)
        parts["enum and const"] += sum(
            _weigh_text(part[name]) for name in ("enum", "const") if name in part
        )
        if sum(parts.values()) <= most:
            parts["enum and const"] += sum(map(_weigh_shared, _list_values(part)))
        if sum(parts.values()) > most:
            break
    parts["objects"] = OBJECT_UNITS * objects
    parts["minItems and maxItems"] = ITEM_UNITS_PER_OBJECT * items * objects
    parts["minLength and maxLength"] = sum(
        MIN_LENGTH_UNITS * shortest + MAX_LENGTH_UNITS * max(0, longest - shortest)
        for shortest, longest in lengths
    )
    return parts


def _weigh_properties(part: dict[str, Any]) -> float:
    declared = part.get("properties")
    if not isinstance(declared, dict) or not declared:
        return 0
    required = part.get("required")
    required = set(map(str, required)) if isinstance(required, list) else set()
    count = len(declared)
    optional = count - len(required & declared.keys())
    units = optional / OPTIONAL_FOR_ONE_UNIT + optional**2 / OPTIONAL_PAIRS_FOR_ONE_UNIT
    units += _weigh_text(list(declared))
    if any(
        part.get(name, False) is not False
        for name in ("additionalProperties", "unevaluatedProperties", "patternProperties")
    ):
        units += OPEN_PROPERTY_UNITS * count
    bound = min(count, max(_read_bounds(part, "minProperties", "maxProperties")))
    return units + COUNTED_PROPERTY_UNITS * count * bound


def _count_items(part: dict[str, Any]) -> int:
    """Count what the grammar counts out: items, and the properties of an object without names."""
    most = max(_read_bounds(part, "minItems", "maxItems"))
    if not part.get("properties"):
        most = max(most, *_read_bounds(part, "minProperties", "maxProperties"))
    return min(MOST_ITEMS_COUNTED, most)


def _weigh_alternatives(part: dict[str, Any], definitions: Definitions) -> float:
    """Charge for branches of a union with the same start, beyond the first."""
    alike = 0
    for name in ("anyOf", "oneOf"):
        branches = part.get(name)
        if not isinstance(branches, list):
            continue
        if len(branches) > MOST_BRANCHES_READ:
            alike += len(branches)
            continue
        told: set[str] = set()
        open_branches = 0
        for branch in branches:
            start = _read_start(branch, definitions)
            open_branches += start is None or start in told
            told.add(start or "")
        alike += max(0, open_branches - 1)
    return alike * ALTERNATIVE_UNITS


def _read_start(branch: Any, definitions: Definitions) -> str | None:
    """Return what tells a branch from the others at once, if anything does."""
    if isinstance(branch, dict) and isinstance(reference := branch.get("$ref"), str):
        branch = definitions().get(reference.rpartition("/")[2])
    if not isinstance(branch, dict):
        return None
    if branch.get("type") in ("null", "boolean"):
        return str(branch["type"])
    if (value := _read_constant(branch)) is not None:
        return value
    declared, required = branch.get("properties"), branch.get("required")
    if not isinstance(declared, dict) or not declared or not isinstance(required, list):
        return None
    first, schema = next(iter(declared.items()))
    if first not in required:
        return None
    return f"{first}: {_read_constant(schema) if isinstance(schema, dict) else None}"


def _read_constant(schema: dict[str, Any]) -> str | None:
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    return json.dumps(values) if isinstance(values, list) and len(values) == 1 else None


def _find_definitions(constraint: Any) -> dict[str, Any]:
    """Find what a `$ref` can name; a name that means two things means nothing here."""
    found: dict[str, Any] = {}
    for part in walk(constraint):
        for key in ("$defs", "definitions") if isinstance(part, dict) else ():
            if isinstance(named := part.get(key), dict):
                for name, schema in named.items():
                    found[name] = schema if found.get(name, schema) == schema else None
    return found


def _weigh_format(part: dict[str, Any]) -> float:
    name = part.get("format")
    return FORMAT_UNITS.get(name, OTHER_FORMAT_UNITS) if isinstance(name, str) else 0


def _weigh_patterns(part: dict[str, Any]) -> float:
    return sum(map(weigh_pattern, list_patterns(part)))


def _weigh_text(value: Any) -> float:
    return len(json.dumps(value)) * CHARACTER_UNITS


def _list_values(part: dict[str, Any]) -> Iterator[list[Any]]:
    """Yield the lists of values to choose from: an enum, and the constants of a union."""
    if isinstance(values := part.get("enum"), list):
        yield values
    for name in ("anyOf", "oneOf"):
        branches = part.get(name)
        if isinstance(branches, list):
            inner = [branch for branch in branches if isinstance(branch, dict)]
            enums = [branch["enum"] for branch in inner if isinstance(branch.get("enum"), list)]
            yield [branch["const"] for branch in inner if "const" in branch] + list(chain(*enums))


def _weigh_shared(values: list[Any]) -> float:
    """Charge for prefixes and suffixes that several values share."""
    texts = [json.dumps(value) for value in values]
    pairs = 0
    for written in (texts, [text[::-1] for text in texts]):
        ordered = sorted(written)
        beside = [0, *map(_count_shared, ordered, ordered[1:]), 0]
        pairs += sum(max(before, after) ** 2 for before, after in pairwise(beside))
    return pairs / SHARED_PAIRS_FOR_ONE_UNIT


def _count_shared(left: str, right: str) -> int:
    """Count the letters that two texts begin with alike."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[:middle] == right[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _read_bounds(part: dict[str, Any], least: str, most: str) -> tuple[int, int]:
    return _read_count(part.get(least)), _read_count(part.get(most))


def _read_count(value: Any) -> int:
    return int(min(max(value, 0), MOST_COUNTED)) if isinstance(value, int | float) else 0
