"""What the planner says of a cache is what vLLM's own model classes say, rank by rank."""

import sys
from pathlib import Path
from typing import Any

import pytest

from slipstream.checkpoints import read_checkpoint
from slipstream.cli.planning.plan import find_host
from slipstream.engines.vllm import CPU_BLOCK_TOKENS
from slipstream.planning.memory.cache import (
    Ranks,
    sequence_bytes,
    state_bytes,
    token_bytes,
    widen_states,
)
from tests.engine.arms.launch import run_script
from tests.judge.checkpoints import write_checkpoint

pytestmark = [pytest.mark.engine, pytest.mark.beside]

ORACLE = Path(__file__).parents[1] / "judge" / "kv_spec.py"
CONTEXT = 8192
# Published configs by layout, and as many ranks as their heads, groups and experts allow. What
# vLLM's CPU build cannot construct (Kimi-Linear, Qwen3.5, sparse MLA, Nemotron 3) a CUDA build is
# asked.
CASES = {
    "Qwen/Qwen3-8B": 1,
    "meta-llama/Llama-3.3-70B-Instruct": 8,
    "deepseek-ai/DeepSeek-V3": 8,
    "google/gemma-3-27b-it": 8,
    "google/gemma-4-31B-it": 8,
    "openai/gpt-oss-20b": 2,
    "Qwen/Qwen3-Next-80B-A3B-Instruct": 8,
    "nvidia/NVIDIA-Nemotron-Nano-9B-v2": 4,
    "ai21labs/AI21-Jamba-Mini-1.7": 4,
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": 8,
    "mistralai/Mistral-7B-Instruct-v0.1": 2,
    "mistralai/Mistral-Small-3.2-24B-Instruct-2506": 8,
    "zai-org/GLM-4.5-Air": 8,
    "MiniMaxAI/MiniMax-M2.5": 8,
    "ibm-granite/granite-4.0-h-small": 8,
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {name: write_checkpoint(name, root) for name in CASES}


@pytest.fixture(scope="module")
def account(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Any:
    cases = {
        name: {"folder": str(folders[name]), "tensor_parallel": ranks, "context": CONTEXT}
        for name, ranks in CASES.items()
    }
    return run_script(str(ORACLE), {"cases": cases}, tmp_path_factory.mktemp("account"))["cases"]


@pytest.mark.parametrize("name", CASES)
def test_tokens_states_and_sequences_take_what_vllm_says(
    name: str, folders: dict[str, Path], account: Any
) -> None:
    found, ranks = account[name], Ranks(tensor=CASES[name])
    assert "error" not in found, found
    checkpoint = read_checkpoint(str(folders[name]))
    if find_host(None).processor.has_bfloat16:
        checkpoint = widen_states(checkpoint)
    states = [
        (state_bytes(part, 0, ranks.tensor) or 0) * part.count
        for part in checkpoint.layers or ()
        if part.kind == "recurrent"
    ]
    ours = sequence_bytes(
        checkpoint,
        context=CONTEXT,
        kv_dtype="auto",
        draft_length=0,
        in_flight_tokens=found["in_flight_tokens"],
        block_tokens=found["asked_block_tokens"],
        ranks=ranks,
    )
    sys.stdout.write(f"\n{name} on {ranks.tensor}: {found}, ours {ours} per sequence\n")
    assert token_bytes(checkpoint, "auto", ranks) == found["token_bytes"]
    assert sum(states) == found["state_bytes"]
    assert ours == pytest.approx(found["sequence_bytes"], rel=0.01)


def test_the_cases_have_states_windows_and_caches_that_every_rank_keeps(account: Any) -> None:
    """So that a change of the account cannot leave out a layout without a word."""
    kinds = {kind for case in account.values() for kind in case["layers"]}
    assert kinds >= {"FullAttentionSpec", "MLAAttentionSpec", "SlidingWindowSpec", "MambaSpec"}
    assert sum(bool(case["state_bytes"]) for case in account.values()) >= 4
    assert CPU_BLOCK_TOKENS in {case["asked_block_tokens"] for case in account.values()}
