"""The plan as a whole: round trip, precedence, budget, refusals, and what argv becomes."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from slipstream.checkpoints.checkpoint import Quantization, Weights
from slipstream.errors import UsageError
from slipstream.hardware import load_host
from slipstream.planning import LaunchPlan, Wishes, make_plan
from slipstream.recipes.recipe import Condition, KnownBad, Obsolete, Recipe
from tests.unit.planning.pieces import DRAFTER, GIB, HYBRID_LAYERS, TARGET, make_recipe


def plan(
    machine: str = "h100",
    *,
    target: dict[str, Any] | None = None,
    drafter: dict[str, Any] | None = None,
    recipe: Recipe | None = None,
    known_bad: tuple[KnownBad, ...] = (),
    **wishes: Any,
) -> LaunchPlan:
    return make_plan(
        load_host(machine),
        TARGET.model_copy(update=target or {}),
        DRAFTER.model_copy(update=drafter or {}),
        recipe,
        Wishes(**wishes),
        known_bad=known_bad,
    )


def values_of(made: LaunchPlan) -> dict[str, str | None]:
    return {decision.flag: decision.value for decision in made.decisions}


def refusals_of(made: LaunchPlan) -> list[str]:
    return [fault.code for fault in made.refusals]


def warnings_of(made: LaunchPlan) -> list[str]:
    return [fault.code for fault in made.warnings]


@pytest.mark.parametrize("machine", ["h100", "gb10", "cpu-server", "apple-laptop"])
def test_a_plan_loads_back_identically(machine: str) -> None:
    made = plan(machine)
    assert LaunchPlan.model_validate_json(made.to_json()) == made


def test_a_good_pair_is_planned_without_a_fault() -> None:
    made = plan()
    assert made.refusals == ()
    assert made.warnings == ()
    assert values_of(made) == {
        "--model": "Qwen/Qwen3-8B",
        "--served-model-name": "Qwen3-8B Qwen/Qwen3-8B",
        "--tool-call-parser": "qwen3_json",
        "--enable-auto-tool-choice": None,
        "--reasoning-parser": "qwen3",
        "--host": "127.0.0.1",
        "--max-model-len": "32768",
        "--max-num-seqs": "8",
        "--max-num-batched-tokens": "8192",
        "--gpu-memory-utilization": "0.92",
        "--distributed-executor-backend": "mp",
        "--load-format": "safetensors",
        "--speculative-config.method": "dflash",
        "--speculative-config.model": "z-lab/Qwen3-8B-DFlash-b16",
        "--speculative-config.num_speculative_tokens": "15",
        "--speculative-config.attention_backend": "FLASH_ATTN",
    }


def test_the_speculative_settings_become_one_argument() -> None:
    argv = plan().argv()
    assert argv[:3] == ["python", "-m", "vllm.entrypoints.openai.api_server"]
    assert json.loads(argv[argv.index("--speculative-config") + 1]) == {
        "method": "dflash",
        "model": "z-lab/Qwen3-8B-DFlash-b16",
        "num_speculative_tokens": 15,
        "attention_backend": "FLASH_ATTN",
    }
    assert "--speculative-config" not in plan(speculation=False).argv()


def test_dflash2_is_asked_for_as_dflash() -> None:
    assert DRAFTER.draft is not None
    second = {"draft": DRAFTER.draft.model_copy(update={"family": "dflash2"})}
    assert values_of(plan(drafter=second))["--speculative-config.method"] == "dflash"


def test_pinned_revisions_reach_the_engine() -> None:
    values = values_of(plan(target={"revision": "abc"}, drafter={"revision": "def"}))
    assert values["--revision"] == "abc"
    assert values["--speculative-config.revision"] == "def"


def test_a_raw_argument_beats_every_decision() -> None:
    made = plan(raw=("--load-format", "dummy", "--port=9000", "--enable-log-requests"))
    values = values_of(made)
    assert values["--load-format"] == "dummy"
    assert values["--port"] == "9000"
    assert values["--enable-log-requests"] is None
    decision = made.find("--load-format")
    assert decision is not None
    assert (decision.source, decision.because) == ("user", "given after --")
    assert made.argv().count("--load-format") == 1


def test_a_raw_argument_counts_in_everything_that_depends_on_it() -> None:
    made = plan(raw=("--max-num-seqs", "3000", "--max-model-len=1024", "--kv-cache-dtype", "fp8"))
    values = values_of(made)
    assert values["--max-num-batched-tokens"] == str(3000 * 4)
    assert made.memory.kv_bytes_per_token == (36 + 5) * 8 * 256
    assert made.memory.bytes_per_sequence == 1024 * (36 + 5) * 8 * 256
    asked = made.find("--max-num-seqs")
    assert asked is not None
    assert asked.source == "user"


def test_a_raw_speculative_config_replaces_ours_whole() -> None:
    argv = plan(raw=("--speculative-config", '{"method": "ngram"}')).argv()
    assert argv.count("--speculative-config") == 1
    assert argv[argv.index("--speculative-config") + 1] == '{"method": "ngram"}'


def test_a_raw_part_of_the_speculative_config_replaces_that_part() -> None:
    argv = plan(raw=("--speculative-config.attention_backend", "TRITON_ATTN")).argv()
    config = json.loads(argv[argv.index("--speculative-config") + 1])
    assert config["attention_backend"] == "TRITON_ATTN"
    assert config["num_speculative_tokens"] == 15


def test_a_raw_switch_replaces_its_opposite() -> None:
    hybrid = {"layers": HYBRID_LAYERS}
    assert "--no-enable-prefix-caching" in plan(target=hybrid).argv()
    argv = plan(target=hybrid, raw=("--enable-prefix-caching",)).argv()
    assert "--enable-prefix-caching" in argv
    assert "--no-enable-prefix-caching" not in argv


def test_known_bad_combinations_see_what_raw_arguments_made_of_the_plan() -> None:
    entry = KnownBad(
        name="bad",
        verdict="warn",
        message="it breaks",
        hint="do not",
        sources=("vllm#1",),
        when=Condition(drafter_backends=("FLASH_ATTN",), prefix_caching=True),
    )
    assert warnings_of(plan(known_bad=(entry,))) == ["bad"]
    for raw in (
        ("--speculative-config.attention_backend", "TRITON_ATTN"),
        ("--no-enable-prefix-caching",),
    ):
        assert warnings_of(plan(known_bad=(entry,), raw=raw)) == []


@pytest.mark.parametrize("share", ["most", "", "0.5.1"])
def test_a_raw_share_that_is_no_number_is_refused(share: str) -> None:
    with pytest.raises(UsageError, match="is no number"):
        plan(raw=(f"--gpu-memory-utilization={share}",))


def test_a_raw_share_counts_in_the_budget() -> None:
    memory = plan(raw=("--gpu-memory-utilization", ".5")).memory
    assert memory.device_bytes is not None
    assert memory.usable_bytes == memory.device_bytes // 2


def test_a_raw_number_that_is_none_is_left_to_the_engine() -> None:
    values = values_of(plan(raw=("--max-model-len", "auto")))
    assert values["--max-model-len"] == "auto"


def test_the_recipe_sets_what_it_knows_and_is_named() -> None:
    recipe = make_recipe(draft_length=7, sequences=16, kv_dtype="fp8", quantization="fp8")
    made = plan("gb10", recipe=recipe)
    values = values_of(made)
    assert made.recipe == "test-recipe"
    assert values["--speculative-config.num_speculative_tokens"] == "7"
    assert values["--kv-cache-dtype"] == "fp8"
    assert values["--speculative-config.kv_cache_dtype"] == "bfloat16"
    assert values["--quantization"] == "fp8"
    drafter = made.find("--speculative-config.model")
    assert drafter is not None
    assert drafter.source == "recipe"


def test_what_is_obsolete_in_a_recipe_is_said() -> None:
    recipe = make_recipe(obsolete=(Obsolete(what="a patch", why="upstream"),))
    assert plan("gb10", recipe=recipe).notes == ("not used from test-recipe: a patch: upstream",)


def test_what_compiling_costs_is_said_unless_it_is_skipped() -> None:
    assert plan("gb10").notes == ()
    assert "9.5 minutes" in plan("h100").notes[0]
    assert "110 s" in plan("cpu-server").notes[0]


def test_weights_quantized_at_load_are_not_quantized_again() -> None:
    stored = {"quantized": True, "quantization": Quantization(scheme="fp8", method="fp8")}
    made = plan("gb10", target=stored, recipe=make_recipe(quantization="fp8"))
    assert "--quantization" not in values_of(made)


def test_the_budget_adds_up() -> None:
    memory = plan().memory
    sizes = {item.name: item.size_bytes for item in memory.items}
    assert sizes["target weights"] == 16 * GIB
    assert sizes["drafter weights"] == 2 * GIB
    assert memory.kv_bytes_per_token == (36 + 5) * 8 * 512
    assert memory.bytes_per_sequence == 32768 * (36 + 5) * 8 * 512
    assert memory.usable_bytes is not None
    assert memory.kv_pool_bytes == memory.usable_bytes - sum(
        size for size in sizes.values() if size is not None
    )
    assert memory.sequences_that_fit == memory.kv_pool_bytes // memory.bytes_per_sequence
    assert memory.unknown == ()


def test_quantizing_at_load_halves_the_weights() -> None:
    memory = plan("gb10", recipe=make_recipe(quantization="fp8")).memory
    assert memory.items[0].size_bytes == 8 * GIB


def test_eager_saves_the_graphs() -> None:
    compiled, eager = plan("gb10", goal="throughput").memory, plan("gb10").memory
    sizes = [
        next(item.size_bytes for item in memory.items if item.name == "driver and graphs")
        for memory in (compiled, eager)
    ]
    assert sizes == [2336 << 20, 800 << 20]
    asked = plan("h100", raw=("--enforce-eager",))
    assert asked.memory.items[-1].size_bytes == 800 << 20
    assert asked.argv().count("--enforce-eager") == 1
    assert asked.notes == ()


def test_linked_machines_share_weights_and_cache() -> None:
    alone = plan("gb10-linked-1", recipe=make_recipe()).memory
    shared = plan("gb10-linked-1", recipe=make_recipe(nodes=2)).memory
    assert [item.size_bytes for item in shared.items[:2]] == [8 * GIB, GIB]
    assert alone.bytes_per_sequence is not None
    assert shared.bytes_per_sequence == alone.bytes_per_sequence // 2


def test_an_unknown_size_is_said_and_warned_about() -> None:
    made = plan(target={"weights": None})
    assert made.memory.kv_pool_bytes is None
    assert made.memory.sequences_that_fit is None
    assert made.memory.unknown == ("target weights",)
    assert warnings_of(made) == ["memory-unknown"]


def test_weights_that_do_not_fit_are_refused_with_both_sizes() -> None:
    made = plan("rtx-3090", target={"weights": Weights(total_bytes=40 * GIB)})
    assert refusals_of(made) == ["memory"]
    assert made.refusals[0].message == "the weights take 42.0 GiB, and 21.4 GiB are usable here"


def test_a_cache_without_room_for_one_sequence_is_refused_with_a_context_that_fits() -> None:
    made = plan("rtx-3090", target={"weights": Weights(total_bytes=15 * GIB)})
    assert refusals_of(made) == ["cache"]
    assert made.refusals[0].hint.startswith("--context ")
    shorter = int(made.refusals[0].hint.split()[1])
    assert made.memory.kv_pool_bytes is not None
    assert made.memory.kv_bytes_per_token is not None
    assert shorter == made.memory.kv_pool_bytes // made.memory.kv_bytes_per_token // 1024 * 1024
    again = plan("rtx-3090", target={"weights": Weights(total_bytes=15 * GIB)}, context=shorter)
    assert refusals_of(again) == []


def test_a_cache_with_room_for_few_is_a_warning() -> None:
    made = plan(users=64)
    assert warnings_of(made) == ["cache"]
    assert "not 64" in made.warnings[0].message


def test_a_capacity_goal_packs_the_cache_when_it_is_short() -> None:
    assert values_of(plan(users=16, goal="capacity"))["--kv-cache-dtype"] == "fp8"
    values = values_of(plan("b200", users=52, goal="capacity"))
    assert values["--kv-cache-dtype"] == "turboquant_k8v4"
    assert values["--speculative-config.kv_cache_dtype"] == "bfloat16"
    assert values["--compilation-config"] == '{"cudagraph_mode": "PIECEWISE"}'
    assert "--kv-cache-dtype" not in values_of(plan(users=1, goal="capacity"))


def test_a_share_that_can_freeze_a_unified_machine_is_warned_about() -> None:
    made = plan("gb10", memory_utilization=0.85)
    assert warnings_of(made) == ["headroom"]
    assert "here 0.72 leaves" in made.warnings[0].message
    assert warnings_of(plan("gb10", memory_utilization=0.72)) == []
    assert warnings_of(plan("h100", memory_utilization=0.95)) == []


def test_turboquant_on_a_target_that_cannot_is_refused() -> None:
    made = plan(target={"attention_sinks": True}, kv_dtype="turboquant_k8v4")
    assert refusals_of(made) == ["turboquant"]
    assert "sinks" in made.refusals[0].message


def test_turboquant_on_another_backend_is_refused() -> None:
    asked = ("--kv-cache-dtype", "turboquant_k8v4", "--attention-backend")
    made = plan(raw=(*asked, "flash_attn"))
    assert refusals_of(made) == ["turboquant"]
    assert made.refusals[0].message == (
        "turboquant_k8v4 cannot be used: --attention-backend FLASH_ATTN cannot read it: "
        "leave that out"
    )
    assert refusals_of(plan(raw=(*asked, "TURBOQUANT"))) == []


def test_faults_of_the_pair_refuse_the_plan() -> None:
    assert refusals_of(plan(drafter={"hidden_size": 5376})) == ["hidden-size"]
    assert refusals_of(plan(drafter={"hidden_size": 5376}, speculation=False)) == []
    assert refusals_of(plan(draft_length=16)) == ["draft-length"]
    assert refusals_of(plan(context=65536)) == ["drafter-context"]


def test_faults_of_the_engine_refuse_the_plan() -> None:
    assert refusals_of(plan(target={"architecture": "Gemma3ForCausalLM"})) == ["target-class"]
    stored = {
        "quantized": True,
        "quantization": Quantization(scheme="nvfp4", method="modelopt"),
        "weights": Weights(total_bytes=5 * GIB),
    }
    assert refusals_of(plan("cpu-server", target=stored)) == ["target-quantization"]
    assert warnings_of(plan("h100", target=stored)) == ["emulated"]


def test_an_apple_laptop_is_refused_for_that_alone() -> None:
    made = plan("apple-laptop", drafter={"hidden_size": 1})
    assert refusals_of(made) == ["host"]


def test_a_recipe_for_more_accelerators_or_machines_is_refused() -> None:
    assert refusals_of(plan("gb10", recipe=make_recipe(tensor_parallel=2))) == ["accelerators"]
    assert refusals_of(plan("gb10", recipe=make_recipe(nodes=2))) == ["nodes"]
    assert warnings_of(plan("gb10-linked-1", recipe=make_recipe(nodes=2))) == ["nodes"]
    assert refusals_of(plan("h100", recipe=make_recipe(nodes=2))) == []


def test_a_recipe_for_a_cpu_needs_no_accelerator() -> None:
    small = {"weights": Weights(total_bytes=GIB)}
    recipe = make_recipe(machines=("cpu",))
    assert refusals_of(plan("cpu-server", target=small, recipe=recipe)) == []
    spread = make_recipe(machines=("cpu",), tensor_parallel=2)
    assert refusals_of(plan("cpu-server", target=small, recipe=spread)) == ["accelerators"]


def test_a_cpu_sizes_its_cache_in_bytes() -> None:
    made = plan("cpu-server", target={"weights": Weights(total_bytes=GIB)})
    values = values_of(made)
    assert "--gpu-memory-utilization" not in values
    assert made.memory.bytes_per_sequence is not None
    assert made.memory.kv_bytes_per_token is not None
    null_block = 128 * made.memory.kv_bytes_per_token
    assert values["--kv-cache-memory-bytes"] == str(4 * made.memory.bytes_per_sequence + null_block)
    assert made.memory.sequences_that_fit == 4
    assert "--attention-backend" not in values


def test_a_known_bad_combination_refuses_the_plan_with_its_sources() -> None:
    entry = KnownBad(
        name="bad",
        verdict="refuse",
        message="it breaks",
        hint="do not",
        sources=("vllm#1",),
        when=Condition(machines=("h100",), hybrid=True),
    )
    made = plan(target={"layers": HYBRID_LAYERS}, known_bad=(entry,))
    assert refusals_of(made) == ["target-layers", "layer-range", "bad"] or "bad" in refusals_of(
        made
    )
    assert made.refusals[-1].message == "it breaks (vllm#1)"
    assert refusals_of(plan(known_bad=(entry,))) == []


@given(
    machine=some.sampled_from(["h100", "gb10", "rtx-3090", "cpu-server", "jetson-thor", "b300"]),
    users=some.none() | some.integers(1, 256),
    context=some.none() | some.integers(256, 40960),
    drafted=some.none() | some.integers(1, 15),
    goal=some.sampled_from(["latency", "throughput", "capacity"]),
)
def test_every_plan_keeps_the_engines_invariants(
    machine: str, users: int | None, context: int | None, drafted: int | None, goal: str
) -> None:
    made = plan(machine, users=users, context=context, draft_length=drafted, goal=goal)
    values = values_of(made)
    drafts = int(values["--speculative-config.num_speculative_tokens"] or 0)
    sequences = int(values["--max-num-seqs"] or 0)
    assert int(values["--max-num-batched-tokens"] or 0) >= sequences * (drafts + 1)
    assert int(values["--max-model-len"] or 0) <= 40960
    assert LaunchPlan.model_validate_json(made.to_json()) == made
    assert all(decision.because for decision in (*made.decisions, *made.variables))
