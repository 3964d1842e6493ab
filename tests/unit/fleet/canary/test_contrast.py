"""A confidence sequence holds its mean at all times, and narrows."""

from math import inf
from random import Random

import pytest

from slipstream.fleet.canary.contrast import UNKNOWN_LIKENESS, Contrast, find_likeness

ERROR = 0.05


def compare(
    chance: Random, shift: float, requests: int, *, before: int = 200, offset: float = 0.0
) -> Contrast:
    """Compare until it is decided; arms differ by `offset` all the time."""
    earlier = [offset + chance.gauss(0, 1) for _ in range(before)]
    contrast = Contrast(earlier, window=2, most_windows=100, error=ERROR)
    for _ in range(requests):
        contrast.add(offset + shift + chance.gauss(0, 1))
        if contrast.find_side():
            break
    return contrast


def test_what_stays_as_it_was_is_rarely_called_changed_however_often_one_looks() -> None:
    contrasts = [compare(Random(seed), 0.0, 200, offset=0.7) for seed in range(200)]
    assert sum(contrast.find_side() != 0 for contrast in contrasts) <= ERROR * len(contrasts)


@pytest.mark.parametrize("shift", [1.5, -1.5])
def test_a_shift_is_seen_on_its_side(shift: float) -> None:
    contrasts = [compare(Random(seed), shift, 200) for seed in range(20)]
    assert {contrast.find_side() for contrast in contrasts} == {1 if shift > 0 else -1}
    for contrast in contrasts:
        low, high = contrast.interval
        assert low > 0 if shift > 0 else high < 0


def test_the_interval_is_what_is_not_ruled_out() -> None:
    contrast = compare(Random(1), 0.1, 150)
    low, high = contrast.interval
    assert contrast.find_side(low - 0.01) == 1
    assert contrast.find_side(high + 0.01) == -1
    assert contrast.find_side((low + high) / 2) == 0


def test_the_interval_narrows() -> None:
    widths = []
    for requests in (40, 160):
        low, high = compare(Random(5), 0.0, requests).interval
        widths.append(high - low)
    assert widths[1] < 0.7 * widths[0]


def test_nothing_is_known_without_a_window() -> None:
    contrast = Contrast([0.0] * 10, window=2, most_windows=5, error=ERROR)
    assert contrast.interval == (-inf, inf)
    assert contrast.mean is None
    assert not contrast.add(1.0)
    assert contrast.find_side() == 0


def test_a_trial_ends_with_what_it_is_compared_with() -> None:
    contrast = Contrast([0.0, 1.0, 0.0, 1.0], window=2, most_windows=9, error=ERROR)
    assert [contrast.add(1.0) for _ in range(6)] == [False, True, False, True, False, False]
    assert contrast.windows_left == 0
    assert contrast.mean == 0.5


def test_many_requests_before_are_averaged_over_the_trial() -> None:
    contrast = Contrast([1.0] * 4 + [3.0] * 4, window=1, most_windows=2, error=ERROR)
    contrast.add(2.0)
    contrast.add(2.0)
    assert contrast.mean == 0.0
    assert contrast.windows_left == 0


def test_neighbours_that_are_alike_count_less() -> None:
    chance = Random(2)
    alone = [chance.gauss(0, 1) for _ in range(640)]
    levels = [chance.gauss(0, 1) for _ in range(20)]
    alike = [level + chance.gauss(0, 1) for level in levels for _ in range(32)]
    assert find_likeness(alone) < 3
    assert find_likeness(alike) > 8
    assert find_likeness(alone[:20]) == UNKNOWN_LIKENESS
