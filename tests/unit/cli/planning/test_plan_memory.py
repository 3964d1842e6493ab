"""The memory that `plan` counts with, for what a user types."""

import os

import pytest

from slipstream.cli.main import run
from slipstream.planning import LaunchPlan
from slipstream.planning.plan import MemoryItem

Capture = pytest.CaptureFixture[str]
QWEN, GEMMA = "Qwen/Qwen3-8B", "google/gemma-4-31B-it"


def plan(capsys: Capture, *words: str, code: int = 0) -> LaunchPlan:
    assert run(["plan", "--json", *words], os.environ) == code
    return LaunchPlan.model_validate_json(capsys.readouterr().out)


def weigh(capsys: Capture, *words: str) -> MemoryItem:
    return plan(capsys, *words).memory.items[0]


@pytest.mark.parametrize(
    ("words", "share"),
    [
        (("--quantization", "fp8"), (0.5, 0.6)),
        (("-q", "bitsandbytes"), (0.28, 0.42)),
        (("--cpu-offload-gb", "4"), (0.7, 0.75)),
        (("--dtype", "float32"), (2.0, 2.0)),
    ],
)
def test_what_the_engine_is_told_of_weights_is_counted(
    words: tuple[str, ...], share: tuple[float, float], capsys: Capture
) -> None:
    published = weigh(capsys, QWEN, "--host", "h100")
    changed = weigh(capsys, QWEN, "--host", "h100", "--", *words)
    assert published.because == "as published"
    assert changed.because != "as published"
    assert published.size_bytes is not None
    assert changed.size_bytes is not None
    low, high = share
    assert low <= changed.size_bytes / published.size_bytes <= high


def test_the_users_quantization_replaces_that_of_a_recipe(capsys: Capture) -> None:
    advised = weigh(capsys, GEMMA, "--host", "gb10")
    smaller = weigh(capsys, GEMMA, "--host", "gb10", "--", "-q", "bitsandbytes")
    assert (smaller.size_bytes or 0) < 0.7 * (advised.size_bytes or 0)


@pytest.mark.parametrize("target", ["Qwen/Qwen3-32B", "meta-llama/Llama-3.3-70B-Instruct"])
def test_a_drafter_of_unknown_size_leaves_the_check_of_memory_on(
    target: str, capsys: Capture
) -> None:
    """The catalogue has no size of their EAGLE-3 drafters."""
    memory = plan(capsys, target, "--host", "h100x4", "--method", "eagle3").memory
    (drafter,) = (item for item in memory.items if item.name == "drafter weights")
    assert drafter.least_bytes is not None
    assert drafter.size_bytes is not None
    assert 0 < drafter.least_bytes < drafter.size_bytes < 3 << 30
    assert memory.unknown == ()
    assert memory.sequences_that_fit is not None


def test_a_context_that_cannot_fit_by_the_lower_bound_is_refused(capsys: Capture) -> None:
    words = ("Qwen/Qwen3-32B", "--host", "h100", "--method", "eagle3", "--context", "40960")
    made = plan(capsys, *words, "--", "--kv-cache-dtype", "bfloat16", code=1)
    assert [fault.code for fault in made.refusals] == ["cache"]
    assert made.memory.least_sequence_bytes == 40960 * 64 * 8 * 512
    assert made.memory.lacks_sequence
    assert not made.memory.overflows


def test_copies_of_a_model_need_an_accelerator_each(capsys: Capture) -> None:
    few = plan(capsys, QWEN, "--host", "h100x4", "--", "-dp", "8", code=1)
    assert [fault.code for fault in few.refusals] == ["accelerators"]
    alone = plan(capsys, QWEN, "--host", "h100x4").memory
    copies = plan(capsys, QWEN, "--host", "h100x4", "--", "-dp", "4").memory
    assert copies.items == alone.items
    assert copies.bytes_per_sequence == alone.bytes_per_sequence
