"""What nobody asked for gives way, in its order; what the user asked for stays."""

from typing import Any

import pytest

from slipstream.checkpoints.checkpoint import Weights
from slipstream.planning import LaunchPlan
from tests.unit.planning.pieces import GIB, make_recipe
from tests.unit.planning.test_planner import plan

CONTEXT, TOKENS, SEQUENCES = "--max-model-len", "--max-num-batched-tokens", "--max-num-seqs"
CACHE, SIZE = "--kv-cache-dtype", "--tensor-parallel-size"


def weigh(gibibytes: float) -> dict[str, Any]:
    return {"weights": Weights(total_bytes=int(gibibytes * GIB))}


def show(made: LaunchPlan, *flags: str) -> list[str | None]:
    found = [made.find(flag) for flag in flags]
    return [one.value if one else None for one in found]


@pytest.mark.parametrize(
    ("machine", "size", "inputs", "tokens", "context", "cache"),
    [
        ("h100", 16, {}, "8192", "32768", None),
        # The tokens of a step suffice.
        ("rtx-5090", 19, {}, "4096", "32768", None),
        # Then the context, down to one that is of use.
        ("rtx-5090", 22, {}, "2048", "15360", None),
        ("rtx-3090", 15.3, {}, "2048", "9216", None),
        # Then the cache, where 8 bits are read.
        ("rtx-5090", 23.8, {}, "2048", "7168", "fp8"),
        # Ampere reads none: shorter still.
        ("rtx-3090", 16, {}, "2048", "5120", None),
        # A recipe is not the user.
        ("gb10", 78, {"recipe": make_recipe(batched_tokens=32768)}, "16384", "32768", None),
        # What was asked for stays.
        ("rtx-5090", 23, {"context": 12288}, "2048", "12288", "fp8"),
        # Users take part of the context only if that is longer than their requests.
        ("rtx-3090", 15.3, {"users": 4}, "2048", "9216", None),
        ("rtx-5090", 22.8, {"users": 4}, "2048", "18432", "fp8"),
        ("rtx-5090", 22, {"engine": (TOKENS, "8192")}, "8192", "12288", None),
        ("rtx-5090", 20, {"engine": (CACHE, "fp8")}, "8192", "32768", "fp8"),
    ],
)
def test_tokens_per_step_then_context_then_cache_give_way(
    machine: str, size: float, inputs: dict[str, Any], tokens: str, context: str, cache: str | None
) -> None:
    made = plan(machine, target=weigh(size), **inputs)
    assert made.refusals == ()
    assert show(made, TOKENS, CONTEXT, CACHE) == [tokens, context, cache]
    usual = ["8192", "32768", None]
    asked = [inputs.get("context"), *inputs.get("engine", ())]
    shown = [value for value in (tokens, context, cache) if value not in (*usual, *map(str, asked))]
    assert sum(note.startswith("adjusted: ") for note in made.notes) == len(shown)


@pytest.mark.parametrize(
    ("machine", "size", "inputs", "shards", "context"),
    [
        ("h100x8", 16, {}, None, "32768"),
        ("h100x8", 131, {}, "2", "32768"),
        ("h100x8", 141, {}, "4", "32768"),
        ("h100x2", 136, {}, "2", "22528"),
        ("h100x8", 131, {"users": 64}, "4", "32768"),
        ("h100x8", 16, {"engine": ("-tp", "8")}, "8", "32768"),
        ("rtx-3090x2", 15.3, {}, "2", "32768"),
        ("2x-gb10", 100, {}, "2", "32768"),
        ("2x-gb10", 16, {}, None, "32768"),
    ],
)
def test_the_fewest_accelerators_are_used_on_which_all_fits(
    machine: str, size: float, inputs: dict[str, Any], shards: str | None, context: str
) -> None:
    made = plan(machine, target=weigh(size), **inputs)
    assert made.refusals == ()
    assert show(made, SIZE, CONTEXT) == [shards, context]
    assert (made.find("--nnodes") is not None) == (machine == "2x-gb10" and shards == "2")


@pytest.mark.parametrize(
    ("machine", "inputs", "sequences"),
    [
        ("h100", {}, "32"),
        ("h100", {"method": "plain"}, "95"),
        ("b200", {}, "64"),
        ("h100", {"goal": "throughput"}, "74"),
        ("h100", {"goal": "agent"}, "10"),
        ("rtx-5090", {}, "11"),
        ("rtx-3090", {}, "1"),
        ("h100", {"users": 3}, "3"),
        ("gb10", {"recipe": make_recipe(sequences=5)}, "5"),
        ("h100", {"target": {"layers": None}}, "8"),
        ("cpu-server", {"target": weigh(1)}, "4"),
    ],
)
def test_as_many_sequences_as_cache_and_steps_hold_are_admitted(
    machine: str, inputs: dict[str, Any], sequences: str
) -> None:
    assert show(plan(machine, **inputs), SEQUENCES) == [sequences]
