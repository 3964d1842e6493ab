"""A fall is found, and what holds for every distribution is compared with all outcomes of some."""

import random
from itertools import product
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.steering.change_detection import (
    FALSE_ALARMS,
    LEAST_BASELINE,
    RECOVERY_VALUES,
    REQUESTS,
    Baseline,
    Bet,
    Change,
    ChangeMargin,
    Detector,
    Likeness,
    find_baseline_error,
    find_threshold,
)

MARGINS = (ChangeMargin(share=0.05), ChangeMargin(share=0.25))


class Watched:
    """A stream with its detector."""

    def __init__(self, threshold: float = 1e6, error: float = 1e-3) -> None:
        self.baseline, self.detector = Baseline(error), Detector(threshold, len(MARGINS))

    def add(self, value: float) -> bool:
        bets = self.baseline.find_bets(MARGINS)
        changed = self.detector.add(value, bets, (self.baseline.mean, value))
        if self.detector.change is None:
            self.baseline.add(value)
        return changed

    def count_until_changed(self, values: "list[float]") -> int | None:
        return next((n for n, value in enumerate(values, start=1) if self.add(value)), None)


def draw(seed: int, count: int, mean: float) -> list[float]:
    chance = random.Random(seed)
    return [chance.betavariate(8 * mean, 8 * (1 - mean)) for _ in range(count)]


@pytest.mark.parametrize(("mean", "bound", "stake"), [(0.6, 0.6, 2.5), (0.5, 0.3, 1.0)])
def test_the_expected_evidence_is_at_most_the_number_of_values(
    mean: float, bound: float, stake: float
) -> None:
    values, expected = 7, 0.0
    for outcome in product((0.0, 1.0), repeat=values):
        detector = Detector(float("inf"), 2)
        for value in outcome:
            detector.add(value, (Bet(bound, stake), Bet(bound / 2, stake)), (mean, value))
        likely = prod(mean if value else 1 - mean for value in outcome)
        expected += likely * sum(detector._evidence) / len(detector._evidence)
    assert expected <= values + 1e-9
    assert expected >= values * (bound == mean) * 0.5


def test_all_thresholds_and_errors_add_up_to_what_is_allowed() -> None:
    detection = 10 * REQUESTS / find_threshold(10)
    baselines = sum(find_baseline_error(number) for number in range(1, 10_000))
    assert detection + baselines == pytest.approx(FALSE_ALARMS, rel=1e-3)


@given(mean=st.floats(0.1, 0.9), concentration=st.floats(1, 50), seed=st.integers(0, 10**6))
def test_the_bound_stays_below_the_mean_and_comes_close(
    mean: float, concentration: float, seed: int
) -> None:
    chance, baseline = random.Random(seed), Baseline(1e-6)
    for _ in range(2000):
        baseline.add(chance.betavariate(concentration * mean, concentration * (1 - mean)))
        assert baseline.lower <= mean
    assert baseline.lower > mean - 0.12


def test_a_fall_is_found_with_its_size_and_never_before_it() -> None:
    for seed in range(3):
        watched = Watched()
        assert watched.count_until_changed(draw(seed, 1500, 0.6)) is None
        found = watched.count_until_changed(draw(seed + 9, 500, 0.3))
        assert found is not None
        assert found < 100
        change = watched.detector.change
        assert change is not None
        assert change.before == pytest.approx(0.6, abs=0.03)
        assert change.after == pytest.approx(0.3, abs=0.06)
        assert change.values <= found + 10
        assert change.times == 1


def test_a_larger_fall_is_found_sooner_and_a_rise_is_none() -> None:
    found = []
    for mean in (0.02, 0.3, 0.45, 0.7):
        watched = Watched()
        assert watched.count_until_changed(draw(1, 2000, 0.6)) is None
        found.append(watched.count_until_changed(draw(2, 600, mean)))
    noise, half, quarter, rise = found
    assert noise is not None
    assert half is not None
    assert quarter is not None
    assert noise < half < quarter
    assert rise is None


def test_a_fall_that_lasts_is_found_again_and_its_end_too() -> None:
    watched = Watched()
    watched.count_until_changed(draw(1, 1500, 0.6))
    low = draw(2, 1000, 0.3)
    first = watched.count_until_changed(low)
    assert first is not None
    assert watched.count_until_changed(low[first:]) is not None
    assert isinstance(watched.detector.change, Change)
    assert watched.detector.change.times == 2
    ended = watched.count_until_changed(draw(3, 3 * RECOVERY_VALUES, 0.6))
    assert watched.detector.change is None
    assert ended is not None


def test_a_slow_fall_does_not_pull_the_bound_down() -> None:
    watched = Watched()
    assert watched.count_until_changed(draw(1, 2000, 0.6)) is None
    falling = [value for step in range(40) for value in draw(step, 50, 0.6 - 0.008 * step)]
    assert watched.count_until_changed(falling) is not None


def test_values_that_never_differ_are_no_trouble() -> None:
    watched = Watched()
    assert watched.count_until_changed([0.5] * 500) is None
    assert watched.count_until_changed([0.1] * 500) is not None


def test_nothing_is_bet_before_there_is_a_baseline() -> None:
    baseline = Baseline(1e-3)
    for value in draw(1, LEAST_BASELINE - 1, 0.6):
        baseline.add(value)
    assert baseline.find_bets(MARGINS) == ()
    assert Detector(1, 2).add(0.0, (), (0.5, 0.0)) is False


def find_likeness(length: int) -> float:
    """Return what is found for runs of the same value."""
    chance, likeness = random.Random(1), Likeness()
    baseline = Baseline(1e-3, likeness)
    for _ in range(4000 // length):
        value = chance.random()
        for _ in range(length):
            baseline.add(value)
    return likeness.find_factor()


def test_neighbours_that_are_alike_are_found_to_be() -> None:
    assert find_likeness(1) < 1.8
    assert 4 < find_likeness(8) < 14


def test_sessions_of_equal_requests_raise_no_alarm() -> None:
    for seed in range(4):
        watched, chance = Watched(find_threshold(10)), random.Random(seed)
        values = [level for _ in range(500) for level in [chance.betavariate(3, 2)] * 8]
        assert watched.count_until_changed(values) is None
