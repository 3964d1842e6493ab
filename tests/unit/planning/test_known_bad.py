"""A condition is met only if every field that it gives holds."""

from dataclasses import replace
from typing import Any

import pytest

from slipstream.checkpoints.checkpoint import Quantization
from slipstream.planning.known_bad import Facts, is_met
from slipstream.recipes.recipe import Condition
from tests.unit.planning.pieces import DRAFTER, HYBRID_LAYERS, make_recipe, situate


def facts(machine: str = "h100", **situation: Any) -> Facts:
    return Facts(
        situation=situate(machine, **situation),
        draft_length=7,
        sequences=16,
        kv_dtype="fp8",
        drafter_backend="FLASH_ATTN",
        prefix_caching=True,
        nodes=2,
        engine="vllm",
        engine_version="0.32.0",
    )


NVFP4 = {"quantization": Quantization(scheme="nvfp4", method="modelopt"), "quantized": True}


@pytest.mark.parametrize(
    ("when", "met"),
    [
        ({"targets": ("qwen/*",)}, facts()),
        ({"drafters": ("*-b16",)}, facts()),
        ({"families": ("dflash",)}, facts()),
        ({"capabilities": ("9.0",)}, facts()),
        ({"machines": ("h100",)}, facts()),
        ({"kv_dtypes": ("fp8",)}, facts()),
        ({"drafter_backends": ("FLASH_ATTN",)}, facts()),
        ({"prefix_caching": True}, facts()),
        ({"schemes": ("nvfp4",)}, facts(target=NVFP4)),
        ({"runners": ("V2",)}, facts()),
        ({"drafter_quantized": False}, facts()),
        ({"hybrid": True}, facts(target={"layers": HYBRID_LAYERS})),
        ({"sequences_over": 15}, facts()),
        ({"draft_length_under_block": True}, facts()),
        ({"memory_under_bytes": 1 << 50}, facts()),
        ({"driver_prefixes": ("570.",)}, facts()),
        ({"nodes_over": 1}, facts()),
        ({"engine": "vllm"}, facts()),
        ({"engine_below": "0.33.0"}, facts()),
        ({"environment": ("A=1",)}, facts(recipe=make_recipe(environment={"A": "1"}))),
    ],
)
def test_each_field_is_met_by_what_it_asks_for(when: dict[str, Any], met: Facts) -> None:
    assert is_met(Condition(**when), met)
    assert not is_met(Condition(**{"engine": "vllm", **when, "targets": ("nobody/*",)}), met)


@pytest.mark.parametrize(
    ("when", "missed"),
    [
        ({"targets": ("google/*",)}, facts()),
        ({"drafters": ("*-b8",)}, facts()),
        ({"families": ("dflash2",)}, facts()),
        ({"families": ("dflash",)}, facts(speculation=False)),
        ({"drafters": ("*",)}, facts(plain=True)),
        ({"drafters": ("*",)}, facts(speculation=False)),
        ({"capabilities": ("12.1",)}, facts()),
        ({"machines": ("gb10",)}, facts()),
        ({"kv_dtypes": ("nvfp4",)}, facts()),
        ({"drafter_backends": ("TRITON_ATTN",)}, facts()),
        ({"prefix_caching": False}, facts()),
        ({"schemes": ("nvfp4",)}, facts()),
        ({"runners": ("V1",)}, facts()),
        ({"drafter_quantized": True}, facts()),
        ({"drafter_quantized": False}, facts(drafter={"quantized": None})),
        ({"hybrid": True}, facts()),
        ({"hybrid": False}, facts(target={"layers": None})),
        ({"sequences_over": 16}, facts()),
        ({"draft_length_under_block": False}, facts()),
        ({"memory_under_bytes": 1}, facts()),
        ({"memory_under_bytes": 1 << 50}, facts("cpu-server")),
        ({"driver_prefixes": ("590.",)}, facts()),
        ({"nodes_over": 2}, facts()),
        ({"engine": "sglang"}, facts()),
        ({"engine_below": "0.32.0"}, facts()),
        ({"environment": ("A=2",)}, facts(recipe=make_recipe(environment={"A": "1"}))),
        ({}, facts()),
    ],
)
def test_each_field_is_missed_by_anything_else(when: dict[str, Any], missed: Facts) -> None:
    assert not is_met(Condition(**when), missed)


def test_a_drafters_unknown_block_is_not_met() -> None:
    assert DRAFTER.draft is not None
    unknown = {"draft": DRAFTER.draft.model_copy(update={"block_size": None})}
    asked = Condition(draft_length_under_block=True)
    assert not is_met(asked, facts(drafter=unknown))
    assert not is_met(asked, replace(facts(), draft_length=15))
