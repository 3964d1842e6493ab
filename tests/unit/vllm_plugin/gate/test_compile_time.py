"""What passes compiles in a bounded time: the figures of the cost model, against the real xgrammar.

Times are of the processor, in one thread, and relative to two schemas: one whose cost is held
against every token of the vocabulary, and one whose cost is the size of its grammar.
"""

import json
import random
import sys
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from slipstream.serving.access.gate_file import GateLimits
from slipstream.vllm_plugin.gate.schema_cost import weigh
from tests.unit.vllm_plugin.gate.agent_tools import EXTRACTION, TOOL_SETS

xgrammar = pytest.importorskip("xgrammar")

Schema = dict[str, Any]
MOST = GateLimits().schema_units
# The model is right within this factor, for a vocabulary unlike the one that it was made with.
WITHIN = 2
LEAST_UNITS = 100
TEXT: Schema = {"type": "string"}
TOKENS = 6000


@cache
def make_compiler() -> Any:
    """Make a compiler for a vocabulary of characters, JSON's signs, numbers and words."""
    rng = random.Random(0)
    parts = ["an", "be", "ch", "de", "er", "fo", "gi", "ho", "in", "ka", "le", "mo", "ne", "st"]
    tokens = [chr(code) for code in range(32, 127)]
    tokens += ['",', '":', '": "', '", "', '"}', '"]', "},", "[{", '{"', "]}", "</s>"]
    tokens += [str(number) for number in range(10, 100)]
    while len(tokens) < TOKENS:
        word = "".join(rng.choices(parts, k=rng.randint(1, 4)))
        tokens.append(rng.choice(("", " ", " ")) + word + rng.choice(("", "", "", "s", ".", ",")))
    tokens = [*dict.fromkeys(tokens)]
    info = xgrammar.TokenizerInfo(tokens, stop_token_ids=[tokens.index("</s>")])
    return xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)


def compile_seconds(schema: Schema) -> float:
    """Return the processor time of one compile, as vLLM asks for it."""
    compiler = make_compiler()
    started = time.process_time()
    compiler.compile_json_schema(json.dumps(schema))
    return time.process_time() - started


def pack(parts: list[Schema]) -> Schema:
    return {
        "type": "object",
        "properties": {f"part{number}": part for number, part in enumerate(parts)},
        "required": [f"part{number}" for number in range(len(parts))],
    }


REFERENCES: tuple[Schema, ...] = (
    {"type": "string", "maxLength": 40},
    pack([{"type": "array", "items": TEXT, "maxItems": 100}] * 60),
)


@cache
def seconds_per_unit() -> float:
    return max(
        min(compile_seconds(schema) for _ in range(2)) / weigh(schema).units
        for schema in REFERENCES
    )


def record(count: int, *, optional: bool = True, **more: Any) -> Schema:
    properties = {f"p{number}": TEXT for number in range(count)}
    required = [] if optional else [*properties]
    return {"type": "object", "properties": properties, "required": required, **more}


MAKERS: dict[str, Callable[[int], Schema]] = {
    "maxLength": lambda size: {"type": "string", "maxLength": 3 * size},
    "minLength": lambda size: {"type": "string", "minLength": 3 * size},
    "several lengths": lambda size: pack(
        [{"type": "string", "maxLength": 5 + n} for n in range(size // 3)]
    ),
    "optional": lambda size: record(5 * size),
    "open": lambda size: record(3 * size, additionalProperties=True),
    "open and required": lambda size: record(3 * size, optional=False, additionalProperties=TEXT),
    "counted": lambda size: record(2 * size, maxProperties=size),
    "alternatives": lambda size: {
        "anyOf": [{"type": "array", "items": TEXT, "minItems": n} for n in range(3 * size)]
    },
    "emails": lambda size: pack([{"type": "string", "format": "email"}] * size),
    "addresses": lambda size: pack([{"type": "string", "format": "uri-reference"}] * size),
    "pattern": lambda size: {"type": "string", "pattern": f"^[^x]{{1,{min(100, 3 * size)}}}$"},
    "patterns": lambda size: pack([{"type": "string", "pattern": f"^[a-z]{{1,{9}}}-$"}] * size),
    "enum": lambda size: {"enum": [f"{n * 7919 % 10007} of many" for n in range(50 * size)]},
    "const": lambda size: {"const": "ab " * 500 * size},
    "items": lambda size: pack([{"type": "array", "items": TEXT, "maxItems": 100}] * 6 * size),
    "far items": lambda size: {"type": "array", "items": TEXT, "maxItems": 10 ** min(size, 9)},
    "free properties": lambda size: pack([{"type": "object", "maxProperties": 60}] * 8 * size),
    "numbers": lambda size: pack([{"type": "string", "pattern": "^[0-9]{1,50}$"}] * 9 * size),
    "nested": lambda size: {"type": "array", "items": MAKERS["nested"](size - 1)} if size else TEXT,
}


def grow(kind: str) -> Schema:
    """Make the largest of a kind that passes."""
    sizes = range(40, 0, -3)
    return next(schema for size in sizes if weigh(schema := MAKERS[kind](size)).units <= MOST)


def mix(seed: int) -> Schema:
    """Put parts of all kinds together until no other passes."""
    rng = random.Random(seed)
    parts: list[Schema] = []
    while True:
        kind = rng.choice([*MAKERS])
        part = MAKERS[kind](rng.randint(1, 12))
        if weigh(pack([*parts, part])).units > MOST:
            return pack(parts)
        parts.append(part)


def require_bounded(name: str, schema: Schema) -> None:
    units = weigh(schema).units
    assert units <= MOST
    allowed = WITHIN * seconds_per_unit() * max(units, LEAST_UNITS)
    seconds = compile_seconds(schema)
    if seconds > allowed:  # Something else may have had the processor.
        seconds = compile_seconds(schema)
    sys.stdout.write(
        f"{name}: {units} units, {seconds * 1000:.0f} ms; allowed {allowed * 1000:.0f} ms\n"
    )
    assert seconds < allowed


@pytest.mark.parametrize("kind", MAKERS)
def test_the_largest_of_a_kind_compiles_in_time(kind: str) -> None:
    schema = grow(kind)
    require_bounded(kind, schema)
    assert weigh(schema).units <= MOST


@pytest.mark.parametrize("seed", range(4))
def test_a_mixture_that_just_passes_compiles_in_time(seed: int) -> None:
    schema = mix(seed)
    require_bounded(f"mixture {seed}", schema)
    assert weigh(schema).units > MOST / 4


@pytest.mark.parametrize("name", [*TOOL_SETS, "extraction"])
def test_what_agents_send_compiles_in_time(name: str) -> None:
    tools = [tool["function"]["parameters"] for tool in TOOL_SETS.get(name, ())]
    schema = pack(tools) if tools else EXTRACTION
    require_bounded(name, schema)
    assert weigh(schema).units <= MOST


def test_the_schema_that_stalled_the_engine_takes_far_longer() -> None:
    """Ten lengths of about a thousand, in 401 bytes; only three of them here, to be done soon."""
    attack = pack([{"type": "string", "maxLength": 1000 + number} for number in range(3)])
    assert weigh(attack).units > 20 * MOST
    assert compile_seconds(attack) > 4 * compile_seconds(REFERENCES[0])
