"""The prompts that ship are many, varied, well formed, and stay what they are."""

import json
import subprocess
import sys
from typing import Any

import pytest

from slipstream.measuring.workloads.shipped import DATA, KINDS, make_prompts
from slipstream.measuring.workloads.workload import Prompt, Workload, estimate_tokens

CONTENT = {
    "code": "33711af856a2",
    "reasoning": "417d3a0b0cbd",
    "dialogue": "9001f6b3151b",
    "prose": "ca2f00ad2703",
    "json": "e28249444f40",
    "tools": "1c790f979cc6",
    "translation": "7ed084a1d5fe",
    "long-4k": "7ff7596ed424",
    "long-8k": "f4f62cb2fe71",
    "long-16k": "78aefaeeca68",
    "long-32k": "3fb32abd3560",
    "random": "5dc76acfb208",
}


@pytest.fixture(scope="module")
def prompts() -> dict[str, tuple[Prompt, ...]]:
    return {kind: make_prompts(kind, estimate_tokens) for kind in KINDS}


def test_what_an_id_stands_for_never_changes(prompts: dict[str, tuple[Prompt, ...]]) -> None:
    hashes = {kind: Workload(name=kind, prompts=made).sha256 for kind, made in prompts.items()}
    assert {kind: told[:12] for kind, told in hashes.items()} == CONTENT


@pytest.mark.parametrize("kind", KINDS)
def test_a_class_has_two_dozen_prompts_with_fixed_ids_and_others_for_warm_up(
    kind: str, prompts: dict[str, tuple[Prompt, ...]]
) -> None:
    made, warm_up = prompts[kind], make_prompts(kind, estimate_tokens, warm_up=True)
    assert len(made) >= 24
    assert [one.id for one in made] == [f"{kind}-{n:02d}" for n in range(1, len(made) + 1)]
    assert [one.id for one in warm_up] == [f"{kind}-warm-{n:02d}" for n in range(1, 5)]
    assert {one.kind for one in made} == {kind}
    asked = {str(one.messages or one.prompt_ids) for one in (*made, *warm_up)}
    assert len(asked) == len(made) + len(warm_up)


def test_answers_in_json_have_a_schema_that_allows_nothing_else(
    prompts: dict[str, tuple[Prompt, ...]],
) -> None:
    for prompt in (*prompts["json"], *make_prompts("json", estimate_tokens, warm_up=True)):
        told = prompt.extra["response_format"]
        assert told["type"] == "json_schema"
        for part in walk(told["json_schema"]["schema"]):
            if part.get("type") == "object":
                assert part["required"] == list(part["properties"])
                assert part["additionalProperties"] is False


def walk(schema: dict[str, Any]) -> list[dict[str, Any]]:
    parts = [*schema.get("properties", {}).values(), *schema.get("anyOf", ())]
    parts += [schema["items"]] if "items" in schema else []
    return [schema, *(found for part in parts for found in walk(part))]


def test_tools_are_called_as_they_are_described(prompts: dict[str, tuple[Prompt, ...]]) -> None:
    called = 0
    for prompt in prompts["tools"]:
        tools = {one["function"]["name"]: one["function"] for one in prompt.extra["tools"]}
        for message in prompt.messages:
            for call in message.get("tool_calls", ()):
                shape = tools[call["function"]["name"]]["parameters"]
                given = json.loads(call["function"]["arguments"])
                assert set(shape["required"]) <= set(given) <= set(shape["properties"])
                called += 1
    assert called >= 10


def test_the_data_stays_small() -> None:
    assert sum(file.stat().st_size for file in DATA.rglob("*")) < 200_000


def test_no_class_needs_torch() -> None:
    code = (
        "import sys; from slipstream.measuring.workloads import load_workload; "
        "load_workload(['code', 'long-4k', 'random']); "
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'vllm')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
