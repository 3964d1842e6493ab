"""Runs an arm and reads what came out of it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.engine.arms.launch import run_engine_script

BATCH_SIZE = 8
MAX_TOKENS = 32


@dataclass(frozen=True, slots=True)
class Answer:
    """One generation: its tokens, the two leading candidates of each, accepted by step."""

    token_ids: list[int]
    leading: list[list[tuple[float, int]]]
    accepted_by_step: list[int]
    cached_tokens: int = 0

    @property
    def accepted(self) -> int:
        """Count the draft tokens that were accepted."""
        return sum(count * steps for count, steps in enumerate(self.accepted_by_step))

    @property
    def steps(self) -> int:
        """Count the verifying passes."""
        return sum(self.accepted_by_step)


@dataclass(frozen=True, slots=True)
class Arm:
    """All prompts answered one by one, and again in batches."""

    alone: list[Answer]
    batched: list[Answer]


def run_arm(
    target: Path,
    dtype: str,
    prompts: list[list[int]],
    scratch: Path,
    speculation: dict[str, Any] | None,
    *,
    prefix_caching: bool = False,
) -> Arm:
    """Start vLLM with or without drafts and let it answer every prompt.

    With prefix caching, answers in batches, which are of one prompt then, find what the answer
    before left in the cache.
    """
    engine: dict[str, Any] = {
        "model": str(target),
        "dtype": dtype,
        "enforce_eager": True,
        "max_model_len": 512,
        "max_num_seqs": BATCH_SIZE,
        "kv_cache_memory_bytes": 1 << 30,
        "enable_prefix_caching": prefix_caching,
    }
    if speculation is not None:
        engine["speculative_config"] = speculation
        engine["per_request_spec_decode_metrics"] = "summary"
    job = {
        "engine": engine,
        "prompts": prompts,
        "batch_size": 1 if prefix_caching else BATCH_SIZE,
        "max_tokens": MAX_TOKENS,
    }
    parts = run_engine_script("generate.py", job, scratch)
    return Arm(**{name: [Answer(**answer) for answer in part] for name, part in parts.items()})


def speculative_config(drafter: Path) -> dict[str, Any]:
    """Ask for DFlash with every draft token that the drafter's block gives."""
    block_size = json.loads((drafter / "config.json").read_text())["block_size"]
    return {
        "method": "dflash",
        "model": str(drafter),
        "num_speculative_tokens": block_size - 1,
    }
