"""The plan as a whole: precedence, budget, and what argv becomes."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from slipstream.checkpoints.checkpoint import Quantization, Weights
from slipstream.hardware import load_host
from slipstream.planning import LaunchPlan, make_options, make_plan
from slipstream.recipes.recipe import Evidence, Obsolete, Recipe
from tests.unit.planning.pieces import DRAFTER, GIB, HYBRID_LAYERS, TARGET, make_recipe

SPECULATION = "--speculative-config"
LENGTH = f"{SPECULATION}.num_speculative_tokens"
HYBRID = {"layers": HYBRID_LAYERS}
SMALL = {"weights": Weights(total_bytes=GIB)}
FP8 = make_recipe(quantization="fp8")
F32 = {"weights": Weights(total_bytes=32 * GIB, bytes_by_dtype={"F32": 32 * GIB})}
TABLES = 2 * 2 * 4096 * 151936
HALVED = (16 * GIB + TABLES) // 2
STORED_FP8 = {"quantized": True, "quantization": Quantization(scheme="fp8", method="fp8")}


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


def draft_part(**changes: Any) -> dict[str, Any]:
    assert DRAFTER.draft is not None
    return {"draft": DRAFTER.draft.model_copy(update=changes)}


def test_a_good_pair_is_planned_without_a_fault() -> None:
    made = plan()
    assert (made.refusals, made.warnings) == ((), ())
    assert values_of(made) == {
        "--model": "Qwen/Qwen3-8B",
        "--served-model-name": "Qwen3-8B Qwen/Qwen3-8B",
        "--tool-call-parser": "qwen3_json",
        "--enable-auto-tool-choice": None,
        "--reasoning-parser": "qwen3",
        "--host": "127.0.0.1",
        "--max-model-len": "32768",
        "--max-num-seqs": "32",
        "--max-num-batched-tokens": "8192",
        "--gpu-memory-utilization": "0.92",
        "--distributed-executor-backend": "mp",
        "--load-format": "safetensors",
        f"{SPECULATION}.method": "dflash",
        f"{SPECULATION}.model": "z-lab/Qwen3-8B-DFlash-b16",
        LENGTH: "15",
        f"{SPECULATION}.attention_backend": "FLASH_ATTN",
        f"{SPECULATION}.disable_eagle_block_drop": "true",
        f"{SPECULATION}.draft_sample_method": "greedy",
    }


def test_the_speculative_settings_become_one_argument() -> None:
    argv = plan().argv()
    assert argv[:3] == ["python", "-m", "vllm.entrypoints.openai.api_server"]
    assert json.loads(argv[argv.index(SPECULATION) + 1]) == {
        "method": "dflash",
        "model": "z-lab/Qwen3-8B-DFlash-b16",
        "num_speculative_tokens": 15,
        "attention_backend": "FLASH_ATTN",
        "disable_eagle_block_drop": True,
        "draft_sample_method": "greedy",
    }
    assert SPECULATION not in plan(method="plain").argv()
    # One of another method replaces ours whole.
    argv = plan(engine=(SPECULATION, '{"method": "ngram"}')).argv()
    assert argv.count(SPECULATION) == 1
    assert argv[argv.index(SPECULATION) + 1] == '{"method": "ngram"}'


ADVISED = make_recipe(draft_length=7, sequences=16, kv_dtype="fp8", quantization="fp8")


@pytest.mark.parametrize(
    ("machine", "inputs", "values"),
    [
        ("h100", {"drafter": draft_part(family="dflash2")}, {f"{SPECULATION}.method": "dflash"}),
        ("h100", {"target": {"revision": "abc"}}, {"--revision": "abc"}),
        ("h100", {"drafter": {"revision": "def"}}, {f"{SPECULATION}.revision": "def"}),
        ("h100", {"engine": ("--load-format", "dummy")}, {"--load-format": "dummy"}),
        ("h100", {"engine": ("--port=9000",)}, {"--port": "9000"}),
        ("h100", {"engine": ("--enable-log-requests",)}, {"--enable-log-requests": None}),
        ("h100", {"engine": ("--max-model-len", "auto")}, {"--max-model-len": "auto"}),
        ("h100", {"engine": ("--max-num-seqs", "3000")}, {"--max-num-batched-tokens": "48000"}),
        (
            "h100",
            {"engine": (f"{SPECULATION}.attention_backend", "TRITON_ATTN")},
            {f"{SPECULATION}.attention_backend": "TRITON_ATTN", LENGTH: "15"},
        ),
        (
            "gb10",
            {"recipe": ADVISED},
            {
                LENGTH: "7",
                "--max-num-seqs": "16",
                "--kv-cache-dtype": "fp8",
                f"{SPECULATION}.kv_cache_dtype": "bfloat16",
                "--quantization": "fp8",
            },
        ),
        ("h100", {"goal": "capacity", "users": 16}, {"--kv-cache-dtype": "fp8"}),
        (
            "a100-80",
            {"goal": "capacity", "users": 16},
            {
                "--kv-cache-dtype": "turboquant_k8v4",
                f"{SPECULATION}.kv_cache_dtype": "bfloat16",
                "--compilation-config": '{"cudagraph_mode": "PIECEWISE"}',
            },
        ),
    ],
)
def test_a_value_of_user_recipe_or_checkpoint_reaches_the_engine(
    machine: str, inputs: dict[str, Any], values: dict[str, str]
) -> None:
    assert values.items() <= values_of(plan(machine, **inputs)).items()


def test_what_a_cache_chosen_for_capacity_does_to_the_text_is_known_or_to_be_measured() -> None:
    wanted: dict[str, Any] = {"goal": "capacity", "users": 16}
    unknown = plan("a100-80", **wanted)
    command = f"slipstream verify {TARGET.name} --cache -- --kv-cache-dtype turboquant_k8v4"
    assert [note for note in unknown.notes if command in note]
    measured: dict[str, Any] = {
        "workload": "prose",
        "hardware": "one A100",
        "engine_version": "0.32.0",
    }
    evidence = [
        Evidence(by="somebody", source="a page", kv_dtype=kv_dtype, lost_share=share, **measured)
        for kv_dtype, share in (
            ("turboquant_k8v4", 0.017),
            ("fp8", 0.004),
            ("turboquant_k8v4", None),
        )
    ]
    known = plan("a100-80", recipe=make_recipe(evidence=tuple(evidence)), **wanted)
    (note,) = [note for note in known.notes if note.startswith("with a cache in ")]
    assert "turboquant_k8v4, 1.7 of 100 tokens" in note
    assert "somebody, one A100: a page" in note
    assert not [note for note in known.notes if "--cache --" in note]
    chosen = plan("a100-80", engine=("--kv-cache-dtype", "turboquant_k8v4"))
    assert not [note for note in chosen.notes if "--cache --" in note]


@pytest.mark.parametrize(
    ("machine", "inputs", "flag"),
    [
        ("h100", {"goal": "capacity", "users": 1}, "--kv-cache-dtype"),
        ("gb10", {"recipe": FP8, "target": STORED_FP8}, "--quantization"),
        ("h100", {"target": HYBRID, "engine": ("--enable-prefix-caching",)}, "--no-enable-prefix"),
        ("cpu-server", {"target": SMALL}, "--gpu-memory-utilization"),
        ("cpu-server", {"target": SMALL}, "--attention-backend"),
    ],
)
def test_what_does_not_apply_is_not_set(machine: str, inputs: dict[str, Any], flag: str) -> None:
    assert [word for word in plan(machine, **inputs).argv() if word.startswith(flag)] == []


def test_what_is_obsolete_in_this_machines_recipe_is_said_unless_it_is_used() -> None:
    flash = Obsolete(what="flash", why="split", argument="--attention-backend flash_attn")
    recipe = make_recipe(obsolete=(Obsolete(what="a patch", why="upstream"), flash))
    (note,) = plan("gb10", recipe=recipe).notes
    assert "a patch; flash" in note
    asked = ("--attention-backend", "FLASH_ATTN")
    (note,) = plan("gb10", recipe=recipe, engine=asked).notes
    assert "flash" not in note
    assert not any("recipe" in note for note in plan("h100", recipe=recipe).notes)


def test_the_budget_adds_up() -> None:
    memory = plan().memory
    sizes = {item.name: item.size_bytes or 0 for item in memory.items}
    assert (sizes["target weights"], sizes["drafter weights"]) == (16 * GIB, 2 * GIB)
    assert memory.kv_bytes_per_token == (36 + 5) * 8 * 512
    assert memory.bytes_per_sequence == 32768 * (36 + 5) * 8 * 512
    assert memory.usable_bytes is not None
    assert memory.kv_pool_bytes == memory.usable_bytes - sum(sizes.values())
    assert memory.sequences_that_fit == memory.kv_pool_bytes // memory.bytes_per_sequence
    assert memory.unknown == ()


def test_given_figures_count_in_the_budget() -> None:
    words = ("--max-model-len=1024", "--kv-cache-dtype", "fp8", "--gpu-memory-utilization", ".5")
    memory = plan(engine=words).memory
    assert memory.kv_bytes_per_token == (36 + 5) * 8 * 256
    assert memory.bytes_per_sequence == 1024 * (36 + 5) * 8 * 256
    assert memory.device_bytes is not None
    assert memory.usable_bytes == memory.device_bytes // 2


@pytest.mark.parametrize(
    ("machine", "inputs", "size"),
    [
        # Embedding and head stay as they are.
        ("h100", {"engine": ("--quantization", "fp8")}, HALVED),
        ("h100", {"engine": ("-q", "int8_per_channel_weight_only", "-tp", "2")}, HALVED // 2),
        ("h100", {"engine": ("-q", "bitsandbytes")}, TABLES + (16 * GIB - TABLES) * 9 // 32),
        ("h100", {"engine": ("--quantization", "torchao")}, None),
        ("h100", {"engine": ("--cpu-offload-gb", "10")}, 6 * GIB),
        ("h100", {"engine": ("--cpu-offload-gb", "40")}, 0),
        ("h100", {"engine": ("--dtype", "float32")}, 32 * GIB),
        ("h100", {"target": F32}, 16 * GIB),
        ("h100", {"target": F32, "engine": ("--dtype", "float32")}, 32 * GIB),
        ("gb10", {"recipe": FP8}, HALVED),
        ("gb10", {"recipe": FP8, "engine": ("-q", "torchao")}, None),
        ("cpu-server", {"recipe": FP8}, 16 * GIB),
        ("h100", {"target": {"quantized": True}, "engine": ("-q", "fp8")}, 16 * GIB),
        ("gb10-linked-1", {"recipe": make_recipe(nodes=2)}, 8 * GIB),
    ],
)
def test_the_weights_are_counted_as_they_are_loaded(
    machine: str, inputs: dict[str, Any], size: int | None
) -> None:
    assert plan(machine, **inputs).memory.items[0].size_bytes == size


def test_shards_share_the_cache() -> None:
    alone = plan("gb10-linked-1", recipe=make_recipe()).memory.bytes_per_sequence
    shared = plan("gb10-linked-1", recipe=make_recipe(nodes=2)).memory.bytes_per_sequence
    assert alone is not None
    assert shared == alone // 2


@pytest.mark.parametrize("order", [("rtx-5090", "rtx-3090"), ("rtx-3090", "rtx-5090")])
def test_unequal_accelerators_are_planned_for_the_least_of_those_used(
    order: tuple[str, str],
) -> None:
    cards = tuple(load_host(name).accelerators[0] for name in order)
    host = load_host("rtx-5090").model_copy(update={"accelerators": cards})
    both, first = (
        make_plan(host, TARGET, DRAFTER, None, make_options(engine=words))
        for words in (("-tp", "2"), ())
    )
    smaller = load_host("rtx-3090").accelerators[0]
    assert (both.memory.device_bytes, both.capability) == (smaller.memory_total_bytes, "8.6")
    assert first.memory.device_bytes == cards[0].memory_total_bytes
    assert first.capability == cards[0].compute_capability


@pytest.mark.parametrize(
    ("machine", "inputs", "size"),
    [
        ("gb10", {"goal": "throughput"}, 2336 << 20),
        ("gb10", {}, 800 << 20),
        ("h100", {"engine": ("--enforce-eager",)}, 800 << 20),
    ],
)
def test_eager_saves_the_graphs(machine: str, inputs: dict[str, Any], size: int) -> None:
    made = plan(machine, **inputs)
    assert made.memory.items[-1].size_bytes == size
    assert made.argv().count("--enforce-eager") == (size == 800 << 20)
    assert len(made.notes) == (size != 800 << 20)


def test_a_cpu_sizes_its_cache_in_bytes() -> None:
    made = plan("cpu-server", target=SMALL)
    memory = made.memory
    assert memory.bytes_per_sequence is not None
    assert memory.kv_bytes_per_token is not None
    whole = 4 * memory.bytes_per_sequence + 128 * memory.kv_bytes_per_token
    assert values_of(made)["--kv-cache-memory-bytes"] == str(whole)
    assert memory.sequences_that_fit == 4


HEADS = HYBRID | {"predicting_layers": 1}


@pytest.mark.parametrize(
    ("target", "inputs", "method", "cached"),
    [
        (HEADS, {}, "mtp", True),
        (HYBRID, {}, None, True),
        (HYBRID, {"engine": ("--enable-prefix-caching",)}, None, True),
        ({"predicting_layers": 1}, {}, "dflash", True),
        (HEADS, {"drafter_name": DRAFTER.name}, "dflash", False),
        (HEADS, {"method": "dflash"}, "dflash", False),
        (HEADS, {"draft_length": 3}, "dflash", False),
        (HEADS, {"engine": ("--spec-tokens", "3")}, "dflash", False),
        (HEADS, {"engine": ("--no-enable-prefix-caching",)}, "dflash", False),
    ],
)
def test_an_agent_keeps_its_prefix_cache_unless_the_user_named_a_drafter(
    target: dict[str, Any], inputs: dict[str, Any], method: str | None, cached: bool
) -> None:
    named = {"drafter": inputs.pop("drafter_name")} if "drafter_name" in inputs else {}
    options = make_options(goal="agent", **named, **inputs)
    pair = (TARGET.model_copy(update=target), DRAFTER)
    made = make_plan(load_host("h100"), *pair, make_recipe(), options)
    assert (made.speculation.method.value if made.speculation else None) == method
    caching = made.settings.prefix_caching
    assert caching is not None
    assert caching.value is cached
    dropped = [note for note in made.notes if note.startswith(f"{DRAFTER.name} is not used")]
    assert len(dropped) == (method != "dflash")
    warned = "agent-drafts" in [fault.code for fault in made.warnings]
    assert warned is (not cached and "--no-enable-prefix-caching" not in inputs.get("engine", ()))


@pytest.mark.parametrize(
    ("inputs", "shortened"), [({}, True), ({"context": 131072}, False), ({"users": 1}, True)]
)
def test_an_agents_context_is_halved_until_two_conversations_fit(
    inputs: dict[str, Any], shortened: bool
) -> None:
    target = {"context": 262144, "weights": Weights(total_bytes=60 * GIB)}
    context = plan(goal="agent", method="plain", target=target, **inputs).settings.context
    assert context is not None
    assert (context.value < 131072, context.source == "hardware") == (shortened, shortened)


@given(
    machine=some.sampled_from(["h100", "gb10", "rtx-3090", "cpu-server", "jetson-thor", "b300"]),
    users=some.none() | some.integers(1, 256),
    context=some.none() | some.integers(256, 40960),
    drafted=some.none() | some.integers(1, 15),
    goal=some.sampled_from(["latency", "throughput", "capacity", "agent"]),
)
def test_every_plan_keeps_the_engines_invariants(
    machine: str, users: int | None, context: int | None, drafted: int | None, goal: str
) -> None:
    made = plan(machine, users=users, context=context, draft_length=drafted, goal=goal)
    values = values_of(made)
    drafts = int(values[LENGTH] or 0)
    sequences = int(values["--max-num-seqs"] or 0)
    assert int(values["--max-num-batched-tokens"] or 0) >= sequences * (drafts + 1)
    assert int(values["--max-model-len"] or 0) <= 40960
    assert LaunchPlan.model_validate_json(made.to_json()) == made
    assert all(decision.because for decision in (*made.decisions, *made.variables))
