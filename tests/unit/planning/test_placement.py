"""Memory share, executor, graphs, loader and environment follow the machine."""

from dataclasses import replace

import pytest

from slipstream.planning.placement import (
    decide_dtype,
    decide_eager,
    decide_environment,
    decide_executor,
    decide_loader,
    decide_modalities,
    decide_parallel,
    decide_utilization,
)
from slipstream.planning.situation import Situation
from slipstream.planning.wishes import Wishes
from slipstream.recipes.recipe import Obsolete
from tests.unit.planning.pieces import make_recipe, situate


def with_memory(machine: str, total: int | None, available: int | None) -> Situation:
    situation = situate(machine)
    accelerator = situation.host.accelerators[0].model_copy(
        update={"memory_total_bytes": total, "memory_available_bytes": available}
    )
    host = situation.host.model_copy(update={"accelerators": (accelerator,)})
    return Situation(host, situation.target, situation.drafter, None, situation.wishes)


def test_a_unified_memory_keeps_a_fifth_for_the_system() -> None:
    choice = decide_utilization(with_memory("gb10", 100 << 30, 90 << 30))
    assert choice is not None
    assert (choice.value, choice.source) == (0.70, "hardware")
    assert "20 GiB are left to the system" in choice.because


def test_a_recipes_utilization_is_never_copied() -> None:
    choice = decide_utilization(situate("gb10", recipe=make_recipe(memory_utilization=0.85)))
    assert choice is not None
    assert choice.value == 0.72


def test_a_discrete_memory_keeps_two_gibibytes() -> None:
    choice = decide_utilization(with_memory("rtx-5090", 32 << 30, 30 << 30))
    assert choice is not None
    assert choice.value == 0.87


def test_no_share_is_more_than_the_engines_own_most() -> None:
    choice = decide_utilization(with_memory("b300", 1000 << 30, 1000 << 30))
    assert choice is not None
    assert choice.value == 0.92


def test_a_full_memory_still_gives_a_share_that_the_engine_accepts() -> None:
    choice = decide_utilization(with_memory("gb10", 100 << 30, 5 << 30))
    assert choice is not None
    assert choice.value == 0.05


@pytest.mark.parametrize(("total", "available"), [(None, 5), (5, None)])
def test_an_unknown_memory_gets_a_careful_share(total: int | None, available: int | None) -> None:
    choice = decide_utilization(with_memory("gb10", total, available))
    assert choice is not None
    assert (choice.value, choice.source) == (0.7, "default")


def test_a_wish_for_a_share_is_taken_and_a_cpu_has_none() -> None:
    choice = decide_utilization(situate("gb10", memory_utilization=0.5))
    assert choice is not None
    assert (choice.value, choice.source) == (0.5, "user")
    assert decide_utilization(situate("cpu-server")) is None


def test_an_accelerators_worker_is_a_process() -> None:
    choice = decide_executor(situate())
    assert choice is not None
    assert choice.value == "mp"
    assert decide_executor(situate("cpu-server")) is None


def test_a_spark_starts_eager_for_latency_only() -> None:
    choice = decide_eager(situate("gb10"))
    assert choice is not None
    assert "9.5 minutes" in choice.because
    assert decide_eager(situate("gb10", goal="throughput")) is None
    assert decide_eager(situate("h100")) is None


def test_an_eager_start_can_be_asked_for_anywhere() -> None:
    choice = decide_eager(situate("h100", raw=("--enforce-eager",)))
    assert choice is not None
    assert choice.source == "user"


def test_a_recipes_eager_counts_on_its_machine() -> None:
    recipe = make_recipe(eager=True)
    choice = decide_eager(situate("gb10", recipe=recipe, goal="throughput"))
    assert choice is not None
    assert choice.source == "recipe"
    assert decide_eager(situate("h100", recipe=recipe)) is None


def parallel_of(situation: Situation) -> dict[str, int]:
    return {name: choice.value for name, choice in decide_parallel(situation).items()}


def test_a_recipe_for_linked_machines_spreads_over_them() -> None:
    recipe = make_recipe(nodes=2)
    spread = {"tensor_parallel": 2, "nodes": 2, "node_rank": 0}
    assert parallel_of(situate("gb10", recipe=recipe)) == spread
    assert parallel_of(situate("h100", recipe=recipe)) == {}


def test_a_recipe_for_several_accelerators_spreads_on_its_machine() -> None:
    recipe = make_recipe(tensor_parallel=4)
    assert parallel_of(situate("gb10", recipe=recipe)) == {"tensor_parallel": 4}
    assert parallel_of(situate("h100", recipe=recipe)) == {}
    assert parallel_of(situate("gb10", recipe=make_recipe())) == {}
    assert parallel_of(situate()) == {}


def test_what_is_asked_of_the_engine_spreads_over_as_many() -> None:
    assert parallel_of(situate(raw=("-tp", "2", "-pp=3"))) == {
        "tensor_parallel": 2,
        "pipeline_parallel": 3,
    }


def test_only_safetensors_are_loaded_unless_the_recipe_has_a_faster_loader() -> None:
    assert decide_loader(situate()).value == "safetensors"
    recipe = make_recipe(loader="instanttensor")
    assert decide_loader(situate("gb10", recipe=recipe)).value == "instanttensor"
    assert decide_loader(situate("h100", recipe=recipe)).value == "safetensors"


def test_a_multimodal_target_serves_text_only() -> None:
    choice = decide_modalities(situate(target={"modalities": ("vision",)}))
    assert choice is not None
    assert choice.value == {"image": 0, "video": 0, "audio": 0}
    assert decide_modalities(situate()) is None
    assert decide_modalities(situate(target={"modalities": None})) is None


def environment_of(situation: Situation) -> dict[str, str]:
    return {name: choice.value for name, choice in decide_environment(situation).items()}


def test_a_drafter_on_an_accelerator_gets_the_v2_runner() -> None:
    assert environment_of(situate()) == {"VLLM_USE_V2_MODEL_RUNNER": "1"}
    assert environment_of(situate(speculation=False)) == {}


def test_a_recipes_variables_are_taken_but_for_obsolete_ones() -> None:
    recipe = make_recipe(
        environment={"A": "1", "B": "2"}, obsolete=(Obsolete(what="B=2", why="gone"),)
    )
    taken = environment_of(situate("gb10", recipe=recipe))
    assert taken == {"VLLM_USE_V2_MODEL_RUNNER": "1", "A": "1"}
    assert "A" not in environment_of(situate("h100", recipe=recipe))


def on_cpu(threads: int | None, library: str | None) -> Situation:
    situation = situate("cpu-server")
    host = situation.host
    changed = host.model_copy(
        update={
            "processor": host.processor.model_copy(update={"usable_threads": threads}),
            "software": host.software.model_copy(update={"openmp_library": library}),
        }
    )
    return Situation(changed, situation.target, situation.drafter, None, situation.wishes)


@pytest.mark.parametrize(("threads", "bound"), [(5, "0-3"), (16, "0-14")])
def test_a_cpu_leaves_its_last_thread_to_the_scheduler(threads: int, bound: str) -> None:
    assert environment_of(on_cpu(threads, None)) == {"VLLM_CPU_OMP_THREADS_BIND": bound}


def test_a_single_thread_of_two_nodes_is_shared() -> None:
    situation = on_cpu(1, None)
    processor = situation.host.processor.model_copy(update={"numa_nodes": 2})
    apart = replace(situation, host=situation.host.model_copy(update={"processor": processor}))
    assert environment_of(apart) == {"VLLM_CPU_OMP_THREADS_BIND": "0"}


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_a_small_cpu_has_no_worker_process_and_computes_with_every_thread(threads: int) -> None:
    assert environment_of(on_cpu(threads, None)) == {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "OMP_NUM_THREADS": str(threads),
    }


def test_threads_on_two_nodes_are_bound_however_few() -> None:
    situation = on_cpu(4, None)
    processor = situation.host.processor.model_copy(update={"numa_nodes": 2})
    host = situation.host.model_copy(update={"processor": processor})
    apart = Situation(host, situation.target, situation.drafter, None, situation.wishes)
    assert environment_of(apart) == {"VLLM_CPU_OMP_THREADS_BIND": "0-2"}


def test_a_cpu_preloads_intels_openmp_where_it_is() -> None:
    assert environment_of(on_cpu(8, "/venv/lib/libiomp5.so")) == {
        "LD_PRELOAD": "/venv/lib/libiomp5.so",
        "VLLM_CPU_OMP_THREADS_BIND": "0-6",
    }
    assert environment_of(on_cpu(None, None)) == {}


def with_features(*features: str) -> Situation:
    situation = situate("cpu-server")
    processor = situation.host.processor.model_copy(update={"features": features})
    return replace(situation, host=situation.host.model_copy(update={"processor": processor}))


def test_drafts_are_verified_in_float32_where_bfloat16_is_emulated() -> None:
    choice = decide_dtype(with_features("avx2", "avx512f", "avx512_vnni"))
    assert choice is not None
    assert (choice.value, choice.source) == ("float32", "hardware")


@pytest.mark.parametrize("feature", ["amx_bf16", "avx512_bf16", "bf16", "svebf16"])
def test_a_processor_with_bfloat16_instructions_keeps_the_checkpoints_dtype(feature: str) -> None:
    assert decide_dtype(with_features("avx2", feature)) is None


@pytest.mark.parametrize(
    ("users", "dtype"), [(None, None), (1, None), (2, None), (3, "float32"), (8, "float32")]
)
def test_plain_decoding_gets_the_dtype_that_is_best_for_its_batch(
    users: int | None, dtype: str | None
) -> None:
    wishes = Wishes(speculation=False, users=users)
    choice = decide_dtype(replace(with_features("avx2"), wishes=wishes))
    assert (choice.value if choice else None) == dtype


def test_a_processor_whose_instructions_are_unknown_keeps_the_checkpoints_dtype() -> None:
    assert decide_dtype(with_features()) is None
