"""Arms take turns in a balanced order, and effects are against rounds, drift and gaps."""

from collections import Counter
from itertools import pairwise
from math import sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from slipstream.measuring.comparing.design import Design, list_rounds

PAIR = ("A", "B")
ABBA = Design(tuple("ABBA"), (0, 0, 0, 0))
TWICE = Design(tuple("ABBAABBA"), (0, 0, 0, 0, 1, 1, 1, 1))
CUT = Design(tuple("ABBAAB"), (0, 0, 0, 0, 1, 1))
THREE = Design(tuple("ABCCBABCAACB"), (0,) * 6 + (1,) * 6)
THREE_CUT = Design(tuple("ABCCBABCA"), (0,) * 6 + (1,) * 3)
GAP = Design(tuple("ABCCBBCAAB"), (0,) * 5 + (1,) * 5)
DESIGNS = (ABBA, TWICE, CUT, THREE, THREE_CUT, GAP)

numbers = some.floats(-10, 10)


def estimate(design: Design, pair: tuple[str, str], values: list[float]) -> float:
    return float(design.contrasts[design.pairs.index(pair)] @ values)


@pytest.mark.parametrize(
    ("design", "degrees_of_freedom", "information"),
    [(ABBA, 2, 1), (TWICE, 5, 2), (CUT, 3, 1.5), (THREE, 8, 2)],
)
def test_a_round_takes_a_degree_of_freedom_and_so_does_each_arm_but_one(
    design: Design, degrees_of_freedom: int, information: float
) -> None:
    assert design.degrees_of_freedom == design.residuals.shape[1] == degrees_of_freedom
    assert design.information == pytest.approx(information)


@given(
    some.sampled_from(DESIGNS),
    some.tuples(numbers, numbers, numbers),
    some.tuples(numbers, numbers),
)
def test_the_level_of_a_round_is_no_effect(
    design: Design, speeds: tuple[float, float, float], levels: tuple[float, float]
) -> None:
    speed_of = dict(zip("ABC", speeds, strict=True))
    values = [
        levels[number] + speed_of[arm]
        for arm, number in zip(design.arms, design.rounds, strict=True)
    ]
    for (first, second), effect in zip(design.pairs, design.contrasts @ values, strict=True):
        assert effect == pytest.approx(speed_of[second] - speed_of[first], abs=1e-9)
    left = np.array(values) @ design.residuals
    assert left == pytest.approx(np.zeros(design.degrees_of_freedom), abs=1e-9)


@given(some.integers(2, 8), some.integers(1, 3), numbers, numbers)
def test_a_steady_drift_is_no_effect(arms: int, rounds: int, effect: float, slope: float) -> None:
    orders = list_rounds(arms, rounds)
    design = Design(
        tuple("".join(orders)), tuple(number for number, order in enumerate(orders) for _ in order)
    )
    values = [slope * place + effect * (arm == "B") for place, arm in enumerate(design.arms)]
    assert estimate(design, PAIR, values) == pytest.approx(effect, abs=1e-9)
    assert design.information == pytest.approx(rounds)


def test_two_arms_take_turns_as_a_b_b_a() -> None:
    assert list_rounds(2, 3) == ["ABBA"] * 3


@pytest.mark.parametrize("arms", range(2, 9))
def test_over_a_cycle_each_arm_has_each_place_and_each_predecessor_equally_often(arms: int) -> None:
    cycle = arms if arms % 2 else arms // 2
    rows = [half for order in list_rounds(arms, cycle) for half in (order[:arms], order[arms:])]
    places = Counter((place, arm) for row in rows for place, arm in enumerate(row))
    followed = Counter(step for row in rows for step in pairwise(row))
    assert len(places) == arms * arms
    assert len(followed) == arms * (arms - 1)
    assert set(places.values()) == set(followed.values()) == {2 if arms % 2 else 1}


@given(some.lists(numbers, min_size=10, max_size=10))
def test_pairs_agree_with_each_other_where_a_block_is_missing(values: list[float]) -> None:
    steps = [estimate(GAP, pair, values) for pair in (("A", "B"), ("B", "C"), ("A", "C"))]
    assert steps[0] + steps[1] == pytest.approx(steps[2], abs=1e-9)


def test_the_floor_is_what_an_arm_differs_from_itself_within_a_round() -> None:
    assert ABBA.find_floor([1.0, 5.0, 5.0, 1.0]) == 0
    assert ABBA.find_floor([1.0, 5.0, 6.0, 1.0]) == pytest.approx(sqrt(0.5))
    assert TWICE.find_floor([1.0, 5.0, 5.0, 1.0, 9.0, 9.0, 9.0, 9.0]) == 0
    assert Design(("A", "B"), (0, 0)).find_floor([1.0, 2.0]) == 0
