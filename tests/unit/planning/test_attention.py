"""Backends and cache types follow what is known of chips and models."""

from typing import Any

import pytest

from slipstream.checkpoints.checkpoint import Layers
from slipstream.planning.attention import (
    decide_drafter_backend,
    decide_drafter_kv_dtype,
    decide_graph_mode,
    decide_kv_dtype,
    decide_prefix_caching,
    decide_target_backend,
    find_turboquant_obstacle,
)
from tests.unit.planning.pieces import HYBRID_LAYERS, make_recipe, situate


@pytest.mark.parametrize(
    "target",
    [
        {"architecture": "Gemma4ForConditionalGeneration"},
        {"architecture": None, "name": "google/gemma-4-31B-it"},
    ],
)
def test_gemma_4_attends_on_triton(target: dict[str, str | None]) -> None:
    choice = decide_target_backend(situate(target=target))
    assert choice is not None
    assert (choice.value, choice.source) == ("TRITON_ATTN", "checkpoint")


def test_other_targets_are_left_to_the_engine_whatever_an_old_recipe_forced() -> None:
    recipe = make_recipe(target_backend="FLASH_ATTN")
    assert decide_target_backend(situate("gb10", recipe=recipe)) is None
    assert decide_target_backend(situate("cpu-server")) is None


def test_a_wish_for_a_backend_beats_the_model() -> None:
    gemma = {"architecture": "Gemma4ForCausalLM"}
    choice = decide_target_backend(situate(target=gemma, attention_backend="flash_attn"))
    assert choice is not None
    assert (choice.value, choice.source) == ("FLASH_ATTN", "user")


@pytest.mark.parametrize(
    ("machine", "backend"),
    [
        ("gb10", "TRITON_ATTN"),
        ("b200", "FLASH_ATTN"),
        ("b300", "FLASH_ATTN"),
        ("h100", "FLASH_ATTN"),
        ("rtx-5090", "FLASH_ATTN"),
        ("rtx-3090", "FLASH_ATTN"),
    ],
)
def test_the_drafters_backend_follows_the_chip(machine: str, backend: str) -> None:
    choice = decide_drafter_backend(situate(machine))
    assert choice is not None
    assert (choice.value, choice.source) == (backend, "hardware")


def test_the_reason_on_sm_121_names_the_issue_and_on_sm_100_the_faulty_path() -> None:
    spark, blackwell = (
        decide_drafter_backend(situate("gb10")),
        decide_drafter_backend(situate("b200")),
    )
    assert spark is not None
    assert blackwell is not None
    assert "vllm#50707" in spark.because
    assert "FlashInfer" in blackwell.because


def test_a_recipe_of_this_machine_beats_the_chip_and_of_another_does_not() -> None:
    recipe = make_recipe(drafter_backend="FLASH_ATTN")
    here = decide_drafter_backend(situate("gb10", recipe=recipe))
    assert here is not None
    assert (here.value, here.source) == ("FLASH_ATTN", "recipe")
    other = make_recipe(drafter_backend="FLASH_ATTN", machines=("h100",))
    there = decide_drafter_backend(situate("gb10", recipe=other))
    assert there is not None
    assert there.value == "TRITON_ATTN"


def test_without_a_drafter_or_an_accelerator_there_is_no_drafter_backend() -> None:
    assert decide_drafter_backend(situate("cpu-server")) is None
    assert decide_drafter_backend(situate(speculation=False)) is None


@pytest.mark.parametrize(
    ("machine", "target", "words"),
    [
        ("cpu-server", {}, "CPU backend"),
        ("h100", {"layers": (Layers(kind="sliding", count=2, window=1024),)}, "sliding"),
        ("h100", {"attention_sinks": True}, "sinks"),
        ("h100", {"layers": None}, "unknown"),
        ("h100", {"layers": (Layers(kind="latent", count=2, head_size=576),)}, "latent"),
        (
            "h100",
            {"layers": (Layers(kind="full", count=2, key_value_heads=1, head_size=96),)},
            "not 96",
        ),
        ("h100", {"layers": (Layers(kind="full", count=2, key_value_heads=1),)}, "not None"),
    ],
)
def test_turboquant_is_refused_where_it_cannot_be(
    machine: str, target: dict[str, object], words: str
) -> None:
    obstacle = find_turboquant_obstacle(situate(machine, target=target))
    assert obstacle is not None
    assert words in obstacle


def test_turboquant_is_possible_on_dense_and_hybrid_targets() -> None:
    assert find_turboquant_obstacle(situate()) is None
    assert find_turboquant_obstacle(situate(target={"layers": HYBRID_LAYERS})) is None


def choose_cache(
    machine: str, *, plain: int | None = 10, fp8: int = 20, packed: int = 26, **changes: Any
) -> tuple[str, str] | None:
    """Choose for 24 sequences, by how many each type holds; return the value and its source."""
    held = {"auto": plain, "fp8": fp8, "turboquant_k8v4": packed}
    situation = situate(machine, **changes)
    choice = decide_kv_dtype(situation, wanted=24, count_fitting=held.__getitem__)
    return (choice.value, choice.source) if choice else None


SINKS = {"attention_sinks": True}


@pytest.mark.parametrize(
    ("machine", "changes", "chosen"),
    [
        ("h100", {"plain": 24}, None),
        ("h100", {"plain": None}, None),
        ("h100", {"fp8": 24}, "fp8"),
        ("h100", {}, "turboquant_k8v4"),
        ("h100", {"fp8": 18, "packed": 17}, "fp8"),
        ("h100", {"fp8": 18, "packed": 20}, "fp8"),
        ("h100", {"fp8": 18, "packed": 23}, "turboquant_k8v4"),
        ("h100", {"plain": 0, "fp8": 0, "packed": 0}, None),
        ("h100", {"target": SINKS}, "fp8"),
        ("rtx-3090", {"fp8": 24}, "turboquant_k8v4"),
        ("rtx-3090", {"target": SINKS}, None),
        ("h100", {"attention_backend": "flash_attn"}, "fp8"),
        ("gb10", {"attention_backend": "triton_attn"}, "fp8"),
        ("gb10", {"attention_backend": "flash_attn"}, None),
        ("cpu-server", {}, None),
    ],
)
def test_the_cache_shrinks_for_a_capacity_goal_as_far_as_needed(
    machine: str, changes: dict[str, Any], chosen: str | None
) -> None:
    found = choose_cache(machine, goal="capacity", **changes)
    assert found == (None if chosen is None else (chosen, "hardware"))


def test_the_cache_does_not_shrink_for_another_goal() -> None:
    assert choose_cache("h100", goal="throughput") is None


def test_the_cache_type_is_a_wish_or_the_recipes_of_this_machine() -> None:
    asked = choose_cache("h100", kv_dtype="turboquant_4bit_nc")
    assert asked == ("turboquant_4bit_nc", "user")
    recipe = make_recipe(kv_dtype="fp8")
    assert choose_cache("gb10", recipe=recipe) == ("fp8", "recipe")
    assert choose_cache("h100", recipe=recipe) is None


@pytest.mark.parametrize(
    ("machine", "kv_dtype", "drafter_kv"),
    [
        ("h100", "auto", None),
        ("h100", "fp8", None),
        ("b200", "fp8", "bfloat16"),
        ("gb10", "fp8_e4m3", "bfloat16"),
        ("h100", "turboquant_k8v4", "bfloat16"),
    ],
)
def test_the_drafters_cache_stays_plain_beside_a_packed_one(
    machine: str, kv_dtype: str, drafter_kv: str | None
) -> None:
    choice = decide_drafter_kv_dtype(situate(machine), kv_dtype)
    assert (None if choice is None else choice.value) == drafter_kv
    assert decide_drafter_kv_dtype(situate(machine, speculation=False), kv_dtype) is None


def test_a_recipes_drafter_cache_is_taken_on_its_machine() -> None:
    recipe = make_recipe(drafter_kv_dtype="auto")
    choice = decide_drafter_kv_dtype(situate("gb10", recipe=recipe), "fp8")
    assert choice is not None
    assert (choice.value, choice.source) == ("auto", "recipe")


def test_graphs_are_split_only_for_turboquant_with_speculation() -> None:
    choice = decide_graph_mode(situate(), "turboquant_k8v4")
    assert choice is not None
    assert choice.value == {"cudagraph_mode": "PIECEWISE"}
    assert "vllm#53180" in choice.because
    assert decide_graph_mode(situate(), "fp8") is None
    assert decide_graph_mode(situate(speculation=False), "turboquant_k8v4") is None


def test_prefix_caching_is_off_on_hybrid_targets_with_speculation() -> None:
    hybrid = {"layers": HYBRID_LAYERS}
    choice = decide_prefix_caching(situate(target=hybrid))
    assert choice is not None
    assert choice.value is False
    assert "vllm#54360" in choice.because
    assert decide_prefix_caching(situate(target=hybrid, speculation=False)) is None
    assert decide_prefix_caching(situate()) is None


def test_prefix_caching_is_off_where_this_machines_recipe_has_it_off() -> None:
    recipe = make_recipe(prefix_caching=False)
    choice = decide_prefix_caching(situate("gb10", recipe=recipe))
    assert choice is not None
    assert choice.source == "recipe"
    assert decide_prefix_caching(situate("h100", recipe=recipe)) is None
    assert decide_prefix_caching(situate("gb10", recipe=make_recipe(prefix_caching=True))) is None
