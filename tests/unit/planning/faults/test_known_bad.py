"""A condition is met only if every field that it gives holds."""

from typing import Any

import pytest

from slipstream.planning import make_plan
from slipstream.planning.faults.known_bad import is_met, list_facts
from slipstream.planning.settings import EngineSettings
from slipstream.recipes.recipe import Condition, KnownBad
from tests.unit.planning.pieces import DRAFTER, HYBRID_LAYERS, make_inputs, make_recipe

SETTINGS = EngineSettings.model_validate(
    {
        name: {"value": value, "source": "default", "because": "test"}
        for name, value in {"model": "m", "sequences": 16, "kv_dtype": "fp8", "nodes": 2}.items()
    }
    | {
        "speculation": {
            name: {"value": value, "source": "default", "because": "test"}
            for name, value in {
                "method": "dflash",
                "length": 7,
                "attention_backend": "FLASH_ATTN",
            }.items()
        }
    }
)
HYBRID = {"target": {"layers": HYBRID_LAYERS}}
VARIABLE = {"recipe": make_recipe(environment={"A": "1"})}


def facts(machine: str = "h100", **inputs: Any) -> dict[str, Any]:
    return list_facts(make_inputs(machine, **inputs), SETTINGS)


@pytest.mark.parametrize(
    ("field", "met", "missed", "inputs"),
    [
        ("targets", ("qwen/*",), ("google/*",), {}),
        ("drafters", ("*-b16",), ("*-b8",), {}),
        ("families", ("dflash",), ("dflash2",), {}),
        ("capabilities", ("9.0",), ("12.1",), {}),
        ("machines", ("h100",), ("gb10",), {}),
        ("kv_dtypes", ("fp8",), ("nvfp4",), {}),
        ("drafter_backends", ("FLASH_ATTN",), ("TRITON_ATTN",), {}),
        ("prefix_caching", True, False, {}),
        ("runners", ("V2",), ("V1",), {}),
        ("drafter_quantized", False, True, {}),
        ("hybrid", True, False, HYBRID),
        ("sequences_over", 15, 16, {}),
        ("draft_length_under_block", True, False, {}),
        ("memory_under_bytes", 1 << 50, 1, {}),
        ("drivers", ("570.*",), ("590.*",), {}),
        ("nodes_over", 1, 2, {}),
        ("engine", "vllm", "sglang", {}),
        ("engine_below", "0.33.0", "0.32.0", {}),
        ("environment", ("A=1",), ("A=2",), VARIABLE),
    ],
)
def test_each_field_is_met_by_what_it_asks_for_and_by_nothing_else(
    field: str, met: Any, missed: Any, inputs: dict[str, Any]
) -> None:
    known = facts(**inputs)
    assert is_met(Condition(**{field: met}), known)
    assert not is_met(Condition(**{field: missed}), known)
    assert not is_met(Condition(**{field: met} | {"targets": ("nobody/*",)}), known)


def test_every_field_of_a_condition_is_about_a_fact() -> None:
    assert facts().keys() == Condition.model_fields.keys()
    assert not is_met(Condition(), facts())


@pytest.mark.parametrize(
    ("when", "machine", "inputs"),
    [
        ({"families": ("dflash",)}, "h100", {"method": "plain"}),
        ({"drafters": ("*",)}, "h100", {"method": "plain"}),
        ({"drafters": ("*",)}, "h100", {"plain": True}),
        ({"drafter_quantized": False}, "h100", {"drafter": {"quantized": None}}),
        ({"hybrid": False}, "h100", {"target": {"layers": None}}),
        ({"memory_under_bytes": 1 << 50}, "cpu-server", {}),
        ({"draft_length_under_block": True}, "h100", {"drafter": {"draft": None}}),
    ],
)
def test_an_unknown_fact_meets_nothing(
    when: dict[str, Any], machine: str, inputs: dict[str, Any]
) -> None:
    assert not is_met(Condition(**when), facts(machine, **inputs))


@pytest.mark.parametrize(
    ("words", "codes"),
    [
        ((), ["bad"]),
        (("--speculative-config.attention_backend", "TRITON_ATTN"), []),
        (("--no-enable-prefix-caching",), []),
    ],
)
def test_a_combination_is_looked_for_in_the_finished_settings(
    words: tuple[str, ...], codes: list[str]
) -> None:
    when = Condition(drafter_backends=("FLASH_ATTN",), prefix_caching=True)
    entry = KnownBad(
        name="bad", verdict="warn", message="it breaks", hint="do not", sources=("v#1",), when=when
    )
    inputs = make_inputs(engine=words)
    made = make_plan(inputs.host, inputs.target, DRAFTER, None, inputs.options, known_bad=(entry,))
    assert [fault.code for fault in made.warnings] == codes
    assert all("v#1" in fault.message for fault in made.warnings)
