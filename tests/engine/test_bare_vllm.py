"""Wrong pairs: named by slipstream before launch, noticed late or never by vLLM alone.

Each is a good drafter with one thing broken. vLLM's config step passes every one of them. Our side
of it is in tests/unit/checkpoints; what vLLM does changes with its version only.
"""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from slipstream.checkpoints import read_checkpoint
from slipstream.checkpoints.pairing import pair
from tests.engine.arms.launch import run_engine_script

pytestmark = [pytest.mark.engine, pytest.mark.weekly]

BLOCK_DRAFTS = 7
MAX_TOKENS = 8
NAMES_OF_FAULTS = ("block", "vocab", "layer")
Config = dict[str, Any]


class Attempt(NamedTuple):
    """What bare vLLM did: the steps it passed, what ended it, what it answered."""

    passed: list[str]
    error: str | None
    token_ids: list[int] | None


def list_unknown_layer(config: Config) -> None:
    config["dflash_config"]["target_layer_ids"][-1] = 40


def mask_outside_the_vocabulary(config: Config) -> None:
    config["dflash_config"]["mask_token_id"] = config["vocab_size"] + 1


def leave_alone(config: Config) -> None:
    """Break nothing: the draft length that is asked for is the fault."""


def shrink_the_vocabulary(config: Config) -> None:
    config["vocab_size"] = 32000


def swap_two_layers(config: Config) -> None:
    ids = config["dflash_config"]["target_layer_ids"]
    ids[0], ids[1] = ids[1], ids[0]


def break_drafter(good: Path, folder: Path, change: Callable[[Config], None]) -> Path:
    shutil.copytree(good, folder)
    config = json.loads((good / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def list_refusals(target: Path, drafter: Path, draft_length: int) -> list[str]:
    pairing = pair(
        read_checkpoint(str(target)), read_checkpoint(str(drafter)), draft_length=draft_length
    )
    return [fault.code for fault in pairing.faults if fault.verdict == "refuse"]


def try_bare(
    target: Path, drafter: Path, draft_length: int, prompt: list[int], scratch: Path
) -> Attempt:
    engine = {
        "model": str(target),
        "dtype": "float32",
        "enforce_eager": True,
        "max_model_len": 512,
        "max_num_seqs": 4,
        "kv_cache_memory_bytes": 256 << 20,
        "speculative_config": {
            "method": "dflash",
            "model": str(drafter),
            "num_speculative_tokens": draft_length,
        },
    }
    job = {"engine": engine, "prompt": prompt, "max_tokens": MAX_TOKENS}
    return Attempt(**run_engine_script("try_pair.py", job, scratch))


@pytest.mark.parametrize(
    ("change", "refusal", "error"),
    [
        (list_unknown_layer, "layer-range", "ValueError"),
        (mask_outside_the_vocabulary, "mask-outside", "IndexError"),
    ],
)
def test_vllm_starts_and_dies_at_the_first_request(
    change: Callable[[Config], None],
    refusal: str,
    error: str,
    target: Path,
    drafters: dict[str, Path],
    prompts: list[list[int]],
    tmp_path: Path,
) -> None:
    drafter = break_drafter(drafters["echo"], tmp_path / "drafter", change)
    assert list_refusals(target, drafter, BLOCK_DRAFTS) == [refusal]
    bare = try_bare(target, drafter, BLOCK_DRAFTS, prompts[0], tmp_path)
    sys.stdout.write(f"\n{refusal}: bare vLLM passed {bare.passed}, then {bare.error}\n")
    assert bare.passed == ["config", "start"]
    assert bare.error is not None
    assert bare.error.startswith(error)


@pytest.mark.parametrize(
    ("change", "draft_length", "refusal"),
    [
        (leave_alone, BLOCK_DRAFTS + 5, "draft-length"),
        (shrink_the_vocabulary, BLOCK_DRAFTS, "vocabulary-size"),
        (swap_two_layers, BLOCK_DRAFTS, "layer-order"),
    ],
)
def test_vllm_starts_and_answers_without_a_word(
    change: Callable[[Config], None],
    draft_length: int,
    refusal: str,
    target: Path,
    drafters: dict[str, Path],
    prompts: list[list[int]],
    tmp_path: Path,
) -> None:
    drafter = break_drafter(drafters["echo"], tmp_path / "drafter", change)
    assert list_refusals(target, drafter, draft_length) == [refusal]
    bare = try_bare(target, drafter, draft_length, prompts[0], tmp_path)
    sys.stdout.write(f"\n{refusal}: bare vLLM passed {bare.passed}, answer {bare.token_ids}\n")
    assert bare.error is None
    assert bare.passed == ["config", "start", "request"]
    assert bare.token_ids is not None
    assert len(bare.token_ids) == MAX_TOKENS
    log = (tmp_path / "try_pair.log").read_text().lower().splitlines()
    warnings = [line for line in log if "warning" in line or "error" in line]
    assert any("speculative decoding" in line for line in warnings)
    assert [line for line in warnings for word in NAMES_OF_FAULTS if word in line] == []


def test_slipstream_has_nothing_against_the_pair_that_was_broken(
    target: Path, drafters: dict[str, Path]
) -> None:
    assert list_refusals(target, drafters["echo"], BLOCK_DRAFTS) == []
