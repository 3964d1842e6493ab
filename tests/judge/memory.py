"""Bytes per token and rank of published architectures: ours beside those of a build of vLLM."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.planning.memory.cache import Ranks, token_bytes
from tests.judge.checkpoints import read_known, write_checkpoint

ORACLE = Path(__file__).parent / "kv_spec.py"
# By layout, and as many ranks as their heads, groups and experts allow.
RANKS = {
    "Qwen/Qwen3-8B": 1,
    "meta-llama/Llama-3.3-70B-Instruct": 8,
    "deepseek-ai/DeepSeek-V3": 8,
    "moonshotai/Kimi-Linear-48B-A3B-Instruct": 8,
    "google/gemma-3-27b-it": 8,
    "google/gemma-4-31B-it": 8,
    "openai/gpt-oss-20b": 2,
    "nvidia/NVIDIA-Nemotron-Nano-9B-v2": 4,
    "ai21labs/AI21-Jamba-Mini-1.7": 4,
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": 8,
    "mistralai/Mistral-Small-3.2-24B-Instruct-2506": 8,
    "zai-org/GLM-4.5-Air": 8,
    "MiniMaxAI/MiniMax-M2.5": 8,
    "ibm-granite/granite-4.0-h-small": 8,
}
MOST_DIFFERENCE = 0.01


@dataclass(frozen=True, slots=True)
class Comparison:
    """One architecture on so many ranks; an error is what the build answered instead."""

    name: str
    ranks: int
    ours: int | None
    theirs: int | None
    error: str | None = None

    @property
    def agrees(self) -> bool:
        if not self.ours or not self.theirs:
            return False
        return abs(self.ours - self.theirs) <= MOST_DIFFERENCE * self.theirs

    def __str__(self) -> str:
        found = self.error or f"vLLM {self.theirs}, ours {self.ours}"
        return f"{self.name} on {self.ranks}: {found} bytes per token and rank"


def write_memory_job(folder: Path) -> str:
    cases = {
        name: {"folder": str(write_checkpoint(name, folder)), "tensor_parallel": ranks}
        for name, ranks in RANKS.items()
    }
    return json.dumps({"cases": cases})


def compare_memory(account: dict[str, Any], folder: Path) -> Iterator[Comparison]:
    """Read what kv_spec.py answered."""
    for name, ranks in RANKS.items():
        found = account["cases"][name]
        ours = token_bytes(read_known(name, folder), "auto", Ranks(tensor=ranks))
        yield Comparison(name, ranks, ours, found.get("token_bytes"), found.get("error"))
