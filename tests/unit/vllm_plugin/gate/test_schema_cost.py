"""A schema is judged by what it compiles to: hostile ones stop here, those of agents do not."""

import json
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest

from slipstream.measuring.workloads import shipped
from slipstream.serving.access.gate_file import GateLimits
from slipstream.vllm_plugin.gate.compiled_constraints import list_forms
from slipstream.vllm_plugin.gate.schema_cost import weigh
from tests.unit.vllm_plugin.gate.agent_tools import EXTRACTION, TOOL_SETS
from tests.unit.vllm_plugin.gate.pieces import HELLO, Engine, ask_chat, make_gate, read_error

MOST = GateLimits().schema_units
TEXT = {"type": "string"}
DATA = Path(shipped.__file__).with_name("data")
NAMED = {"type": "function", "function": {"name": "a"}}


def hold_to(schema: Any) -> dict[str, Any]:
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    return {"response_format": form}


def bounded(*lengths: int) -> dict[str, Any]:
    return record({f"p{most}": {"type": "string", "maxLength": most} for most in lengths})


def record(properties: dict[str, Any], *, optional: bool = False, **more: Any) -> dict[str, Any]:
    required = [] if optional else [*properties]
    return {"type": "object", "properties": properties, "required": required, **more}


def fields(count: int) -> dict[str, Any]:
    return {f"p{number}": TEXT for number in range(count)}


def calls(schema: Any, choice: Any = "required", **function: Any) -> dict[str, Any]:
    function = {"name": "a", "parameters": schema, **function}
    return {"tools": [{"type": "function", "function": function}], "tool_choice": choice}


ATTACKS: list[tuple[str, dict[str, Any], str]] = [
    ("ten lengths", bounded(*range(991, 1001)), "minLength and maxLength"),
    ("one length", {"type": "string", "maxLength": 200}, "minLength and maxLength"),
    ("a least length", {"type": "string", "minLength": 1000}, "minLength and maxLength"),
    ("many short lengths", bounded(*range(1, 40)), "minLength and maxLength"),
    ("a length past every number", {"type": "string", "maxLength": 10**300}, "minLength and"),
    ("1,500 optional properties", record(fields(1500), optional=True), "properties"),
    ("open beside 200", record(fields(200), additionalProperties=True), "properties"),
    ("unevaluated beside 200", record(fields(200), unevaluatedProperties=TEXT), "properties"),
    ("a number of properties", record(fields(100), maxProperties=60), "properties"),
    (
        "like alternatives",
        {"anyOf": [{"type": "array", "items": TEXT, "minItems": one} for one in range(300)]},
        "alternatives",
    ),
    (
        "alternatives with one name",
        {"oneOf": [record({"a": {"const": "b"}, f"c{one}": TEXT}) for one in range(300)]},
        "alternatives",
    ),
    ("a hundred addresses", {"prefixItems": [{"type": "string", "format": "email"}] * 100}, "form"),
    ("two long patterns", {"prefixItems": [{"pattern": f".{{1,{n}}}"} for n in (99, 98)]}, "patte"),
    ("repeats of repeats", {"type": "string", "pattern": "([a-z]{1,90}-){1,90}"}, "patterns"),
    ("hidden behind a reference", {"$ref": "#/x/y", "x": {"y": bounded(500)}}, "minLength and"),
    ("twenty thousand objects", {"anyOf": [{}] * 15_000}, "alternatives"),
    ("two values that end alike", {"enum": ["a" + "x" * 4000, "b" + "x" * 4000]}, "enum and const"),
    ("values that begin alike", {"enum": ["x" * 2000 + str(n) for n in range(5)]}, "enum and"),
    (
        "constants that end alike",
        {"anyOf": [{"const": f"{n:x>2000}"} for n in range(5)]},
        "en",
    ),
]


@pytest.mark.parametrize(("schema", "mostly"), [one[1:] for one in ATTACKS], ids=[
    one[0] for one in ATTACKS
])  # fmt: skip
@pytest.mark.parametrize(
    "ask",
    [
        hold_to,
        lambda schema: {"structured_outputs": {"json": schema}},
        lambda schema: {"structured_outputs": {"json": json.dumps(schema)}},
        lambda schema: {"text": {"format": {"type": "json_schema", "schema": schema}}},
        lambda schema: {"output_config": {"format": {"type": "json_schema", "schema": schema}}},
    ],
    ids=["response_format", "json", "json as text", "text", "output_config"],
)
def test_an_attack_is_refused_with_its_figure(
    tmp_path: Path, ask: Any, schema: dict[str, Any], mostly: str
) -> None:
    engine = Engine()
    asked = ask(schema)
    answer = ask_chat(make_gate(tmp_path, engine), **asked)
    (form,) = list_forms(asked)
    assert answer.status_code == 400
    message = read_error(answer)
    assert (
        f"{form.field}: compiling this costs at least {form.weigh(MOST).units} units, most of"
        in message
    )
    assert f"for {mostly}" in message
    assert message.endswith(f"this server allows up to {MOST}")
    assert answer.json()["error"]["param"] == form.field
    assert engine.scopes == []


def test_the_schema_of_401_bytes_is_refused(tmp_path: Path) -> None:
    """Ten lengths: the engine core used 27 s of processor time on it, its client gone."""
    engine = Engine()
    lengths = {f"p{n}": {"type": "string", "maxLength": 1000 + n} for n in range(10)}
    schema = {"type": "object", "properties": lengths}
    assert len(json.dumps(schema, separators=(",", ":"))) < 450
    assert ask_chat(make_gate(tmp_path, engine), **hold_to(schema)).status_code == 400
    assert engine.scopes == []


def test_the_costly_format_is_refused_however_small(tmp_path: Path) -> None:
    engine = Engine()
    asked = hold_to({"type": "string", "format": "uri-template"})
    answer = ask_chat(make_gate(tmp_path, engine), **asked)
    assert read_error(answer) == (
        "response_format: compiling this costs at least 20001 units, most of them for formats"
        " (uri-template is the costliest); this server allows up to 3000"
    )
    assert engine.scopes == []


@pytest.mark.parametrize(
    "asked",
    [
        {"regex": r"([\w ]{1,20},){1,20};"},
        {"choice": ["x" * 100, *map(str, range(50_000))]},
        {"choice": ["a" + "x" * 4000, "b" + "x" * 4000]},
    ],
)
def test_patterns_and_choices_are_judged_too(tmp_path: Path, asked: dict[str, Any]) -> None:
    engine = Engine()
    gate = make_gate(tmp_path, engine, limits={"schema_bytes": 2**21})
    (field,) = asked
    message = read_error(ask_chat(gate, structured_outputs=asked))
    assert message.startswith(f"{field}: compiling this costs at least ")
    assert engine.scopes == []


def test_the_sum_of_what_is_compiled_counts(tmp_path: Path) -> None:
    engine = Engine()
    asked = hold_to(bounded(70)) | calls(record(fields(180), optional=True), "auto", strict=True)
    message = read_error(ask_chat(make_gate(tmp_path, engine), **asked))
    assert message.startswith("tools: compiling this costs at least 4")


@pytest.mark.parametrize("line", (DATA / "json.jsonl").read_text().splitlines())
def test_the_shipped_schemas_pass_as_they_are(tmp_path: Path, line: str) -> None:
    engine = Engine()
    asked = hold_to(json.loads(line)["json_schema"])
    answer = ask_chat(make_gate(tmp_path, engine), **asked)
    assert (answer.status_code, answer.headers.get("x-slipstream-warning")) == (200, None)
    assert engine.document == HELLO | asked


def shipped_tools() -> dict[str, list[Any]]:
    sets = json.loads((DATA / "toolsets.json").read_text())
    return {
        name: [{"type": "function", "function": function} for function in functions]
        for name, functions in sets.items()
    }


@pytest.mark.parametrize("choice", ["auto", "required", "strict"])
@pytest.mark.parametrize(("name", "tools"), [*TOOL_SETS.items(), *shipped_tools().items()])
def test_the_tools_of_agents_pass_as_they_are(
    tmp_path: Path, name: str, tools: list[Any], choice: str
) -> None:
    engine = Engine()
    if choice == "strict":
        tools = [{**tool, "function": {**tool["function"], "strict": True}} for tool in tools]
        choice = "auto"
    answer = ask_chat(make_gate(tmp_path, engine), tools=tools, tool_choice=choice)
    assert (answer.status_code, answer.headers.get("x-slipstream-warning")) == (200, None)
    assert engine.document == HELLO | {"tools": tools, "tool_choice": choice}
    size, units = len(json.dumps(tools)), weigh(tools).units
    sys.stdout.write(f"{name}: {len(tools)} tools, {size} bytes, {units} units\n")
    assert units < 0.7 * MOST


def test_a_data_class_passes(tmp_path: Path) -> None:
    engine = Engine()
    assert ask_chat(make_gate(tmp_path, engine), **hold_to(EXTRACTION)).status_code == 200
    assert engine.document == HELLO | hold_to(EXTRACTION)


@pytest.mark.parametrize("choice", ["auto", "none", None])
def test_tools_that_are_only_offered_are_not_judged(tmp_path: Path, choice: Any) -> None:
    engine = Engine()
    asked = calls(bounded(*range(900, 1000)), choice)
    answer = ask_chat(make_gate(tmp_path, engine), **asked)
    assert (answer.status_code, answer.headers.get("x-slipstream-warning")) == (200, None)
    assert engine.document == HELLO | asked


FORCED: list[tuple[Any, dict[str, Any]]] = [
    ("required", {}),
    (NAMED, {}),
    ({"type": "function", "name": "a"}, {}),
    ({"type": "any"}, {}),
    ({"type": "allowed_tools", "mode": "required", "tools": []}, {}),
    ("auto", {"strict": True}),
    (None, {"strict": "true"}),
    ("auto", {"strict": 1}),
]


@pytest.mark.parametrize(("choice", "function"), FORCED, ids=str)
def test_compiled_tools_lose_the_lengths_that_cost_too_much(
    tmp_path: Path, choice: Any, function: dict[str, Any]
) -> None:
    engine = Engine()
    answer = ask_chat(make_gate(tmp_path, engine), **calls(bounded(500, 80), choice, **function))
    warning = "2 lengths and formats dropped from tools: at least 14501 units, up to 3000"
    assert answer.headers["x-slipstream-warning"] == warning
    bare = record({"p500": TEXT, "p80": TEXT})
    assert engine.document == HELLO | calls(bare, choice, **function)


def test_compiled_tools_that_cost_little_keep_their_lengths(tmp_path: Path) -> None:
    engine = Engine()
    asked = calls(bounded(40, 50))
    answer = ask_chat(make_gate(tmp_path, engine), **asked)
    assert (answer.status_code, answer.headers.get("x-slipstream-warning")) == (200, None)
    assert engine.document == HELLO | asked


def test_compiled_tools_lose_the_costly_format(tmp_path: Path) -> None:
    engine = Engine()
    asked = calls({"type": "string", "format": "uri-template"})
    answer = ask_chat(make_gate(tmp_path, engine), **asked)
    assert (
        answer.headers["x-slipstream-warning"]
        == "1 lengths and formats dropped from tools: at least 20001 units, up to 3000"
    )
    assert engine.document == HELLO | calls(TEXT)


def test_a_named_tool_is_judged_alone(tmp_path: Path) -> None:
    engine = Engine()
    asked = calls(TEXT, NAMED)
    asked["tools"].append(calls(record(fields(1500), optional=True))["tools"][0])
    asked["tools"][1]["function"]["name"] = "b"
    assert ask_chat(make_gate(tmp_path, engine), **asked).status_code == 200


def test_tools_that_cost_too_much_without_lengths_are_refused(tmp_path: Path) -> None:
    engine = Engine()
    asked = calls(record(fields(1500), optional=True))
    message = read_error(ask_chat(make_gate(tmp_path, engine), **asked))
    assert message.startswith("tools: compiling this costs at least 15")
    assert engine.scopes == []


def test_lengths_that_are_alike_are_compiled_once() -> None:
    one = weigh({"type": "string", "maxLength": 50}).units
    same = record({f"p{n}": {"type": "string", "maxLength": 50} for n in range(20)})
    assert weigh(same).units < one + 20
    assert weigh(bounded(50, 51)).units > 2 * one


def test_values_that_share_little_cost_their_letters() -> None:
    names = [f"/usr/share/packages/module-{number}/init.py" for number in range(200)]
    assert weigh({"enum": names}).units < 300
    chance = Random(1)
    words = ["".join(chance.choices("abcdefgh ", k=2000)) for _ in range(5)]
    assert weigh({"enum": words}).units <= 110
    assert weigh(record({f"p{n}": {"const": "x" * 2000} for n in range(9)})).units < 300


def test_alternatives_that_a_constant_tells_apart_are_free() -> None:
    def make(count: int, constant: str) -> dict[str, Any]:
        first = [{"const": constant.format(number)} for number in range(count)]
        return {"anyOf": [record({"kind": one, "a": TEXT}) for one in first]}

    assert weigh(make(40, "{}")).units < 100
    assert weigh(make(40, "x")).units > 1000
    several = {"anyOf": [record({"kind": {"enum": ["x", str(n)]}}) for n in range(40)]}
    assert weigh(several).units > 1000
