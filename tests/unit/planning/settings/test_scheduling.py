"""How much is served at once: recipes first, then checkpoints, then defaults."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from slipstream.planning.settings.scheduling import (
    decide_batched_tokens,
    decide_context,
    decide_draft_length,
    decide_sequences,
)
from tests.unit.planning.pieces import DRAFTER, make_inputs, make_recipe, pick


def draft_part(**changes: object) -> dict[str, object]:
    assert DRAFTER.draft is not None
    return {"draft": DRAFTER.draft.model_copy(update=changes)}


@pytest.mark.parametrize(
    ("inputs", "chosen"),
    [
        ({"recipe": make_recipe(draft_length=7, machines=("h100",))}, (7, "recipe")),
        ({"recipe": make_recipe(draft_length=16, machines=("h100",))}, (15, "checkpoint")),
        ({"recipe": make_recipe(draft_length=7)}, (15, "checkpoint")),
        ({"users": 64}, (15, "checkpoint")),
        ({"drafter": draft_part(drafts_from_anchor=True)}, (16, "checkpoint")),
        ({"drafter": draft_part(drafts_from_anchor=True, block_size=8)}, (8, "checkpoint")),
        ({"drafter": draft_part(block_size=None)}, (3, "default")),
        (
            {"drafter": draft_part(block_size=None), "recipe": make_recipe(draft_length=7)},
            (7, "index"),
        ),
        ({"method": "plain"}, None),
        ({"plain": True}, None),
    ],
)
def test_the_draft_length_is_this_machines_recipes_or_the_longest(
    inputs: dict[str, Any], chosen: tuple[int, str] | None
) -> None:
    assert pick(decide_draft_length(make_inputs(**inputs))) == chosen


@pytest.mark.parametrize(
    ("method", "layers", "length"),
    [("mtp", 1, 3), ("mtp", 2, 2), ("mtp", 3, 3), ("mtp", 4, 4), ("ngram", None, 5)],
)
def test_without_a_block_the_method_has_its_usual_length(
    method: str, layers: int | None, length: int
) -> None:
    target = {"predicting_layers": layers}
    choice = decide_draft_length(make_inputs(target=target, plain=True, method=method, users=16))
    assert choice is not None
    assert choice.value == length


@pytest.mark.parametrize(
    ("machine", "inputs", "chosen"),
    [
        (
            "gb10",
            {"recipe": make_recipe(context=40000), "drafter": {"context": 16384}},
            (16384, "checkpoint"),
        ),
        ("gb10", {"recipe": make_recipe(context=65536)}, (40960, "checkpoint")),
        ("gb10", {"recipe": make_recipe(context=16384)}, (16384, "recipe")),
        ("h100", {"recipe": make_recipe(context=16384)}, (32768, "default")),
        ("h100", {"drafter": {"context": 1024}, "method": "plain"}, (32768, "default")),
        ("h100", {}, (32768, "default")),
        ("cpu-server", {}, (4096, "default")),
        ("h100", {"goal": "agent", "target": {"context": None}}, (40960, "checkpoint")),
        (
            "h100",
            {"goal": "agent", "plain": True, "target": {"context": None}},
            (131072, "default"),
        ),
    ],
)
def test_the_context_is_what_target_and_drafter_know_at_most(
    machine: str, inputs: dict[str, Any], chosen: tuple[int, str]
) -> None:
    assert pick(decide_context(make_inputs(machine, **inputs))) == chosen


@pytest.mark.parametrize(
    ("machine", "inputs", "sequences"),
    [
        ("h100", {}, 1),
        ("h100", {"recipe": make_recipe(sequences=16)}, 1),
        ("gb10", {"recipe": make_recipe(sequences=16), "goal": "throughput"}, 16),
        ("cpu-server", {}, 4),
    ],
)
def test_the_machines_recipe_sets_the_sequences_or_later_the_cache(
    machine: str, inputs: dict[str, Any], sequences: int
) -> None:
    assert decide_sequences(make_inputs(machine, **inputs)).value == sequences


def test_a_step_holds_a_block_of_every_sequence() -> None:
    few = make_inputs(engine=("--max-num-batched-tokens", "100"))
    assert pick(decide_batched_tokens(few, sequences=16, draft_length=15)) == (256, "user")
    recipe = make_recipe(batched_tokens=32768)
    assert decide_batched_tokens(make_inputs("gb10", recipe=recipe), 16, 15).value == 32768
    assert decide_batched_tokens(make_inputs(recipe=recipe), 16, 15).value == 8192
    assert decide_batched_tokens(make_inputs(), 8, 15).value == 8192
    assert decide_batched_tokens(make_inputs("cpu-server"), 4, 7).value == 2048


@given(some.integers(1, 512), some.integers(0, 31), some.none() | some.integers(1, 65536))
def test_no_load_can_starve_a_step(sequences: int, drafted: int, asked: int | None) -> None:
    words = () if asked is None else ("--max-num-batched-tokens", str(asked))
    choice = decide_batched_tokens(make_inputs(engine=words), sequences, drafted)
    assert choice.value >= sequences * (drafted + 1)
    assert choice.value > drafted
