"""The memory that a plan predicts is the memory that the real engine takes."""

import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from slipstream.checkpoints import read_checkpoint
from slipstream.engines.vllm import CPU_BLOCK_TOKENS, GPU_BLOCK_TOKENS
from slipstream.hardware import load_host, read_host, this_machine
from slipstream.planning import LaunchPlan, make_options, make_plan
from slipstream.planning.memory.cache import (
    TURBOQUANT_BITS,
    sequence_bytes,
    slot_bytes,
    state_bytes,
    token_bytes,
)
from slipstream.serving.supervision.engine_process import (
    choose_port,
    make_environment,
    run_group,
)
from tests.engine.arms.launch import run_script
from tests.engine.server import Server, wait_until_healthy
from tests.untrained_drafter import DrafterShape, drafter_config, make_untrained_drafter

pytestmark = [pytest.mark.engine, pytest.mark.beside]

ORACLE = Path(__file__).parents[1] / "judge" / "kv_spec.py"
MIB = 1 << 20
CONTEXT = 8192
BATCHED_TOKENS = 2048
DRAFT_LENGTH = 7
HEAD_SIZES = (128, 256)
TOKEN_BYTES = {"bfloat16": 25_344, "float32": 50_688}
# Which one a CPU is served in depends on its instructions; the other is for the week.
NATIVE = "bfloat16" if "amx_bf16" in Path("/proc/cpuinfo").read_text() else "float32"
DTYPES = [
    NATIVE,
    *(pytest.param(one, marks=pytest.mark.weekly) for one in TOKEN_BYTES if one != NATIVE),
]

DENSE: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "dtype": "bfloat16",
    "hidden_act": "silu",
    "hidden_size": 1024,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 32000,
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"},
}
SLIDING = DENSE | {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "sliding_window": 1024,
    "query_pre_attn_scalar": 128,
    "layer_types": [*["sliding_attention"] * 5, "full_attention"] * 2,
}
HYBRID = DENSE | {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "num_key_value_heads": 2,
    "head_dim": 256,
    "full_attention_interval": 4,
    "layer_types": [*["linear_attention"] * 3, "full_attention"] * 3,
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "mamba_ssm_dtype": "float32",
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
}
CONFIGS = {"dense": DENSE, "sliding": SLIDING, "hybrid": HYBRID}


@pytest.fixture(scope="module")
def drafter(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("memory") / "drafter"
    return make_untrained_drafter(target, folder, DrafterShape(layers=3))


@pytest.fixture(scope="module", params=DTYPES)
def dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def plan(target: Path, drafter: Path, dtype: str) -> LaunchPlan:
    """Plan the pair for this machine; without compiling, which takes two minutes of each start."""
    return make_plan(
        read_host(this_machine(os.environ, datetime.now(UTC))),
        read_checkpoint(str(target)),
        read_checkpoint(str(drafter)),
        None,
        make_options(engine=("--enforce-eager", "--dtype", dtype)),
    )


def find_number(plan: LaunchPlan, flag: str) -> int:
    decision = plan.find(flag)
    assert decision is not None, flag
    assert decision.value is not None, flag
    return int(decision.value)


@dataclass(frozen=True, slots=True)
class Running:
    """A server of the plan's own command and environment."""

    url: str
    group: int
    log: Path


@pytest.fixture(scope="module")
def running(plan: LaunchPlan, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    port, log = choose_port(None), tmp_path_factory.mktemp("server") / "engine.log"
    command = [sys.executable, *plan.argv()[1:], "--port", str(port)]
    with run_group(command, make_environment(plan, os.environ), log) as process:
        server = Server(url=f"http://127.0.0.1:{port}")
        wait_until_healthy(server, process, log)
        yield Running(server.url, process.pid, log)


def test_the_engine_keeps_as_many_bytes_of_a_token_as_planned(
    plan: LaunchPlan, running: Running, dtype: str
) -> None:
    """The planned cache holds every planned sequence; the engine keeps one block back."""
    told = re.search(r"KV cache size: ([\d,]+) tokens", running.log.read_text())
    assert told is not None
    tokens = int(told[1].replace(",", ""))
    planned, a_token = find_number(plan, "--kv-cache-memory-bytes"), plan.memory.kv_bytes_per_token
    sys.stdout.write(f"\n{dtype}: {planned} bytes hold {tokens} tokens of {a_token} bytes\n")
    assert a_token == TOKEN_BYTES[dtype]
    blocks = planned // (a_token * CPU_BLOCK_TOKENS)
    assert tokens == blocks * CPU_BLOCK_TOKENS
    sequences, context = find_number(plan, "--max-num-seqs"), find_number(plan, "--max-model-len")
    assert tokens - CPU_BLOCK_TOKENS >= sequences * context


def write_configs(folder: Path) -> dict[str, Path]:
    """Write each configuration and a drafter's for it, without weights."""
    for name, config in CONFIGS.items():
        drafted = drafter_config(config, DrafterShape(layers=2))
        for path, content in ((folder / name, config), (folder / f"{name}-drafter", drafted)):
            path.mkdir()
            (path / "config.json").write_text(json.dumps(content))
    return {name: folder / name for name in CONFIGS}


@pytest.fixture(scope="module")
def synthetic(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_configs(tmp_path_factory.mktemp("configs"))


@pytest.fixture(scope="module")
def account(synthetic: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return vLLM's account of every configuration, as on a CPU and as on a GPU."""
    cases = {}
    for name, folder in synthetic.items():
        case = {"folder": str(folder), "tensor_parallel": 1, "context": CONTEXT}
        engine: dict[str, Any] = {"max_num_batched_tokens": BATCHED_TOKENS}
        if name == "hybrid":
            # Left to itself, vLLM takes float32 on a CPU with bfloat16 instructions and bfloat16
            # on others, whatever Qwen3-Next's config says (platforms/cpu.py).
            engine["mamba_ssm_cache_dtype"] = HYBRID["mamba_ssm_dtype"]
        speculative = {
            "method": "dflash",
            "model": f"{folder}-drafter",
            "num_speculative_tokens": DRAFT_LENGTH,
        }
        cases[name] = case | {
            "engine": engine | {"speculative_config": speculative},
            "async_scheduling": False,
        }
        # What a GPU differs in, so far as sizes go: smaller blocks, and a step scheduled ahead.
        cases[f"{name} on a GPU"] = case | {
            "engine": engine | {"block_size": GPU_BLOCK_TOKENS},
            "async_scheduling": True,
        }
    return run_script(str(ORACLE), {"cases": cases}, tmp_path_factory.mktemp("account"))["cases"]


@pytest.fixture(scope="module")
def turboquant(synthetic: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return vLLM's slots by variant and head size, and the layers that it does not compress."""
    models = {name: str(synthetic[name]) for name in ("dense", "hybrid")}
    job = {"models": models, "head_sizes": HEAD_SIZES}
    return run_script("turboquant_slots.py", job, tmp_path_factory.mktemp("slots"))


@pytest.mark.parametrize("name", CONFIGS)
def test_without_weights_token_and_state_agree_with_vllms_specs_to_the_byte(
    name: str, synthetic: dict[str, Path], account: Any
) -> None:
    checkpoint = read_checkpoint(str(synthetic[name]))
    assert checkpoint.layers is not None
    states = [
        (state_bytes(part, DRAFT_LENGTH) or 0) * part.count
        for part in checkpoint.layers
        if part.kind == "recurrent"
    ]
    found = account[name]
    assert "error" not in found, found
    assert token_bytes(checkpoint, "auto") == found["token_bytes"]
    assert sum(states) == found["state_bytes"]
    assert bool(states) == (name == "hybrid")


@pytest.mark.parametrize("name", CONFIGS)
def test_without_weights_a_sequence_takes_what_vllm_would_reserve_for_it(
    name: str, synthetic: dict[str, Path], account: Any
) -> None:
    found = account[name]
    ours = sequence_bytes(
        read_checkpoint(str(synthetic[name])),
        context=CONTEXT,
        kv_dtype="auto",
        draft_length=DRAFT_LENGTH,
        in_flight_tokens=BATCHED_TOKENS,
        block_tokens=found["asked_block_tokens"],
    )
    sys.stdout.write(f"\n{name}: ours {ours}, vLLM's {found['sequence_bytes']}\n")
    assert ours == found["sequence_bytes"]


@pytest.mark.parametrize("name", ["dense", "sliding"])
def test_on_a_gpu_a_window_is_planned_with_the_step_that_is_scheduled_ahead(
    name: str, synthetic: dict[str, Path], account: Any
) -> None:
    words = ("--max-num-batched-tokens", str(BATCHED_TOKENS))
    options = make_options(method="plain", context=CONTEXT, engine=words)
    target = read_checkpoint(str(synthetic[name]))
    planned = make_plan(load_host("h100"), target, None, None, options).memory.bytes_per_sequence
    found = account[f"{name} on a GPU"]
    sys.stdout.write(f"\n{name} on a GPU: ours {planned}, vLLM's {found['sequence_bytes']}\n")
    # The CPU's backend has no windows in blocks of 16: its next size is a block more at most.
    assert planned == pytest.approx(found["sequence_bytes"], rel=0.005)


@pytest.mark.parametrize("size", HEAD_SIZES)
def test_a_turboquant_slot_is_as_large_as_vllms(size: int, turboquant: Any) -> None:
    theirs = {variant: sizes[str(size)] for variant, sizes in turboquant["slots"].items()}
    sys.stdout.write(f"\nTurboQuant slots for heads of {size}: {theirs}\n")
    assert {variant: slot_bytes(size, variant) for variant in TURBOQUANT_BITS} == theirs


@pytest.mark.parametrize(("name", "layers", "plain"), [("dense", 12, 4), ("hybrid", 3, 0)])
def test_turboquant_leaves_as_many_layers_plain_as_vllm_does(
    name: str, layers: int, plain: int, synthetic: dict[str, Path], turboquant: Any
) -> None:
    heads, size = CONFIGS[name]["num_key_value_heads"], CONFIGS[name]["head_dim"]
    slot = turboquant["slots"]["turboquant_k8v4"][str(size)]
    expected = heads * (slot * (layers - plain) + 2 * size * 2 * plain)
    assert turboquant["plain_layers"][name] == plain
    assert token_bytes(read_checkpoint(str(synthetic[name])), "turboquant_k8v4") == expected


def read_resident_bytes(group: int) -> dict[str, int]:
    """Read the memory of every process of a group, by command and number, and of their libraries.

    The group's leader is our warden and not the engine's. A library counts once and whole, whoever
    else has it loaded: of the kernel's proportional shares, the tests' own process would have a
    part.
    """
    shares: dict[str, int] = {}
    libraries: dict[str, int] = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            fields = (process / "stat").read_text().rpartition(")")[2].split()
            if int(fields[2]) != group or int(process.name) == group:
                continue
            name = (process / "comm").read_text().strip()
            mapped = (process / "smaps").read_text()
        except OSError:
            continue
        own, files = read_mappings(mapped)
        shares[f"{name} {process.name}"] = own
        for file, size in files.items():
            libraries[file] = max(size, libraries.get(file, 0))
    return {**shares, "libraries": sum(libraries.values())}


def read_mappings(text: str) -> tuple[int, dict[str, int]]:
    """Read the bytes that are a process's own, and those of each file that are as on disk."""
    own, files, file = 0, dict[str, int](), ""
    for line in text.splitlines():
        name, *values = line.split()
        if not name.endswith(":"):
            file = values[4] if len(values) > 4 and values[4].startswith("/") else ""
        elif name == "Rss:":
            resident = int(values[0]) * 1024
        elif name == "Pss:":
            share = int(values[0]) * 1024
        elif name == "Anonymous:":
            changed = int(values[0]) * 1024
            if file and not file.startswith(("/dev/shm", "/memfd")):
                own += changed
                files[file] = files.get(file, 0) + resident - changed
            else:
                own += share
    return own, files


def test_a_server_of_a_plan_is_as_large_as_its_budget_says(
    plan: LaunchPlan, running: Running, dtype: str
) -> None:
    """The cache is written with zeros at the start, so it is resident before the first request.

    oneDNN packs the weights of every layer in place of the loaded ones; only of the head both
    copies stay (vocab_parallel_embedding.py, remove_weight=False). Of the libraries, the kernel
    maps whatever is near a page in use and was read lately, 217 to 354 MiB: so the budget is held
    against the server's own memory, with room for libraries.
    """
    longer_than_a_step = find_number(plan, "--max-num-batched-tokens") + 512
    answer = httpx.post(
        f"{running.url}/v1/completions",
        json={"prompt": [5] * longer_than_a_step, "max_tokens": 16},
        timeout=300,
    )
    shares = read_resident_bytes(running.group)
    assert answer.status_code == 200, answer.text
    parts = {item.name: item.size_bytes or 0 for item in plan.memory.items}
    parts["cache"] = plan.memory.kv_pool_bytes or 0
    measured, predicted = sum(shares.values()), sum(parts.values())
    own = measured - shares["libraries"]
    for title, sizes in (("measured", shares), ("predicted", parts)):
        listed = ", ".join(f"{name} {size / MIB:.0f}" for name, size in sizes.items())
        sys.stdout.write(f"\n{title} MiB: {sum(sizes.values()) / MIB:.0f} ({listed})")
    sys.stdout.write(
        f"\n{dtype}: predicted / measured: {predicted / measured:.3f}, "
        f"{predicted / own:.3f} without libraries\n"
    )
    assert plan.memory.unknown == ()
    assert len(shares) >= 4
    assert 0.98 * own <= predicted <= 1.12 * own
