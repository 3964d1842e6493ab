"""A step's softmax runs over every target, the frequent tokens and a fresh draw of the rest."""

import subprocess
import sys

import numpy as np
from hypothesis import given
from hypothesis import strategies as some

from slipstream.training import cpu_lane
from slipstream.training.batches import Sample
from slipstream.training.cpu_lane import DRAWN_TOKENS, FREQUENT_TOKENS, Candidates

VOCABULARY = 12_000


def count(tokens: list[int], vocabulary: int = VOCABULARY, seed: int = 0) -> Candidates:
    """Count a sample whose prompt is token 7 and whose response is `tokens`."""
    sample = Sample(tokens=np.array([7, *tokens]), response_start=1, number=0)
    return Candidates.count([sample], vocabulary, np.random.default_rng(seed))


def test_the_module_is_read_without_torch() -> None:
    code = f"import sys, {cpu_lane.__name__}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@given(
    some.lists(some.integers(-1, VOCABULARY - 1), min_size=1, max_size=DRAWN_TOKENS),
    some.integers(0, 1000),
)
def test_every_target_is_a_candidate_and_no_token_is_one_twice(
    targets: list[int], seed: int
) -> None:
    tokens, places = count([5, 6, 5], seed=seed).pick(np.array(targets))
    assert len(np.unique(tokens)) == len(tokens) == FREQUENT_TOKENS + DRAWN_TOKENS
    found = [-1 if place < 0 else int(tokens[place]) for place in places]
    assert found == targets


@given(some.integers(1, FREQUENT_TOKENS + DRAWN_TOKENS + 50), some.data())
def test_a_small_vocabulary_is_taken_whole(size: int, data: some.DataObject) -> None:
    targets = data.draw(some.lists(some.integers(-1, size - 1), min_size=1, max_size=20))
    tokens, places = count([0], vocabulary=size).pick(np.array(targets))
    expected = min(size, FREQUENT_TOKENS + DRAWN_TOKENS)
    assert len(np.unique(tokens)) == len(tokens) == expected
    assert [-1 if place < 0 else int(tokens[place]) for place in places] == targets


def test_targets_beyond_the_draw_are_not_counted_and_the_shape_stays() -> None:
    choice = count([5])
    rare = choice.rest[: DRAWN_TOKENS + 10]
    tokens, places = choice.pick(np.array(rare))
    assert len(tokens) == FREQUENT_TOKENS + DRAWN_TOKENS
    assert (places < 0).sum() == 10


def test_the_frequent_tokens_are_those_of_responses_the_commonest_first() -> None:
    choice = count([900, 800, 900, 11_000])
    assert choice.frequent[:3].tolist() == [900, 800, 11_000]
    assert len(choice.frequent) == FREQUENT_TOKENS
    # Token 7 stands in the prompt alone: it fills up like any other.
    assert choice.frequent[3:12].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert sorted([*choice.frequent, *choice.rest]) == list(range(VOCABULARY))


def test_the_rest_is_drawn_anew_for_every_step() -> None:
    choice = count([5])
    (first, _), (second, _) = (choice.pick(np.array([5])) for _ in range(2))
    assert set(first) & set(second) >= set(choice.frequent)
    assert set(first) != set(second)
