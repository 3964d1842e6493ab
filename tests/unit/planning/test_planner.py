"""The plan as a whole: round trip, precedence, budget, refusals, and what argv becomes."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from slipstream.checkpoints.checkpoint import Quantization, Weights
from slipstream.hardware import load_host
from slipstream.planning import LaunchPlan, make_options, make_plan
from slipstream.recipes.recipe import Obsolete, Recipe
from tests.unit.planning.pieces import DRAFTER, GIB, HYBRID_LAYERS, TARGET, make_recipe


def plan(
    machine: str = "h100",
    *,
    target: dict[str, Any] | None = None,
    drafter: dict[str, Any] | None = None,
    recipe: Recipe | None = None,
    **options: Any,
) -> LaunchPlan:
    return make_plan(
        load_host(machine),
        TARGET.model_copy(update=target or {}),
        DRAFTER.model_copy(update=drafter or {}),
        recipe,
        make_options(**options),
    )


def values_of(made: LaunchPlan) -> dict[str, str | None]:
    return {decision.flag: decision.value for decision in made.decisions}


def refusals_of(made: LaunchPlan) -> list[str]:
    return [fault.code for fault in made.refusals]


def warnings_of(made: LaunchPlan) -> list[str]:
    return [fault.code for fault in made.warnings]


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
    assert "--speculative-config" not in plan(method="plain").argv()


def test_dflash2_is_asked_for_as_dflash() -> None:
    assert DRAFTER.draft is not None
    second = {"draft": DRAFTER.draft.model_copy(update={"family": "dflash2"})}
    assert values_of(plan(drafter=second))["--speculative-config.method"] == "dflash"


def test_pinned_revisions_reach_the_engine() -> None:
    values = values_of(plan(target={"revision": "abc"}, drafter={"revision": "def"}))
    assert values["--revision"] == "abc"
    assert values["--speculative-config.revision"] == "def"


def test_a_raw_argument_beats_every_decision() -> None:
    made = plan(engine=("--load-format", "dummy", "--port=9000", "--enable-log-requests"))
    values = values_of(made)
    assert values["--load-format"] == "dummy"
    assert values["--port"] == "9000"
    assert values["--enable-log-requests"] is None
    decision = made.find("--load-format")
    assert decision is not None
    assert (decision.source, decision.because) == ("user", "given after --")
    assert made.argv().count("--load-format") == 1


def test_a_raw_argument_counts_in_everything_that_depends_on_it() -> None:
    made = plan(
        engine=("--max-num-seqs", "3000", "--max-model-len=1024", "--kv-cache-dtype", "fp8")
    )
    values = values_of(made)
    assert values["--max-num-batched-tokens"] == str(3000 * 4)
    assert made.memory.kv_bytes_per_token == (36 + 5) * 8 * 256
    assert made.memory.bytes_per_sequence == 1024 * (36 + 5) * 8 * 256
    asked = made.find("--max-num-seqs")
    assert asked is not None
    assert asked.source == "user"


def test_a_raw_speculative_config_replaces_ours_whole() -> None:
    argv = plan(engine=("--speculative-config", '{"method": "ngram"}')).argv()
    assert argv.count("--speculative-config") == 1
    assert argv[argv.index("--speculative-config") + 1] == '{"method": "ngram"}'


def test_a_raw_part_of_the_speculative_config_replaces_that_part() -> None:
    argv = plan(engine=("--speculative-config.attention_backend", "TRITON_ATTN")).argv()
    config = json.loads(argv[argv.index("--speculative-config") + 1])
    assert config["attention_backend"] == "TRITON_ATTN"
    assert config["num_speculative_tokens"] == 15


def test_a_raw_switch_replaces_its_opposite() -> None:
    hybrid = {"layers": HYBRID_LAYERS}
    assert "--no-enable-prefix-caching" in plan(target=hybrid).argv()
    argv = plan(target=hybrid, engine=("--enable-prefix-caching",)).argv()
    assert "--enable-prefix-caching" in argv
    assert "--no-enable-prefix-caching" not in argv


def test_a_raw_share_counts_in_the_budget() -> None:
    memory = plan(engine=("--gpu-memory-utilization", ".5")).memory
    assert memory.device_bytes is not None
    assert memory.usable_bytes == memory.device_bytes // 2


def test_a_raw_number_that_is_none_is_left_to_the_engine() -> None:
    values = values_of(plan(engine=("--max-model-len", "auto")))
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


@pytest.mark.parametrize(
    ("machine", "inputs", "size"),
    [
        ("h100", {"engine": ("--quantization", "fp8")}, 8 * GIB),
        ("h100", {"engine": ("-q", "int8_per_channel_weight_only", "-tp", "2")}, 4 * GIB),
        ("h100", {"engine": ("--quantization", "bitsandbytes")}, None),
        ("h100", {"engine": ("--cpu-offload-gb", "10")}, 6 * GIB),
        ("h100", {"engine": ("--cpu-offload-gb", "40")}, 0),
        ("h100", {"engine": ("--dtype", "float32")}, 32 * GIB),
        ("gb10", {"recipe": make_recipe(quantization="fp8")}, 8 * GIB),
        (
            "gb10",
            {"recipe": make_recipe(quantization="fp8"), "engine": ("-q", "bitsandbytes")},
            None,
        ),
        ("h100", {"target": {"quantized": True}, "engine": ("-q", "fp8")}, 16 * GIB),
    ],
)
def test_the_weights_are_counted_as_they_are_loaded(
    machine: str, inputs: dict[str, Any], size: int | None
) -> None:
    assert plan(machine, **inputs).memory.items[0].size_bytes == size


@pytest.mark.parametrize("order", [("rtx-5090", "rtx-3090"), ("rtx-3090", "rtx-5090")])
def test_unequal_accelerators_are_planned_for_the_least_of_those_used(
    order: tuple[str, str],
) -> None:
    cards = tuple(load_host(name).accelerators[0] for name in order)
    host = load_host("rtx-5090").model_copy(update={"accelerators": cards})

    def plan_on(*words: str) -> LaunchPlan:
        return make_plan(host, TARGET, DRAFTER, None, make_options(engine=words))

    both, first = plan_on("-tp", "2"), plan_on()
    assert both.memory.device_bytes == load_host("rtx-3090").accelerators[0].memory_total_bytes
    assert both.capability == "8.6"
    assert first.memory.device_bytes == cards[0].memory_total_bytes
    assert first.capability == cards[0].compute_capability


def test_eager_saves_the_graphs() -> None:
    compiled, eager = plan("gb10", goal="throughput").memory, plan("gb10").memory
    sizes = [
        next(item.size_bytes for item in memory.items if item.name == "driver and graphs")
        for memory in (compiled, eager)
    ]
    assert sizes == [2336 << 20, 800 << 20]
    asked = plan("h100", engine=("--enforce-eager",))
    assert asked.memory.items[-1].size_bytes == 800 << 20
    assert asked.argv().count("--enforce-eager") == 1
    assert asked.notes == ()


def test_an_agent_on_a_hybrid_target_keeps_its_prefix_cache() -> None:
    """The drafter gives way to MTP or to nothing, unless the user named it."""
    heads = {"layers": HYBRID_LAYERS, "predicting_layers": 1}
    for target, method in ((heads, "mtp"), ({"layers": HYBRID_LAYERS}, None)):
        made = plan(goal="agent", target=target)
        assert (made.speculation.method.value if made.speculation else None) == method
        assert made.settings.prefix_caching is not None
        assert made.settings.prefix_caching.value
        assert sum("is not used" in note for note in made.notes) == 1
    for named in ({"drafter": DRAFTER.name}, {"method": "dflash"}, {"draft_length": 3}):
        made = make_plan(
            load_host("h100"),
            TARGET.model_copy(update=heads),
            DRAFTER,
            None,
            make_options(goal="agent", **named),
        )
        assert made.drafter == DRAFTER.name
        assert "agent-drafts" in warnings_of(made)
    kept = plan(goal="agent", target=heads, engine=("--no-enable-prefix-caching",))
    assert kept.drafter == DRAFTER.name
    assert "agent-drafts" not in warnings_of(kept)


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


def test_weights_that_do_not_fit_are_refused() -> None:
    made = plan("rtx-3090", target={"weights": Weights(total_bytes=40 * GIB)})
    assert refusals_of(made) == ["memory"]


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


def test_a_capacity_goal_packs_the_cache_when_it_is_short() -> None:
    assert values_of(plan(users=16, goal="capacity"))["--kv-cache-dtype"] == "fp8"
    values = values_of(plan("b200", users=52, goal="capacity"))
    assert values["--kv-cache-dtype"] == "turboquant_k8v4"
    assert values["--speculative-config.kv_cache_dtype"] == "bfloat16"
    assert values["--compilation-config"] == '{"cudagraph_mode": "PIECEWISE"}'
    assert "--kv-cache-dtype" not in values_of(plan(users=1, goal="capacity"))


def test_a_share_that_can_freeze_a_unified_machine_is_warned_about() -> None:
    share = "--gpu-memory-utilization"
    made = plan("gb10", engine=(share, "0.85"))
    assert warnings_of(made) == ["headroom"]
    assert made.warnings[0].hint.startswith(f"{share} 0.72")
    assert warnings_of(plan("gb10", engine=(share, "0.72"))) == []
    assert warnings_of(plan("h100", engine=(share, "0.95"))) == []


def test_turboquant_on_a_target_that_cannot_is_refused() -> None:
    packed = ("--kv-cache-dtype", "turboquant_k8v4")
    made = plan(target={"attention_sinks": True}, engine=packed)
    assert refusals_of(made) == ["turboquant"]


def test_turboquant_on_another_backend_is_refused() -> None:
    asked = ("--kv-cache-dtype", "turboquant_k8v4", "--attention-backend")
    made = plan(engine=(*asked, "flash_attn"))
    assert refusals_of(made) == ["turboquant"]
    assert refusals_of(plan(engine=(*asked, "TURBOQUANT"))) == []


def test_faults_of_the_pair_refuse_the_plan() -> None:
    assert refusals_of(plan(drafter={"hidden_size": 5376})) == ["hidden-size"]
    assert refusals_of(plan(drafter={"hidden_size": 5376}, method="plain")) == []
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
