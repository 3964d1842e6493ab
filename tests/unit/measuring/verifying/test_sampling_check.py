"""The sampling test fails as often as it says, sees what it says, and does not know the arms."""

from collections.abc import Sequence
from math import log
from random import Random

import pytest

from slipstream.measuring.client.completions import Answer
from slipstream.measuring.verifying.sampling_check import (
    SamplingCheck,
    choose_prompt,
    compare_samples,
    list_sampled_requests,
    sort_into_cells,
)

Tokens = tuple[int, ...]


def draw(count: int, seed: int, *, shift: float = 0.0) -> list[Tokens]:
    """Draw two tokens each; `shift` is the share that goes to another first token."""
    chance = Random(seed)
    first = [0.4 - shift, 0.3, 0.2, 0.1 + shift]
    return [
        (chance.choices(range(4), first)[0], chance.choices(range(3), [0.6, 0.3, 0.1])[0])
        for _ in range(count)
    ]


def answer(prompt: Tokens, tokens: Tokens) -> Answer:
    return Answer(prompt_ids=prompt, token_ids=tokens)


def chances(share: float, ways: int) -> dict[int, float]:
    """Leave this share to so many others than token 9."""
    return {9: log(1 - share)} | {number: log(share / ways) for number in range(20, 20 + ways)}


def compare(plain: Sequence[Tokens], drafted: Sequence[Tokens], *, seed: int) -> SamplingCheck:
    return compare_samples(plain, drafted, prompt=(7,), seed=seed)


def test_samples_of_one_distribution_pass() -> None:
    found = [compare(draw(60, seed), draw(60, 900 + seed), seed=0) for seed in range(8)]
    assert all(check.passed for check in found)
    assert 0.02 < sum(check.p_value for check in found) / 8 < 0.98
    assert len({check.p_value for check in found}) > 4


def test_the_distance_that_is_called_detectable_is_detected() -> None:
    whole = compare(draw(150, 1), draw(150, 2), seed=0)
    assert whole.detectable is not None
    assert 0.1 < whole.detectable < 0.4
    shifted = [
        compare(draw(150, seed), draw(150, 50 + seed, shift=whole.detectable), seed=0)
        for seed in range(4)
    ]
    assert sum(not check.passed for check in shifted) >= 3


def test_more_samples_see_less() -> None:
    few, many = (compare(draw(n, 1), draw(n, 2), seed=0).detectable for n in (60, 300))
    assert few is not None
    assert many is not None
    assert many < few - 0.05


def test_the_distance_is_the_share_that_differs() -> None:
    left, right = [(1, 2)] * 75 + [(3, 4)] * 25, [(1, 2)] * 50 + [(3, 4)] * 50
    check = compare(left, right, seed=0)
    assert (check.distance, check.cells, check.samples, check.tokens) == (0.25, 2, 100, 2)
    alone = compare([(1, 2)] * 30, [(1, 2)] * 30, seed=0)
    assert (alone.p_value, alone.distance, alone.detectable) == (1.0, 0.0, None)
    opposite = compare([(1, 2)] * 30, [(2, 1)] * 30, seed=0)
    assert (opposite.passed, opposite.distance) == (False, 1.0)


@pytest.mark.parametrize(("p_value", "passed"), [(0.0009, False), (0.001, True)])
def test_once_in_a_thousand_is_the_level(p_value: float, passed: bool) -> None:
    check = SamplingCheck(
        samples=1, tokens=1, cells=1, distance=0, p_value=p_value, detectable=None
    )
    assert check.passed is passed


def test_a_cell_is_as_long_as_enough_samples_share_it() -> None:
    samples = [(1, 2, 3)] * 3 + [(1, 2, 4)] + [(1, 5, 6)] + [(7, 8, 9)] + [(1,)] + [(1, 2)]
    named = dict(zip(samples, sort_into_cells(samples, least=3), strict=True))
    alone = [named[1, 2, 3], named[1, 2, 4], named[1, 5, 6], named[7, 8, 9], named[1,], named[1, 2]]
    assert len(set(alone)) == 6
    mixed = [*samples, (1, 2, 5), (1, 6, 6), (8, 8, 9)]
    cells = dict(zip(mixed, sort_into_cells(mixed, least=3), strict=True))
    assert cells[1, 2, 5] == cells[1, 2, 4]
    assert cells[1, 6, 6] == cells[1, 5, 6]
    assert cells[8, 8, 9] == cells[7, 8, 9]


def test_cells_do_not_depend_on_the_order() -> None:
    samples = draw(50, 4)
    forward, backward = sort_into_cells(samples, 8), sort_into_cells(samples[::-1], 8)[::-1]
    pairs = set(zip(forward, backward, strict=True))
    assert len(pairs) == len(set(forward)) == len(set(backward))


def test_the_prompt_ends_before_a_clear_token_that_leads_to_an_open_one() -> None:
    clear, open_one, wide = ({9: log(0.99)}, chances(0.5, 4), chances(0.95, 19))
    answers = [answer((1, 2), (9, 9, 9)), answer((3,), (9, 9, 9, 9))]
    leading = [[open_one, clear, wide], [open_one, clear, open_one, clear]]
    assert choose_prompt(answers, leading) == (3, 9)


def test_where_no_token_follows_another_the_prompt_is_taken_whole() -> None:
    assert choose_prompt([answer((1, 2), (9,))], [[{9: 0.0}]]) == (1, 2)


def test_two_arms_and_two_runs_ask_with_other_seeds() -> None:
    seeds = [
        request.extra["seed"]
        for seed in (0, 1)
        for turn in (0, 1)
        for request in list_sampled_requests((7, 8), 5, seed=seed, turn=turn)
    ]
    assert len(set(seeds)) == 20
