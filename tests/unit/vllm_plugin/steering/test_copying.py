"""The copied continuation against a search of everything, and what it learns."""

import random
import time
from itertools import pairwise

import pytest

from slipstream.vllm_plugin.steering import copying
from slipstream.vllm_plugin.steering.copying import (
    LEAST_MATCHED,
    MOST_COPIED,
    MOST_MATCHED,
    CopyIndex,
    CopyRates,
)


def search_everything(tokens: list[int]) -> dict[int, int]:
    """Return the length of the match at every earlier end, at most the longest counted."""
    last, found = len(tokens) - 1, {}
    for end in range(last):
        matched = 0
        while matched <= min(end, MOST_MATCHED - 1) and (
            tokens[end - matched] == tokens[last - matched]
        ):
            matched += 1
        if matched >= LEAST_MATCHED:
            found[end] = matched
    return found


def continue_from(tokens: list[int], end: int, count: int) -> list[int]:
    known = list(tokens)
    for place in range(count):
        known.append(known[end + 1 + place])
    return known[len(tokens) :]


def make_repetitive(generator: random.Random, count: int, vocabulary: int) -> list[int]:
    """Return random tokens with copies of earlier parts, some with an error."""
    tokens = [generator.randrange(vocabulary) for _ in range(8)]
    while len(tokens) < count:
        if generator.random() < 0.5:
            begin = generator.randrange(len(tokens))
            tokens += tokens[begin : begin + generator.randrange(2, 60)]
        else:
            tokens += [generator.randrange(vocabulary) for _ in range(generator.randrange(1, 8))]
    return tokens[:count]


@pytest.mark.parametrize("vocabulary", [2, 5, 40, 50_000])
@pytest.mark.parametrize("seed", range(6))
def test_it_finds_the_longest_match_and_of_equals_the_latest(
    monkeypatch: pytest.MonkeyPatch, vocabulary: int, seed: int
) -> None:
    monkeypatch.setattr(copying, "LEAST_WAITING", 60)
    monkeypatch.setattr(copying, "MOST_COMPARED", 1000)
    generator = random.Random(seed)
    tokens = make_repetitive(generator, 500, vocabulary)
    known = generator.choice([0, 1, 2, 7, 9, 150])
    index = CopyIndex(tokens[:known])
    while known < len(tokens):
        came = tokens[known : known + generator.randrange(1, 5)]
        index.follow(came)
        known += len(came)
        found = search_everything(tokens[:known])
        copy = index.propose(20)
        if not found:
            assert copy is None
            continue
        assert copy is not None
        assert copy.matched == max(found.values())
        longest = [end for end, matched in found.items() if matched == copy.matched]
        if copy.matched < MOST_MATCHED:
            assert copy.tokens == continue_from(tokens[:known], longest[-1], 20)
        else:  # Beyond what is counted, a match that was followed stays.
            assert copy.tokens in [continue_from(tokens[:known], end, 20) for end in longest]


def test_with_many_candidates_a_bounded_search_still_finds_a_long_match() -> None:
    tokens = make_repetitive(random.Random(1), 3000, 3)
    for known in range(1000, 3000, 50):
        copy = CopyIndex(tokens[:known]).propose(5)
        found = search_everything(tokens[:known])
        assert copy is not None
        assert copy.matched >= min(8, max(found.values()))
        assert copy.tokens in [
            continue_from(tokens[:known], end, 5)
            for end, matched in found.items()
            if matched == copy.matched
        ]


def test_a_copy_that_reaches_its_own_beginning_repeats_itself() -> None:
    copy = CopyIndex([9, 1, 2, 3, 1, 2, 3]).propose(MOST_COPIED)
    assert copy is not None
    assert copy.matched == 3
    assert copy.tokens == ([1, 2, 3] * 11)[:MOST_COPIED]


def test_an_index_of_a_prompt_is_the_index_of_its_tokens_one_by_one() -> None:
    tokens = make_repetitive(random.Random(3), 400, 30)
    grown = CopyIndex([])
    for known in range(400):
        assert grown.propose(7) == CopyIndex(tokens[:known]).propose(7)
        grown.follow(tokens[known : known + 1])


def test_hashes_that_are_all_equal_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = make_repetitive(random.Random(4), 300, 12)
    expected = [CopyIndex(tokens[:known]).propose(7) for known in range(300)]
    monkeypatch.setattr(copying, "_PAIR_FACTORS", (0, 0))
    monkeypatch.setattr(copying, "_TOKEN_FACTOR", 0)
    monkeypatch.setattr(copying, "MOST_COMPARED", 1000)
    assert [CopyIndex(tokens[:known]).propose(7) for known in range(300)] == expected


@pytest.mark.parametrize(
    "tokens",
    [
        [7] * 100_000,
        [7, 8] * 50_000,
        list(range(100_000)),
        [token for place in range(33_333) for token in (7, 7, place)],
        [token for place in range(2_500) for token in [*[7] * 39, place]],
    ],
    ids=["equal", "period of two", "all different", "pairs", "long pairs"],
)
def test_no_text_makes_it_slow(tokens: list[int]) -> None:
    index = CopyIndex(tokens)
    began = time.process_time()
    for place in range(50):
        index.follow([7, 7, 7, 7] if place % 2 else [7, 7, 100_000 + place, 7, 7])
        index.propose(MOST_COPIED)
    assert time.process_time() - began < 1.0  # 20 ms for each, where 1 ms was seen.


def test_rates_begin_with_priors_that_grow_with_the_match_and_with_the_drafter() -> None:
    rates = CopyRates()
    for matched in range(2, MOST_MATCHED + 1):
        assert rates.rate(matched, False) <= rates.rate(matched, None) <= rates.rate(matched, True)
    for agrees in (None, True, False):
        seen = [rates.rate(matched, agrees) for matched in range(2, MOST_MATCHED + 1)]
        assert seen == sorted(seen)


def test_rates_follow_what_came_and_forget_what_was_before() -> None:
    rates = CopyRates()
    before = rates.rate(8, None)
    for _ in range(2000):
        rates.learn(3, False, 0, wrong=True)
    assert rates.rate(3, False) < 0.02
    assert rates.rate(8, None) == before
    for _ in range(2000):
        rates.learn(3, False, 1, wrong=False)
    assert rates.rate(3, False) > 0.95


def test_survival_is_the_product_of_rates_of_a_growing_match() -> None:
    rates = CopyRates()
    survival = rates.list_survival(MOST_MATCHED, True, MOST_COPIED)
    assert len(survival) == MOST_COPIED
    assert survival[0] == rates.rate(MOST_MATCHED, True)
    assert all(later < sooner for sooner, later in pairwise(survival))
    assert rates.list_survival(2, None, 2)[1] == rates.rate(2, None) * rates.rate(3, None)


def test_a_copy_that_ended_right_teaches_no_wrong_token() -> None:
    rates = CopyRates()
    before = rates.rate(MOST_MATCHED, None)
    rates.learn(20, None, MOST_COPIED, wrong=False)
    assert rates.rate(MOST_MATCHED, None) > before
