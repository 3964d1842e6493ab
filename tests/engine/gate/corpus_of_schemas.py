"""Hostile constraints: schemas, patterns, choices and tools, each in the forms that it can take.

`SCHEMAS_PAST_LIMITS` cost too much to compile and never reach the engine. Those for the engine pass
the gate, unless the attacker has had too many new ones measured within a minute (429).
"""

import json
from typing import Any

from tests.engine.gate.hostile import (
    HELLO,
    REFUSED,
    Hostile,
    chat,
    constrain,
    respond,
    schema,
    text,
)

Schema = dict[str, Any]
TEXT: Schema = {"type": "string"}
BOMB = "(.*){1,100}[bc]"
COPES = (200, 400, 429)


def record(properties: Schema, **more: Any) -> Schema:
    return {"type": "object", "properties": properties, **more}


def names(count: int, value: Any = TEXT) -> Schema:
    return {f"p{number}": value for number in range(count)}


def lengths(*most: int, field: str = "maxLength") -> Schema:
    return record({f"p{count}": {"type": "string", field: count} for count in most})


def chain(depth: int, end: Schema) -> Schema:
    """Make references to references, up to a schema."""
    links = {f"d{number}": {"$ref": f"#/$defs/d{number + 1}"} for number in range(depth)}
    return {"$ref": "#/$defs/d0", "$defs": {**links, f"d{depth}": end}}


def nest(depth: int, inner: Schema, key: str = "items") -> Schema:
    for _ in range(depth):
        inner = {"type": "array", "items": inner} if key == "items" else record({"a": inner})
    return inner


def double(depth: int) -> Schema:
    """Make definitions, each of which names the next one twice."""
    links = {
        f"d{number}": record({key: {"$ref": f"#/$defs/d{number + 1}"} for key in "ab"})
        for number in range(depth)
    }
    return {"$ref": "#/$defs/d0", "$defs": {**links, f"d{depth}": TEXT}}


COSTLY: dict[str, Schema] = {
    "ten lengths in 401 bytes": lengths(*range(1000, 1010)),
    "forty short lengths": lengths(*range(5, 45)),
    "thirty least lengths": lengths(*range(90, 120), field="minLength"),
    "a length of 2**63": {"type": "string", "maxLength": 2**63},
    "a length as a fraction": {"type": "string", "maxLength": 1e5},
    "two thousand optional properties": record(names(2000)),
    "open beside eight hundred": record(names(800), additionalProperties=True),
    "open by another name": record(names(800), unevaluatedProperties={"type": "integer"}),
    "three hundred open objects": record(names(300, record(names(2), additionalProperties=True))),
    "five hundred addresses": {"prefixItems": [{"type": "string", "format": "email"}] * 500},
    "five hundred links": {"prefixItems": [{"type": "string", "format": "uri"}] * 500},
    "a counted pattern": {"type": "string", "pattern": "^([\\w ]{1,50},){1,50}$"},
    "a pattern that counts to a thousand": {"type": "string", "pattern": "^.{1000}$"},
    "forty patterns": {"prefixItems": [{"pattern": f"^[^x]{{1,{n}}}$"} for n in range(40)]},
    "a name by a bomb": {"patternProperties": {BOMB: TEXT}},
    "a bomb in a definition": chain(10, {"type": "string", "pattern": BOMB}),
    "costly behind thirty references": chain(30, lengths(*range(500, 505))),
    "costly where nobody looks": {"$ref": "#/x/0/y", "x": [{"y": lengths(500)}]},
}
# What is near the limit, or looks costly and is not: it depends on the machine.
BOUNDED: dict[str, Schema] = {
    "one long length": {"type": "string", "maxLength": 100_000},
    "a length for a name": {"type": "object", "propertyNames": {"maxLength": 500}},
    "lengths of additional ones": {"additionalProperties": {"type": "string", "maxLength": 900}},
    "costly in all of one": {"allOf": [lengths(500)]},
    "at most sixty of a hundred": record(names(100), maxProperties=60),
    "a template of links": {"type": "string", "format": "uri-template"},
    "a deep template of links": nest(20, {"type": "string", "format": "uri-template"}),
    "two values that end alike": {"enum": ["a" + "x" * 4000, "b" + "x" * 4000]},
    "a length just past the limit": {"type": "string", "maxLength": 121},
    "a least length": {"type": "string", "minLength": 10_000},
    "nested optional properties": nest(2, record(names(300)), "properties"),
    "open by a pattern": record(names(150), patternProperties={"^x-": TEXT}),
    "at least sixty of a hundred": record(names(100), minProperties=60),
    "three hundred bounded arrays": record(names(300, {"type": "array", "maxItems": 100})),
    "three hundred bounded objects": record(names(300, {"type": "object", "maxProperties": 99})),
    "three hundred like arrays": {
        "anyOf": [{"type": "array", "items": {"enum": [n]}} for n in range(300)]
    },
    "one of three hundred texts": {"oneOf": [{"type": "string", "minLength": 1}] * 300},
    "unions in unions": {"anyOf": [{"anyOf": [{"type": "array"}] * 12}] * 12},
    "objects that begin alike": {
        "anyOf": [record({"a": TEXT, f"b{n}": TEXT}, required=["a"]) for n in range(200)]
    },
    "objects with one constant": {
        "anyOf": [record({"a": {"const": 1}, f"b{n}": TEXT}, required=["a"]) for n in range(200)]
    },
    "costly in an if": {"if": TEXT, "then": lengths(500), "else": lengths(501)},
    "costly in a not": {"not": lengths(500)},
    "ten thousand empty schemas": {"anyOf": [{}] * 10_000},
}
# Each costs next to nothing, whatever it looks like, or is refused by the engine.
CHEAP: dict[str, Schema] = {
    "an array of a billion": {"type": "array", "items": TEXT, "maxItems": 10**9},
    "at least a million items": {"type": "array", "items": TEXT, "minItems": 10**6},
    "items between and between": nest(
        3, {"type": "array", "items": TEXT, "minItems": 5, "maxItems": 9}
    ),
    "a million properties": {"type": "object", "maxProperties": 10**6},
    "a chain of fifty references": chain(50, TEXT),
    "two to the fortieth by references": double(40),
    "a tree of itself": {
        "$ref": "#/$defs/n",
        "$defs": {"n": record({"c": {"type": "array", "items": {"$ref": "#/$defs/n"}}})},
    },
    "two that name each other": {
        "$ref": "#/$defs/a",
        "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
    },
    "a reference to nothing": {"$ref": "#/$defs/nothing"},
    "a reference that is a number": {"$ref": 5},
    "two thousand values": {"enum": [f"{n * 7919 % 10007}" for n in range(2000)]},
    "values of every kind": {"enum": [None, True, 0, -0.0, 1e300, "", [], {}]},
    "no value": {"enum": []},
    "a constant of sixty kilobytes": {"const": "x" * 60_000},
    "a constant that is a document": {"const": {"a": [1, {"b": None}]}},
    "a multiple of almost nothing": {"type": "number", "multipleOf": 1e-300},
    "a multiple of nothing": {"type": "integer", "multipleOf": 0},
    "bounds past 64 bits": {"type": "integer", "minimum": -(2**70), "maximum": 2**70},
    "bounds of three hundred digits": {"type": "integer", "maximum": 10**300},
    "bounds that leave nothing": {"type": "number", "exclusiveMinimum": 1, "exclusiveMaximum": 1},
    "lengths that leave nothing": {"type": "string", "minLength": 9, "maxLength": 3},
    "a length below zero": {"type": "string", "maxLength": -5},
    "a length in words": {"type": "string", "maxLength": "1000"},
    "a length of true": {"type": "string", "maxLength": True},
    "required without a name": {"type": "object", "required": [None, 5, "a"]},
    "required that is a word": {"type": "object", "required": "a"},
    "properties that are a list": {"type": "object", "properties": [1, 2]},
    "a property without a name": record({"": TEXT}, required=[""]),
    "a property with half a character": record({"\ud800": TEXT}),
    "a property with a zero byte": record({"a\x00b": TEXT}),
    "types that do not fit": {"type": ["string", "array", "string", "matrix"]},
    "a type that is nothing": {"type": None},
    "unique items": {"type": "array", "items": TEXT, "uniqueItems": True},
    "a format of the caller": {"type": "string", "format": "x" * 1000},
    "a format and a length": {"type": "string", "format": "date", "maxLength": 5},
    "names by a pattern and by name": record({"a": TEXT}, patternProperties={"^b": TEXT}),
    "a schema that is false": {"additionalProperties": False, "not": {}},
    "all of two": {"allOf": [TEXT, {"enum": ["a", "b"]}]},
    "any of none": {"anyOf": []},
    "any of no schema": {"anyOf": [1, "a", None]},
    "forty arrays deep": nest(40, TEXT),
}
# What no engine can compile: the gate names the part that is at fault.
FAULTY = (
    *("a reference to nothing", "a reference that is a number", "two that name each other"),
    *("bounds past 64 bits", "bounds of three hundred digits", "bounds that leave nothing"),
    *("lengths that leave nothing", "a length below zero", "a length in words", "a length of true"),
    *("no value", "types that do not fit", "a type that is nothing"),
    *("required without a name", "required that is a word", "properties that are a list"),
    *("a property with half a character", "any of no schema"),
)
# What xgrammar has no grammar for: vLLM says so.
UNSUPPORTED = (
    *("a multiple of almost nothing", "a multiple of nothing", "unique items", "all of two"),
    *("a format of the caller", "a format and a length", "names by a pattern and by name"),
)


def as_text(name: str, content: Schema) -> Hostile:
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": content}}
    return text(f"{name}, for a text", *REFUSED, response_format=form)


def as_response(name: str, content: Schema) -> Hostile:
    form = {"type": "json_schema", "name": "a", "schema": content}
    return respond(f"{name}, in a response", *REFUSED, text={"format": form})


def call(name: str, content: Schema, *expected: int, **fields: Any) -> Hostile:
    tool = {"type": "function", "function": {"name": "a", "parameters": content}}
    fields = {"tools": [tool], "tool_choice": "required", **fields}
    return chat(name, *(expected or REFUSED), **fields)


def strict_call(name: str, content: Schema, *expected: int) -> Hostile:
    function = {"name": "a", "parameters": content, "strict": True}
    tools = [{"type": "function", "function": function}]
    return chat(name, *(expected or REFUSED), tools=tools)


SCHEMAS_PAST_LIMITS = (
    *(schema(name, **content) for name, content in COSTLY.items()),
    *(as_response(name, content) for name, content in [*COSTLY.items()][::2]),
    *(as_text(name, content) for name, content in [*COSTLY.items()][1::2]),
    *(
        constrain(f"{name}, as text", json=json.dumps(content))
        for name, content in [*COSTLY.items()][::4]
    ),
    constrain("a pattern that counts far", regex="a{101}"),
    constrain("a pattern that counts at least far", regex="[0-9]{1000,}"),
    constrain("fifty thousand choices", choice=[str(number) for number in range(50_000)]),
    constrain("a tag with a schema", structural_tag=json.dumps({"structures": [], "triggers": []})),
    chat("a tag as a format", response_format={"type": "structural_tag", "format": TEXT}),
    chat(
        "an older tag as a format",
        response_format={"type": "structural_tag", "structures": [], "triggers": ["<a>"]},
    ),
    call("a call with two thousand properties", record(names(2000))),
    strict_call("a strict call with two thousand properties", record(names(2000))),
    chat(
        "four hundred tools to choose from",
        *REFUSED,
        tools=[
            {"type": "function", "function": {"name": f"t{n}", "parameters": record(names(9))}}
            for n in range(400)
        ],
        tool_choice="required",
    ),
)
FAULTY_SCHEMAS = (
    *(schema(name, **CHEAP[name]) for name in FAULTY),
    *(as_text(name, CHEAP[name]) for name in FAULTY[::2]),
    *(as_response(name, CHEAP[name]) for name in FAULTY[1::2]),
    *(call(f"{name}, in a call", CHEAP[name]) for name in FAULTY[::3]),
    schema("a schema of itself", **{"$ref": "#"}),
    schema("a union of itself", anyOf=[{"$ref": "#"}, {"allOf": [{"$ref": "#"}]}]),
    constrain("a schema that is a list", json=[1, 2]),
    constrain("a schema that is no JSON", json="{"),
    constrain("a schema that is empty", json=""),
)
SCHEMAS_FOR_THE_ENGINE = (
    *(
        schema(name, *((400, 429) if name in UNSUPPORTED else COPES), **content)
        for name, content in CHEAP.items()
        if name not in FAULTY
    ),
    *(schema(name, *COPES, **content) for name, content in BOUNDED.items()),
    call("a call with like alternatives", BOUNDED["three hundred like arrays"], *COPES),
    constrain("a pattern of many letters", *COPES, regex="([a-z]{1,90}-){1,90}"),
    chat("an old name of a schema", 200, guided_json=lengths(*range(1000, 1010))),
    chat("an old name of a pattern", 200, guided_regex="(.*){1,32000}[bc]"),
    chat("an old name of a grammar", 200, guided_grammar="root ::= root"),
    chat("an old name of choices", 200, guided_choice=["a"] * 1000),
    chat("an old backend", 200, guided_decoding_backend="outlines"),
    constrain("a backend of the caller", *COPES, json=TEXT, _backend="outlines"),
    constrain("a choice of nothing", *COPES, choice=[""]),
    constrain("no object", 400, 429, json_object=False),
    constrain("choices that are numbers", *COPES, choice=[1, 2]),
    constrain("white space of the caller", *COPES, json=TEXT, whitespace_pattern="[ ]"),
    chat("a format of no kind", 400, response_format={}),
    chat("a format that is a word", 400, response_format="json_object"),
    chat("a format without a schema", 400, 429, response_format={"type": "json_schema"}),
    chat(
        "a schema as a word",
        400,
        429,
        response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": "{}"}},
    ),
    call("a call with ten lengths", COSTLY["ten lengths in 401 bytes"], *COPES),
    call("a call with a template of links", BOUNDED["a template of links"], *COPES),
    strict_call("a strict call with ten lengths", COSTLY["ten lengths in 401 bytes"], *COPES),
    call("an offer with ten lengths", lengths(*range(1000, 1010)), *COPES, tool_choice="auto"),
    call("an offer of a thousand properties", record(names(1000)), *COPES, tool_choice="none"),
    call("a choice that is a number", TEXT, *COPES, tool_choice=5),
    call("a choice of no kind", TEXT, *COPES, tool_choice={"type": "x"}),
    chat("tools that are a word", 400, tools="a"),
    chat("tools that are words", 400, tools=["a"]),
    chat("a tool of a tool", *COPES, tools=[{"type": "function", "function": {"tools": [HELLO]}}]),
)
