"""What speaks against a plan, by the code of each fault; known-bad conditions, field by field."""

from typing import Any

import pytest

from slipstream.checkpoints.checkpoint import Quantization, Weights
from slipstream.planning import make_plan
from slipstream.planning.faults import is_met, list_facts
from slipstream.recipes.recipe import Condition, KnownBad
from tests.unit.planning.bare_plans import bare_plan
from tests.unit.planning.pieces import DRAFTER, GIB, HYBRID_LAYERS, make_inputs, make_recipe
from tests.unit.planning.test_planner import plan

NVFP4 = {
    "quantized": True,
    "quantization": Quantization(scheme="nvfp4", method="modelopt"),
    "weights": Weights(total_bytes=5 * GIB),
}
OTHER = {"hidden_size": 5376}
PACKED = ("--kv-cache-dtype", "turboquant_k8v4")
SHARE = "--gpu-memory-utilization"
CPU = make_recipe(machines=("cpu",))
SMALL = {"weights": Weights(total_bytes=GIB)}
LONG: dict[str, Any] = {"method": "plain", "context": 65536, "users": 1}
LONGER = ["context!"]
OVERRIDES = "--hf-overrides"


def weigh(size: int | None) -> dict[str, Any]:
    return {"weights": size and Weights(total_bytes=size * GIB)}


UNNAMED = {"name": "me/mine", **weigh(None)}


@pytest.mark.parametrize(
    ("machine", "inputs", "codes"),
    [
        ("h100", {"target": weigh(None)}, []),
        ("h100", {"target": UNNAMED}, ["memory-unknown"]),
        ("rtx-3090", {"target": weigh(40)}, ["memory!"]),
        ("rtx-3090", {"target": weigh(15)}, []),
        ("rtx-3090", {"target": weigh(15), "context": 32768}, ["cache!"]),
        ("rtx-3090", {"target": weigh(18)}, ["memory!"]),
        ("rtx-3090", {"target": weigh(15), "users": 4}, ["cache"]),
        ("h100", {"users": 64}, []),
        ("h100", {"users": 64, "context": 32768}, ["cache"]),
        ("gb10", {"engine": (SHARE, "0.85")}, ["headroom"]),
        ("gb10", {"engine": (SHARE, "0.72")}, []),
        ("h100", {"engine": (SHARE, "0.95")}, []),
        ("h100", {"target": {"attention_sinks": True}, "engine": PACKED}, ["turboquant!"]),
        ("h100", {"engine": (*PACKED, "--attention-backend", "flash_attn")}, ["turboquant!"]),
        ("h100", {"engine": (*PACKED, "--attention-backend", "TURBOQUANT")}, []),
        ("h100", {"drafter": OTHER}, ["hidden-size!"]),
        ("h100", {"drafter": OTHER, "method": "plain"}, []),
        ("h100", {"draft_length": 16}, ["draft-length!"]),
        ("h100", {"context": 65536, "users": 1}, ["context!", "drafter-context!"]),
        ("h100", {"context": 40960, "users": 1}, []),
        ("h100", {"method": "plain", "engine": ("--max-model-len", "40961")}, ["context!"]),
        ("h100", {"method": "plain", "engine": ("--max-model-len", "auto")}, []),
        ("h100", {**LONG, "engine": (OVERRIDES, '{"max_position_embeddings": 65536}')}, []),
        ("h100", {**LONG, "engine": (OVERRIDES, '{"max_position_embeddings": 65535}')}, LONGER),
        ("h100", {**LONG, "engine": (OVERRIDES, '{"rope_parameters": {"factor": 4.0}}')}, []),
        ("h100", {**LONG, "engine": (OVERRIDES, '{"text_config": {"rope_scaling": {}}}')}, []),
        ("h100", {**LONG, "engine": (OVERRIDES, '{"architectures": ["A"]}')}, LONGER),
        ("h100", {"engine": ("-dp", "8")}, ["accelerators!"]),
        ("h100", {"engine": ("-dp", "8", "-dpl", "1")}, []),
        ("h100", {"engine": ("-dp", "8", "-dpn", "3")}, []),
        ("h100", {"engine": ("-tp", "3")}, ["accelerators!", "heads!"]),
        ("h100", {"engine": ("-tp", "9" * 40)}, ["accelerators!", "heads!"]),
        ("h100", {"target": {"architecture": "Gemma3ForCausalLM"}}, ["target-class!"]),
        ("cpu-server", {"target": NVFP4}, ["target-quantization!"]),
        ("h100", {"target": NVFP4}, ["emulated"]),
        ("apple-laptop", {"drafter": OTHER}, ["host!"]),
        ("gb10", {"engine": ("-tp", "2")}, ["accelerators!"]),
        ("gb10", {"engine": ("-tp", "2", "--nnodes", "2")}, ["nodes!"]),
        ("2x-gb10", {"engine": ("-tp", "2", "--nnodes", "2")}, []),
        ("gb10-linked-1", {"recipe": make_recipe(nodes=2)}, ["nodes"]),
        ("2x-gb10", {"recipe": make_recipe(nodes=2)}, []),
        ("2x-gb10", {"recipe": make_recipe(nodes=4)}, ["nodes"]),
        ("h100", {"recipe": make_recipe(nodes=2)}, []),
        ("mi300x", {}, ["rocm"]),
        ("strix-halo", {"method": "plain"}, ["rocm"]),
        ("cpu-server", {"target": SMALL, "recipe": CPU}, []),
        ("h100", {"images": True}, ["images!"]),
        ("h100", {"target": {"modalities": ("vision",)}, "images": True}, []),
        ("cpu-server", {"target": SMALL, "engine": ("-pp", "2")}, ["accelerators!", "pipeline!"]),
    ],
)
def test_each_fault_has_its_code(machine: str, inputs: dict[str, Any], codes: list[str]) -> None:
    """A refusal is marked with "!"."""
    made = plan(machine, **inputs)
    refused = [f"{fault.code}!" for fault in made.refusals]
    assert refused + [fault.code for fault in made.warnings] == codes
    assert all(fault.hint for fault in (*made.refusals, *made.warnings))


def test_drafts_on_an_amd_gpu_run_on_a_backend_that_its_build_has() -> None:
    speculation = plan("mi300x").settings.speculation
    assert speculation is not None
    assert speculation.attention_backend is not None
    assert speculation.attention_backend.value == "TRITON_ATTN"


def test_an_unknown_size_leaves_the_cache_unknown() -> None:
    memory = plan(target=UNNAMED).memory
    assert (memory.kv_pool_bytes, memory.sequences_that_fit) == (None, None)
    assert memory.unknown == ("target weights",)


def test_a_share_that_can_freeze_a_unified_machine_names_ours() -> None:
    assert plan("gb10", engine=(SHARE, "0.85")).warnings[0].hint.startswith(f"{SHARE} 0.72")


SETTINGS = bare_plan(
    *("--max-num-seqs", "16", "--kv-cache-dtype", "fp8", "--nnodes", "2", "--spec-tokens", "7"),
    *("--speculative-config.attention_backend", "FLASH_ATTN"),
).settings
HYBRID = {"target": {"layers": HYBRID_LAYERS}}
VARIABLE = {"recipe": make_recipe(environment={"NCCL_P2P_DISABLE": "1"}, machines=("h100",))}


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
        ("drivers", ("580.*",), ("590.*",), {}),
        ("nodes_over", 1, 2, {}),
        ("engine_below", "0.33.0", "0.32.0", {}),
        ("environment", ("NCCL_P2P_DISABLE=1",), ("NCCL_P2P_DISABLE=2",), VARIABLE),
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
