"""How much is served at once: wishes first, then recipes, then checkpoints, then defaults."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from slipstream.planning.scheduling import (
    decide_batched_tokens,
    decide_context,
    decide_draft_length,
    decide_sequences,
)
from tests.unit.planning.pieces import DRAFTER, make_recipe, situate


def draft_part(**changes: object) -> dict[str, object]:
    assert DRAFTER.draft is not None
    return {"draft": DRAFTER.draft.model_copy(update=changes)}


def test_a_wish_for_a_draft_length_beats_the_recipe() -> None:
    choice = decide_draft_length(situate(recipe=make_recipe(draft_length=7), draft_length=3))
    assert choice is not None
    assert (choice.value, choice.source) == (3, "user")


def test_a_variables_wish_says_so() -> None:
    situation = situate(draft_length=3, from_environment=("draft_length",))
    choice = decide_draft_length(situation)
    assert choice is not None
    assert choice.source == "environment"


def test_the_recipe_beats_the_block_size() -> None:
    choice = decide_draft_length(situate(recipe=make_recipe(draft_length=7)))
    assert choice is not None
    assert (choice.value, choice.source) == (7, "recipe")
    assert "test-recipe" in choice.because


def test_a_recipe_that_drafts_past_the_block_is_cut() -> None:
    choice = decide_draft_length(situate(recipe=make_recipe(draft_length=16)))
    assert choice is not None
    assert (choice.value, choice.source) == (15, "checkpoint")


def test_a_block_that_samples_its_anchor_drafts_one_more() -> None:
    choice = decide_draft_length(situate(drafter=draft_part(drafts_from_anchor=True), users=1))
    assert choice is not None
    assert choice.value == 15
    small = situate(drafter=draft_part(drafts_from_anchor=True, block_size=8))
    choice = decide_draft_length(small)
    assert choice is not None
    assert choice.value == 8


@pytest.mark.parametrize(
    ("users", "drafted"),
    [(1, 15), (2, 15), (3, 8), (4, 8), (5, 6), (8, 6), (9, 4), (16, 4), (17, 3), (9999, 3)],
)
def test_more_users_draft_less(users: int, drafted: int) -> None:
    choice = decide_draft_length(situate(users=users))
    assert choice is not None
    assert choice.value == drafted


def test_asked_for_users_beat_a_recipe_that_drafts_for_few() -> None:
    recipe = make_recipe(draft_length=15)
    busy = decide_draft_length(situate(recipe=recipe, users=16))
    assert busy is not None
    assert (busy.value, busy.source) == (4, "default")
    alone = decide_draft_length(situate(recipe=recipe, users=1))
    assert alone is not None
    assert (alone.value, alone.source) == (15, "recipe")
    short = decide_draft_length(situate(recipe=make_recipe(draft_length=3), users=16))
    assert short is not None
    assert (short.value, short.source) == (3, "recipe")


def test_an_unknown_block_drafts_three() -> None:
    choice = decide_draft_length(situate(drafter=draft_part(block_size=None)))
    assert choice is not None
    assert (choice.value, choice.source) == (3, "default")


def test_without_speculation_nothing_is_drafted() -> None:
    assert decide_draft_length(situate(speculation=False)) is None
    assert decide_draft_length(situate(plain=True)) is None


def test_a_wish_for_a_context_is_taken_as_it_is() -> None:
    choice = decide_context(situate(context=100000))
    assert (choice.value, choice.source) == (100000, "user")


def test_the_recipes_context_is_capped_by_the_drafters() -> None:
    situation = situate(recipe=make_recipe(context=40000), drafter={"context": 16384})
    choice = decide_context(situation)
    assert (choice.value, choice.source) == (16384, "checkpoint")
    assert "drafter" in choice.because


def test_the_recipes_context_is_capped_by_the_targets() -> None:
    choice = decide_context(situate(recipe=make_recipe(context=65536)))
    assert (choice.value, choice.because) == (40960, "the target has no more positions")


def test_without_speculation_the_drafters_context_does_not_matter() -> None:
    choice = decide_context(situate(drafter={"context": 1024}, speculation=False))
    assert choice.value == 32768


def test_the_default_context_is_shorter_on_a_cpu() -> None:
    assert decide_context(situate()).value == 32768
    assert decide_context(situate("cpu-server")).value == 4096


@pytest.mark.parametrize(
    ("goal", "sequences"), [("latency", 8), ("throughput", 64), ("capacity", 32)]
)
def test_the_goal_sets_the_sequences(goal: str, sequences: int) -> None:
    assert decide_sequences(situate(goal=goal)).value == sequences


def test_users_beat_the_recipe_and_the_recipe_beats_the_goal() -> None:
    recipe = make_recipe(sequences=16)
    assert decide_sequences(situate(recipe=recipe, users=3)).value == 3
    assert decide_sequences(situate(recipe=recipe)).value == 16
    assert decide_sequences(situate("cpu-server")).value == 4


def test_a_step_holds_a_block_of_every_sequence() -> None:
    choice = decide_batched_tokens(situate(batched_tokens=100), sequences=16, draft_length=15)
    assert choice.value == 256
    assert choice.because == ("100 is raised to 16 sequences x 16 tokens to verify (vllm#53970)")
    assert choice.source == "user"


def test_enough_tokens_a_step_are_left_alone() -> None:
    recipe = make_recipe(batched_tokens=32768)
    assert decide_batched_tokens(situate(recipe=recipe), 16, 15).value == 32768
    assert decide_batched_tokens(situate(), 8, 15).value == 8192
    assert decide_batched_tokens(situate("cpu-server"), 4, 7).value == 2048


@given(some.integers(1, 512), some.integers(0, 31), some.none() | some.integers(1, 65536))
def test_no_load_can_starve_a_step(sequences: int, drafted: int, asked: int | None) -> None:
    choice = decide_batched_tokens(situate(batched_tokens=asked), sequences, drafted)
    assert choice.value >= sequences * (drafted + 1)
    assert choice.value > drafted
