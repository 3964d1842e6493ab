"""Memory share, executor, graphs, loader and environment follow the machine."""

from dataclasses import replace
from typing import Any

import pytest

from slipstream.checkpoints.checkpoint import Layers, Quantization
from slipstream.hardware.host import MemoryUser
from slipstream.planning.inputs import PlanInputs
from slipstream.planning.planner import make_plan
from slipstream.planning.settings.options import make_options
from slipstream.planning.settings.placement import (
    decide_dtype,
    decide_eager,
    decide_environment,
    decide_executor,
    decide_loader,
    decide_modalities,
    decide_parallel,
    decide_utilization,
    list_tensor_parallel,
    note_idle,
)
from slipstream.recipes.recipe import Obsolete
from tests.unit.planning.pieces import HYBRID_LAYERS, TARGET, make_inputs, make_recipe, pick


@pytest.mark.parametrize(
    ("machine", "total", "available", "chosen"),
    [
        ("gb10", 100 << 30, 90 << 30, (0.70, "hardware")),
        ("gb10", 100 << 30, 5 << 30, (0.05, "hardware")),
        ("rtx-5090", 32 << 30, 30 << 30, (0.87, "hardware")),
        ("b300", 1000 << 30, 1000 << 30, (0.92, "hardware")),
        ("gb10", None, 5, (0.7, "default")),
        ("gb10", 5, None, (0.7, "default")),
    ],
)
def test_the_share_leaves_a_fifth_of_unified_memory_or_two_gibibytes(
    machine: str, total: int | None, available: int | None, chosen: tuple[float, str]
) -> None:
    inputs = make_inputs(machine)
    accelerator = inputs.host.accelerators[0].model_copy(
        update={"memory_total_bytes": total, "memory_available_bytes": available}
    )
    host = inputs.host.model_copy(update={"accelerators": (accelerator,)})
    assert pick(decide_utilization(replace(inputs, host=host))) == chosen


CRASHED = {"memory_utilization": 0.5, "crashed_above": "it crashed at 0.85 (a forum)"}


@pytest.mark.parametrize(
    ("machine", "recipe", "chosen"),
    [
        ("gb10", {"memory_utilization": 0.85}, (0.72, "hardware")),
        ("gb10", {"memory_utilization": 0.7}, (0.7, "recipe")),
        ("gb10", {"memory_utilization": 0.5, "engine": "sglang"}, (0.72, "hardware")),
        ("gb10", {"memory_utilization": 0.5, "machines": ("h100",)}, (0.72, "hardware")),
        ("gb10", CRASHED, (0.5, "recipe")),
        ("h100", CRASHED | {"machines": ("h100",)}, (0.5, "recipe")),
        ("h100", {"memory_utilization": 0.5, "machines": ("h100",)}, (0.92, "hardware")),
    ],
)
def test_a_recipes_share_is_a_limit_where_more_crashed_or_was_never_tried(
    machine: str, recipe: dict[str, Any], chosen: tuple[float, str]
) -> None:
    choice = decide_utilization(make_inputs(machine, recipe=make_recipe(**recipe)))
    assert pick(choice) == chosen
    assert choice is not None
    assert ("0.85" in choice.because) == ("crashed_above" in recipe)


def test_a_cpu_has_neither_share_nor_worker() -> None:
    assert pick(decide_executor(make_inputs())) == ("mp", "default")
    assert decide_utilization(make_inputs("cpu-server")) is None
    assert decide_executor(make_inputs("cpu-server")) is None


@pytest.mark.parametrize(
    ("machine", "inputs", "chosen"),
    [
        ("gb10", {}, (True, "hardware")),
        ("gb10", {"goal": "agent"}, (True, "hardware")),
        ("gb10", {"goal": "throughput"}, None),
        ("h100", {}, None),
        ("gb10", {"goal": "throughput", "recipe": make_recipe(eager=True)}, (True, "recipe")),
        ("h100", {"recipe": make_recipe(eager=True)}, None),
    ],
)
def test_a_spark_starts_eager_for_latency_and_where_its_recipe_does(
    machine: str, inputs: dict[str, Any], chosen: tuple[bool, str] | None
) -> None:
    assert pick(decide_eager(make_inputs(machine, **inputs))) == chosen


TEN_HEADS = Layers(kind="full", count=36, key_value_heads=10, head_size=128)
TWO_HEADS = Layers(kind="full", count=36, key_value_heads=2, head_size=128)
FOUR_H100 = make_recipe(tensor_parallel=4, machines=("h100",))
TWO_MACHINES = {"--tensor-parallel-size": 2, "--nnodes": 2, "--node-rank": 0}


@pytest.mark.parametrize(
    ("machine", "inputs", "sizes"),
    [
        ("gb10-linked-1", {"recipe": make_recipe(nodes=2)}, TWO_MACHINES),
        ("2x-gb10", {"recipe": make_recipe(nodes=2)}, TWO_MACHINES),
        ("gb10", {"recipe": make_recipe(nodes=2)}, {}),
        ("h100", {"recipe": make_recipe(nodes=2)}, {}),
        ("h100x4", {"recipe": FOUR_H100}, {"--tensor-parallel-size": 4}),
        ("h100x2", {"recipe": FOUR_H100}, {}),
        ("gb10", {"recipe": make_recipe(tensor_parallel=4)}, {}),
        ("h100x4", {"recipe": make_recipe(tensor_parallel=4)}, {}),
        ("h100x4", {"recipe": FOUR_H100, "engine": ("-pp", "2")}, {}),
        ("gb10", {"recipe": make_recipe()}, {}),
        ("h100", {}, {}),
    ],
)
def test_a_recipe_spreads_on_its_machine_if_it_has_so_many_and_no_size_is_given(
    machine: str, inputs: dict[str, Any], sizes: dict[str, int]
) -> None:
    chosen = decide_parallel(make_inputs(machine, **inputs), 1, "").list_choices()
    assert {flag: choice.value for flag, choice in chosen} == sizes


@pytest.mark.parametrize(
    ("machine", "inputs", "sizes"),
    [
        ("h100", {}, (1,)),
        ("cpu-server", {}, (1,)),
        ("h100x8", {}, (1, 2, 4, 8)),
        ("h100x6", {}, (1, 2, 4)),
        ("h100x8", {"engine": ("-tp", "2")}, (1,)),
        ("h100x8", {"target": {"attention_heads": 12, "layers": None}, "plain": True}, (1, 2, 4)),
        ("h100x8", {"drafter": {"attention_heads": 6}}, (1, 2)),
        # Ten key-value heads are divided by two, and by nothing larger; two are kept by several.
        ("h100x8", {"target": {"layers": (TEN_HEADS,)}, "plain": True}, (1, 2)),
        ("h100x8", {"target": {"layers": (TWO_HEADS,)}, "plain": True}, (1, 2, 4, 8)),
        ("2x-gb10", {}, (1, 2)),
        ("2x-h100x8", {}, (1, 2, 4, 8, 16)),
    ],
)
def test_equal_accelerators_that_divide_all_heads_may_share_a_model(
    machine: str, inputs: dict[str, Any], sizes: tuple[int, ...]
) -> None:
    assert list_tensor_parallel(make_inputs(machine, **inputs)) == sizes


@pytest.mark.parametrize(
    ("machine", "words", "count"),
    [("h100", (), 0), ("h100x8", (), 1), ("h100x8", ("-tp", "8"), 0), ("h100x8", ("-dp", "4"), 0)],
)
def test_idle_accelerators_are_named(machine: str, words: tuple[str, ...], count: int) -> None:
    assert len(note_idle(make_inputs(machine, engine=words))) == count


@pytest.mark.parametrize(
    ("machine", "packages", "loader"),
    [
        ("gb10", ("instanttensor",), "instanttensor"),
        ("gb10", ("fastsafetensors",), "safetensors"),
        ("gb10", (), "safetensors"),
        ("h100", ("instanttensor",), "safetensors"),
    ],
)
def test_only_safetensors_are_loaded_unless_the_recipes_faster_loader_is_installed(
    machine: str, packages: tuple[str, ...], loader: str
) -> None:
    inputs = make_inputs(machine, recipe=make_recipe(loader="instanttensor"))
    software = inputs.host.software.model_copy(update={"packages": packages})
    host = inputs.host.model_copy(update={"software": software})
    assert decide_loader(replace(inputs, host=host)).value == loader


@pytest.mark.parametrize(
    ("target", "images", "most"),
    [
        ({"modalities": ("vision",)}, False, 0),
        ({"modalities": ("vision",)}, True, 16),
        # A class of vLLM's multimodal registry sees without a vision config.
        ({"architecture": "Phi4MMForCausalLM"}, False, 0),
        ({"architecture": "Phi4MMForCausalLM"}, True, 16),
        ({"modalities": ("audio",)}, True, 0),
        ({"modalities": None}, True, None),
        ({}, True, None),
    ],
)
def test_a_multimodal_target_serves_text_only_unless_images_are_requested(
    target: dict[str, Any], images: bool, most: int | None
) -> None:
    choice = decide_modalities(make_inputs(target=target, images=images))
    limits = None if most is None else {"image": most, "video": 0, "audio": 0}
    assert (choice and choice.value) == limits


def environment_of(inputs: PlanInputs) -> dict[str, str]:
    return {name: choice.value for name, choice in decide_environment(inputs).items()}


def test_a_drafter_on_an_accelerator_gets_the_v2_runner_and_its_recipes_variables() -> None:
    assert environment_of(make_inputs()) == {"VLLM_USE_V2_MODEL_RUNNER": "1"}
    assert environment_of(make_inputs(method="plain")) == {}
    kept, gone = "NCCL_P2P_DISABLE", "NCCL_CUMEM_ENABLE"
    obsolete = (Obsolete(what=f"{gone}=2", why="gone"),)
    recipe = make_recipe(environment={kept: "1", gone: "2"}, obsolete=obsolete)
    taken = environment_of(make_inputs("gb10", recipe=recipe))
    assert taken == {"VLLM_USE_V2_MODEL_RUNNER": "1", kept: "1"}
    assert kept not in environment_of(make_inputs("h100", recipe=recipe))


BIND, WORKER = "VLLM_CPU_OMP_THREADS_BIND", "VLLM_ENABLE_V1_MULTIPROCESSING"


def change_processor(library: str | None = None, **changes: Any) -> PlanInputs:
    inputs = make_inputs("cpu-server")
    host = inputs.host.model_copy(
        update={
            "processor": inputs.host.processor.model_copy(update=changes),
            "software": inputs.host.software.model_copy(update={"openmp_library": library}),
        }
    )
    return replace(inputs, host=host)


@pytest.mark.parametrize(
    ("quota", "variables"),
    [
        (None, {BIND: "0-62"}),
        (100.0, {BIND: "0-62"}),
        (8.5, {BIND: "0-6"}),
        (2.0, {WORKER: "0", "OMP_NUM_THREADS": "2"}),
        (0.5, {WORKER: "0", "OMP_NUM_THREADS": "1"}),
    ],
)
def test_there_are_no_more_threads_than_a_containers_quota(
    quota: float | None, variables: dict[str, str]
) -> None:
    inputs = change_processor(usable_threads=64, usable_cpus=None, quota_cpus=quota)
    assert environment_of(inputs) == variables


def test_the_share_says_who_uses_much_of_the_memory() -> None:
    inputs = make_inputs("rtx-5090")
    users = tuple(
        MemoryUser(pid=pid, name=name, size_bytes=size)
        for pid, name, size in ((4711, "python", 29 << 30), (7, "Xorg", 300 << 20), (8, None, None))
    )
    one = inputs.host.accelerators[0].model_copy(update={"users": users})
    used = replace(inputs, host=inputs.host.model_copy(update={"accelerators": (one,)}))
    choice = decide_utilization(used)
    assert choice is not None
    assert "29.0 GiB by python (pid 4711)" in choice.because
    assert "Xorg" not in choice.because


OPENMP = "/venv/lib/libiomp5.so"


@pytest.mark.parametrize(
    ("threads", "nodes", "library", "variables"),
    [
        # The last thread is left to the scheduler.
        (5, 1, None, {BIND: "0-3"}),
        (16, 1, None, {BIND: "0-14"}),
        (1, 2, None, {BIND: "0"}),
        (4, 2, None, {BIND: "0-2"}),
        # On a small CPU there is no worker process, and every thread computes.
        (1, 1, None, {WORKER: "0", "OMP_NUM_THREADS": "1"}),
        (4, 1, None, {WORKER: "0", "OMP_NUM_THREADS": "4"}),
        # Intel's OpenMP is preloaded where it is.
        (8, 1, OPENMP, {"LD_PRELOAD": OPENMP, BIND: "0-6"}),
        (None, 1, None, {}),
    ],
)
def test_a_cpus_threads_are_bound_or_all_compute(
    threads: int | None, nodes: int, library: str | None, variables: dict[str, str]
) -> None:
    inputs = change_processor(library, usable_threads=threads, numa_nodes=nodes)
    assert environment_of(inputs) == variables


@pytest.mark.parametrize(
    ("features", "chosen"),
    [
        (("avx2", "avx512f", "avx512_vnni"), ("float32", "hardware")),
        (("avx2", "amx_bf16"), None),
        (("avx2", "avx512_bf16"), None),
        (("bf16",), None),
        (("svebf16",), None),
        ((), None),
    ],
)
def test_drafts_are_verified_in_float32_where_bfloat16_is_emulated(
    features: tuple[str, ...], chosen: tuple[str, str] | None
) -> None:
    assert pick(decide_dtype(change_processor(features=features))) == chosen


@pytest.mark.parametrize(
    ("scheme", "chosen"), [("int8", ("float32", "hardware")), ("int4", None), ("fp8", None)]
)
def test_a_target_in_8_bits_is_verified_in_float32_too(
    scheme: str, chosen: tuple[str, str] | None
) -> None:
    inputs = change_processor(features=("avx512_vnni",))
    stored = Quantization.model_validate({"scheme": scheme, "method": "compressed-tensors"})
    target = inputs.target.model_copy(update={"quantization": stored, "quantized": True})
    assert pick(decide_dtype(replace(inputs, target=target))) == chosen


@pytest.mark.parametrize(
    ("users", "dtype"), [(None, None), (1, None), (2, None), (3, "float32"), (8, "float32")]
)
def test_plain_decoding_gets_the_dtype_that_is_best_for_its_batch(
    users: int | None, dtype: str | None
) -> None:
    host = change_processor(features=("avx2",)).host
    choice = decide_dtype(replace(make_inputs(method="plain", users=users), host=host))
    assert (choice.value if choice else None) == dtype


def test_states_take_float32_on_a_cpu_where_vllm_keeps_them_so() -> None:
    recurrent, full = HYBRID_LAYERS
    layers = (recurrent.model_copy(update={"state_element_bytes": 2}), full)
    target = TARGET.model_copy(update={"layers": layers})
    sizes = []
    for features in (("avx2",), ("avx512_bf16",)):
        host = change_processor(features=features).host
        plan = make_plan(host, target, None, None, make_options(method="plain"))
        sizes.append(plan.memory.bytes_per_sequence or 0)
    assert sizes[1] > 1.2 * sizes[0] > 0
