"""Backends and cache types follow what is known of chips and models."""

from typing import Any

import pytest

from slipstream.checkpoints.checkpoint import Layers, Quantization
from slipstream.planning.settings.attention import (
    decide_drafter_backend,
    decide_drafter_kv_dtype,
    decide_graph_mode,
    decide_kv_dtype,
    decide_prefix_caching,
    decide_target_backend,
    find_turboquant_obstacle,
)
from tests.unit.planning.pieces import HYBRID_LAYERS, make_inputs, make_recipe, pick

GEMMA = {"architecture": "Gemma4ForConditionalGeneration"}


@pytest.mark.parametrize(
    ("machine", "inputs", "chosen"),
    [
        ("h100", {"target": GEMMA}, None),
        ("b200", {"target": GEMMA}, ("TRITON_ATTN", "checkpoint")),
        ("jetson-thor", {"target": GEMMA}, ("TRITON_ATTN", "checkpoint")),
        (
            "gb10",
            {"target": {"architecture": None, "name": "google/gemma-4-31B-it"}},
            ("TRITON_ATTN", "checkpoint"),
        ),
        ("cpu-server", {"target": GEMMA}, None),
        ("gb10", {"recipe": make_recipe(target_backend="FLASH_ATTN")}, None),
    ],
)
def test_only_gemma_4s_backend_is_not_left_to_the_engine(
    machine: str, inputs: dict[str, Any], chosen: tuple[str, str] | None
) -> None:
    assert pick(decide_target_backend(make_inputs(machine, **inputs))) == chosen


FLASH = make_recipe(drafter_backend="FLASH_ATTN")


@pytest.mark.parametrize(
    ("machine", "inputs", "chosen"),
    [
        ("gb10", {}, ("TRITON_ATTN", "hardware")),
        ("b200", {}, ("FLASH_ATTN", "hardware")),
        ("h100", {}, ("FLASH_ATTN", "hardware")),
        ("rtx-3090", {}, ("FLASH_ATTN", "hardware")),
        # vllm#50707: the rule is of a newer engine than the recipe.
        ("gb10", {"recipe": FLASH}, ("TRITON_ATTN", "hardware")),
        ("gb10", {"recipe": make_recipe(drafter_backend="FLEX")}, ("FLEX", "recipe")),
        ("gb10", {"recipe": make_recipe(machines=("h100",))}, ("TRITON_ATTN", "hardware")),
        ("cpu-server", {}, None),
        ("h100", {"method": "plain"}, None),
    ],
)
def test_the_drafters_backend_is_this_machines_recipes_or_the_chips(
    machine: str, inputs: dict[str, Any], chosen: tuple[str, str] | None
) -> None:
    assert pick(decide_drafter_backend(make_inputs(machine, **inputs))) == chosen


@pytest.mark.parametrize(
    ("machine", "target", "words"),
    [
        ("h100", {}, None),
        ("h100", {"layers": HYBRID_LAYERS}, None),
        ("cpu-server", {}, "CPU backend"),
        ("h100", {"layers": (Layers(kind="sliding", count=2, window=1024),)}, "sliding"),
        ("h100", {"attention_sinks": True}, "sinks"),
        ("h100", {"layers": None}, "unknown"),
        ("h100", {"layers": (Layers(kind="latent", count=2, head_size=576),)}, "MLA"),
        (
            "h100",
            {"layers": (Layers(kind="full", count=2, key_value_heads=1, head_size=96),)},
            "not 96",
        ),
        ("h100", {"layers": (Layers(kind="full", count=2, key_value_heads=1),)}, "not None"),
    ],
)
def test_turboquant_is_possible_on_dense_and_hybrid_targets_without_an_obstacle(
    machine: str, target: dict[str, object], words: str | None
) -> None:
    obstacle = find_turboquant_obstacle(make_inputs(machine, target=target))
    assert (words is None) is (obstacle is None)
    assert (words or "") in (obstacle or "")


SINKS = {"attention_sinks": True}


def on(backend: str) -> dict[str, Any]:
    return {"engine": ("--attention-backend", backend)}


@pytest.mark.parametrize(
    ("machine", "held", "inputs", "chosen"),
    [
        ("h100", (24, 20, 26), {}, None),
        ("h100", (None, 20, 26), {}, None),
        ("h100", (10, 24, 26), {}, "fp8"),
        ("h100", (10, 20, 26), {}, "turboquant_k8v4"),
        ("h100", (10, 18, 17), {}, "fp8"),
        ("h100", (10, 18, 20), {}, "fp8"),
        ("h100", (10, 18, 23), {}, "turboquant_k8v4"),
        ("h100", (0, 0, 0), {}, None),
        ("h100", (10, 20, 26), {"target": SINKS}, "fp8"),
        ("rtx-3090", (10, 24, 26), {}, "turboquant_k8v4"),
        ("rtx-3090", (10, 20, 26), {"target": SINKS}, None),
        ("h100", (10, 20, 26), on("flash_attn"), "fp8"),
        ("gb10", (10, 20, 26), on("triton_attn"), "fp8"),
        ("b200", (10, 20, 26), on("flash_attn"), "fp8"),
        ("gb10", (10, 20, 26), on("flash_attn"), None),
        ("cpu-server", (10, 20, 26), {}, None),
        ("h100", (10, 24, 26), {"goal": "throughput"}, None),
        ("gb10", (10, 24, 26), {"goal": "latency", "recipe": make_recipe(kv_dtype="fp8")}, "fp8"),
        ("h100", (10, 24, 26), {"goal": "latency", "recipe": make_recipe(kv_dtype="fp8")}, None),
    ],
)
def test_the_cache_of_24_sequences_shrinks_for_a_capacity_goal_as_far_as_needed(
    machine: str, held: tuple[int | None, ...], inputs: dict[str, Any], chosen: str | None
) -> None:
    fitting = dict(zip(("auto", "fp8", "turboquant_k8v4"), held, strict=True))
    made = make_inputs(machine, **{"goal": "capacity", **inputs})
    choice = decide_kv_dtype(made, wanted=24, count_fitting=fitting.__getitem__)
    assert (choice.value if choice else None) == chosen


@pytest.mark.parametrize(
    ("machine", "kv_dtype", "drafter_kv"),
    [
        ("h100", "auto", None),
        ("h100", "fp8", None),
        ("h100", "fp8_e5m2", "bfloat16"),
        ("b200", "fp8", None),
        ("b300", "fp8", None),
        ("jetson-thor", "fp8", "bfloat16"),
        ("gb10", "fp8_e4m3", "bfloat16"),
        ("h100", "turboquant_k8v4", "bfloat16"),
        ("cpu-server", "fp8", "auto"),
        ("cpu-server", "auto", None),
    ],
)
def test_the_drafters_cache_stays_plain_beside_a_packed_one(
    machine: str, kv_dtype: str, drafter_kv: str | None
) -> None:
    choice = decide_drafter_kv_dtype(make_inputs(machine), kv_dtype)
    assert (None if choice is None else choice.value) == drafter_kv
    assert decide_drafter_kv_dtype(make_inputs(machine, method="plain"), kv_dtype) is None
    recipe = make_recipe(drafter_kv_dtype="auto")
    advised = decide_drafter_kv_dtype(make_inputs("gb10", recipe=recipe), kv_dtype)
    assert pick(advised) == ("auto", "recipe")


def test_graphs_are_split_only_for_turboquant_with_speculation() -> None:
    choice = decide_graph_mode(make_inputs(), "turboquant_k8v4")
    assert pick(choice) == ({"cudagraph_mode": "PIECEWISE"}, "checkpoint")
    assert decide_graph_mode(make_inputs(), "fp8") is None
    assert decide_graph_mode(make_inputs(method="plain"), "turboquant_k8v4") is None


HYBRID = {"layers": HYBRID_LAYERS}
WITHOUT = make_recipe(prefix_caching=False)


@pytest.mark.parametrize(
    ("machine", "inputs", "chosen"),
    [
        ("h100", {"target": HYBRID}, (False, "checkpoint")),
        ("h100", {"target": HYBRID, "method": "plain"}, None),
        ("h100", {}, None),
        ("gb10", {"recipe": WITHOUT}, (False, "recipe")),
        ("h100", {"recipe": WITHOUT}, None),
        ("gb10", {"recipe": make_recipe(prefix_caching=True)}, None),
        ("h100", {"goal": "agent"}, (True, "default")),
        ("gb10", {"goal": "agent", "recipe": WITHOUT}, (False, "recipe")),
        (
            "gb10",
            {"goal": "agent", "recipe": WITHOUT, "target": HYBRID, "plain": True},
            (True, "default"),
        ),
    ],
)
def test_prefix_caching_is_off_where_drafts_or_the_recipe_say_so_and_on_for_agents(
    machine: str, inputs: dict[str, Any], chosen: tuple[bool, str] | None
) -> None:
    assert pick(decide_prefix_caching(make_inputs(machine, **inputs))) == chosen


@pytest.mark.parametrize(("machine", "drafter_kv"), [("rtx-5090", "bfloat16"), ("h100", None)])
def test_a_cache_that_the_checkpoint_has_scales_for_is_not_the_drafters_by_itself(
    machine: str, drafter_kv: str | None
) -> None:
    stored = Quantization(scheme="nvfp4", method="modelopt", kv_dtype="fp8_e4m3")
    inputs = make_inputs(machine, target={"quantized": True, "quantization": stored})
    choice = decide_drafter_kv_dtype(inputs, "auto")
    assert (None if choice is None else choice.value) == drafter_kv
