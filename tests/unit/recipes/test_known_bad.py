"""Every known-bad combination of the catalogue can be met: each has a situation that meets it."""

from typing import Any

import pytest

from slipstream.checkpoints.checkpoint import Checkpoint
from slipstream.hardware import load_host
from slipstream.hardware.host import Engine, Host
from slipstream.planning import make_options
from slipstream.planning.planner import make_plan
from slipstream.recipes import load_known_bad
from tests.unit.planning.pieces import DRAFTER, HYBRID_LAYERS, TARGET, make_recipe

OLD = "0.20.0"
FP8 = ("--kv-cache-dtype", "fp8")
TURBOQUANT = ("--kv-cache-dtype", "turboquant_k8v4")
NVFP4 = ("--kv-cache-dtype", "nvfp4")
SEQUENCES = ("--max-num-seqs", "8")
STARTUP_PLAN = make_recipe(environment={"VLLM_ENABLE_STARTUP_PLAN": "1"})
DRAFT = DRAFTER.draft

SITUATIONS: dict[str, dict[str, Any]] = {
    "deepseek-dflash-qwen3-4b": {"drafter": "deepseek-ai/dflash_qwen3_4b_block7"},
    "dflash2-under-sampling": {"family": "dflash2"},
    "driver-590-on-gb10": {"machine": "gb10", "driver": "590.44.01"},
    "driver-595.91-on-gb10": {"machine": "gb10", "driver": "595.91.07"},
    "dspark-short-draft": {"family": "dspark", "draft_length": 3},
    "fa2-draft-on-sm121": {
        "machine": "gb10",
        "engine": ("--speculative-config.attention_backend", "FLASH_ATTN"),
    },
    "gemma-4-31b-on-0.22": {"target": "google/gemma-4-31B-it", "version": "0.22.0"},
    "gemma-4-before-pr-41703": {"target": "google/gemma-4-31B-it", "version": OLD},
    "glm-5.3-flash-modelopt-nvfp4": {"target": "nvidia/GLM-5.3-Flash-NVFP4"},
    "laguna-sequences": {
        "machine": "gb10",
        "target": "poolside/Laguna-S-2.1-NVFP4",
        "engine": SEQUENCES,
    },
    "multimodal-target-on-early-v2": {"target": "Qwen/Qwen3.6-27B", "version": "0.25.1"},
    "muse-drafter-on-32gb": {"machine": "rtx-5090", "target": "meta-models/Muse-Glimmer-30B"},
    "nvfp4-kv-on-sm121": {"machine": "gb10", "engine": NVFP4},
    "prefix-cache-on-hybrids": {"layers": HYBRID_LAYERS, "engine": ("--enable-prefix-caching",)},
    "quantised-drafter-before-0.32": {"drafter_quantized": True, "version": "0.31.0"},
    "quantised-kv-on-0.20": {"engine": FP8, "version": OLD},
    "qwen3-next-before-pr-45319": {"target": "Qwen/Qwen3-Coder-Next", "version": OLD},
    "qwen3.6-35b-bf16-on-two-sparks": {
        "machine": "gb10",
        "target": "Qwen/Qwen3.6-35B-A3B",
        "engine": ("--nnodes", "2"),
    },
    "speculators-qwen3.6-35b-on-v2": {
        "target": "Qwen/Qwen3.6-35B-A3B",
        "drafter": "RedHatAI/Qwen3.6-35B-A3B-speculator.dflash",
    },
    "startup-plan-on-gb10": {"machine": "gb10", "recipe": STARTUP_PLAN},
    "turboquant-on-0.20": {"engine": TURBOQUANT, "version": OLD},
    "vulnerabilities-before-0.32": {"version": "0.24.0"},
}


def make_host(machine: str, driver: str | None, version: str | None) -> Host:
    host = load_host(machine)
    changes: dict[str, Any] = {"nvidia_driver": driver} if driver else {}
    if version:
        changes["engine"] = Engine(distribution="vllm", version=version)
    return host.model_copy(update={"software": host.software.model_copy(update=changes)})


def find_codes(
    *,
    machine: str = "h100",
    target: str = TARGET.name,
    drafter: str = DRAFTER.name,
    family: str = "dflash",
    driver: str | None = None,
    version: str | None = None,
    drafter_quantized: bool = False,
    layers: Any = TARGET.layers,
    recipe: Any = None,
    **options: Any,
) -> set[str]:
    assert DRAFT is not None
    draft = DRAFT.model_copy(update={"family": family})
    changes = {"name": drafter, "draft": draft, "quantized": drafter_quantized}
    plan = make_plan(
        make_host(machine, driver, version),
        Checkpoint(**{**dict(TARGET), "name": target, "layers": layers}),
        DRAFTER.model_copy(update=changes),
        recipe,
        make_options(**options),
        known_bad=load_known_bad(),
    )
    return {fault.code for fault in (*plan.refusals, *plan.warnings)}


@pytest.mark.parametrize("name", sorted({entry.name for entry in load_known_bad()}))
def test_every_known_bad_combination_has_a_situation_in_which_it_is_met(name: str) -> None:
    assert name in find_codes(**SITUATIONS[name])


def test_on_todays_engine_an_ordinary_pair_meets_none() -> None:
    assert not find_codes() & {entry.name for entry in load_known_bad()}
    assert SITUATIONS.keys() == {entry.name for entry in load_known_bad()}
