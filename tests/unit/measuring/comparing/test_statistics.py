"""The arithmetic under a verdict: rounds, noise by level, intervals that hold together."""

from math import inf, sqrt
from random import Random
from statistics import fmean, pstdev

import numpy as np
import pytest

from slipstream.measuring.comparing.design import Design
from slipstream.measuring.comparing.statistics import (
    CONFIDENCE,
    Noise,
    Values,
    draw_errors,
    find_crossing,
    find_noise,
    find_widths,
    make_grid,
)

ABBA = Design(tuple("ABBA"), (0, 0, 0, 0))
THREE = Design(tuple("ABCCBA"), (0,) * 6)
TWICE = Design(tuple("ABBAABBA"), (0, 0, 0, 0, 1, 1, 1, 1))


def scatter(
    chance: Random, design: Design, start: float, concurrency: float, cell: float
) -> dict[tuple[str, int], dict[str, list[float]]]:
    """Return every cell the noise of its start, its concurrency and its own; no prompts differ."""
    blocks = range(len(design.arms))
    starts = [chance.gauss(0, start) for _ in blocks]
    steps = {level: [chance.gauss(0, concurrency) for _ in blocks] for level in (1, 4, 16)}
    return {
        (kind, level): {"p": [starts[b] + steps[level][b] + chance.gauss(0, cell) for b in blocks]}
        for kind in ("chat", "code")
        for level in (1, 4, 16)
    }


def find_halves(noise: Noise, seed: int, draws: int) -> "list[list[float]]":
    """Return half of each interval, by pair and row."""
    spreads, drawn = draw_errors(noise, seed, draws)
    halves: list[list[float]] = (spreads * find_widths(drawn)).tolist()
    return halves


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((0.03, 0, 0), (0.03, 0.03, 0)),
        ((0, 0.03, 0), (0, 0.03, 0)),
        ((0, 0, 0.03), (0, 0.03 / sqrt(2), 0.03)),
    ],
)
def test_noise_is_found_at_its_own_level(
    sizes: tuple[float, float, float], expected: tuple[float, float, float]
) -> None:
    """What all concurrencies share, what each has with it, and what a cell has beside."""
    long = Design(tuple("ABBA") * 60, tuple(place // 4 for place in range(240)))
    noise = find_noise(long, scatter(Random(1), long, *sizes))
    found = (noise.shared, fmean(noise.loads), fmean(noise.own))
    assert np.sqrt(found) == pytest.approx(expected, rel=0.2, abs=0.008)


def test_a_noisy_concurrency_does_not_hide_among_quiet_ones() -> None:
    chance = Random(2)
    values = scatter(chance, TWICE, 0, 0, 0.001)
    values["chat", 16] = {"p": [chance.gauss(0, 0.1) for _ in TWICE.arms]}
    noise = find_noise(TWICE, values)
    for spreads in (noise.loads, noise.own):
        assert spreads[2] > 2 * spreads[0] == pytest.approx(2 * spreads[1])


def test_one_round_and_one_cell_get_the_t_of_two_degrees_of_freedom() -> None:
    noise = find_noise(ABBA, {("chat", 1): {"p": [0.0, 0.0, 0.02, 0.02]}})
    assert find_halves(noise, 3, 40_000) == [[pytest.approx(0.02 / sqrt(2) * 4.303, rel=0.05)]]


def test_three_arms_and_one_cell_get_the_studentized_range() -> None:
    residuals = [0.02, -0.02, 0.01, -0.01, 0.02, -0.02]
    noise = find_noise(THREE, {("chat", 1): {"p": residuals}})
    # The 95 % point for 3 means and 3 degrees of freedom, of means of two starts.
    expected = 5.910 * sqrt(noise.loads[0] / 2)
    assert find_halves(noise, 3, 40_000) == [[pytest.approx(expected, rel=0.05)]] * 3


def test_a_start_moves_all_pairs_of_its_arm() -> None:
    values = {("chat", 1): {"p": [Random(9).gauss(0, 0.1) for _ in THREE.arms]}}
    spreads, drawn = draw_errors(find_noise(THREE, values), 9, 50)
    to_b, to_c, b_to_c = (drawn * spreads)[:, :, 0].T
    assert to_b + b_to_c == pytest.approx(to_c)


def test_what_moves_all_cells_at_once_costs_no_correction_for_their_number() -> None:
    row = [0.0, 0.0, 0.02, 0.02]
    alone = find_halves(find_noise(ABBA, {("a", 1): {"p": row}}), 4, 4000)[0]
    many = find_halves(find_noise(ABBA, {(kind, 1): {"p": row} for kind in "abcdefghij"}), 4, 4000)
    assert many[0] == pytest.approx(alone * 11, rel=0.1)


def test_cells_that_move_by_themselves_are_widened_together() -> None:
    values = scatter(Random(5), TWICE, 0, 0, 0.02)
    _, drawn = draw_errors(find_noise(TWICE, values), 5, 4000)
    sizes, widths = np.abs(drawn), find_widths(drawn)
    assert (widths > 1.2 * np.quantile(sizes, CONFIDENCE, axis=0)).all()
    assert (sizes <= widths).all(axis=(1, 2)).mean() == pytest.approx(CONFIDENCE, abs=0.002)


def test_prompts_that_gain_differently_widen_the_interval_as_a_t_of_their_number_does() -> None:
    gains = {f"p{number}": number / 10 for number in range(6)}
    values = {("chat", 1): {name: [0, gain, gain, 0] for name, gain in gains.items()}}
    standard_error = pstdev(gains.values()) / sqrt(5)
    assert find_halves(find_noise(ABBA, values), 6, 20_000) == [
        [pytest.approx(2.571 * standard_error, rel=0.05)]
    ]


def test_a_prompt_has_the_same_luck_at_every_concurrency() -> None:
    gains = {f"p{number}": [0.0, number / 10, number / 10, 0.0] for number in range(6)}
    noise = find_noise(ABBA, {("a", 1): gains, ("a", 9): gains, ("b", 1): gains})
    _, drawn = draw_errors(noise, 7, 400)
    signs = np.sign(drawn[:, 0])
    assert (signs[:, 0] == signs[:, 1]).all()
    assert 0.3 < (signs[:, 0] == signs[:, 2]).mean() < 0.7


@pytest.mark.parametrize(("gain", "least", "most"), [(0.3, 0.7, 1.0), (0.0, 0.0, 0.5)])
def test_more_rounds_narrow_all_but_what_prompts_have_of_their_own(
    gain: float, least: float, most: float
) -> None:
    chance = Random(8)
    rows = {
        f"p{number}": [gain * number * (arm == "B") + chance.gauss(0, 0.05) for arm in ABBA.arms]
        for number in range(8)
    }
    values: Values = {("chat", 1): rows}
    noise = find_noise(ABBA, values)
    ((now,),), ((then,),) = (find_halves(one, 8, 2000) for one in (noise, noise.foresee(ABBA, 12)))
    assert least * now < then < most * now


def test_all_kinds_have_a_row_where_there_are_several() -> None:
    cells = [("chat", 1), ("chat", 4), ("code", 1)]
    grid = make_grid(cells)
    assert grid.rows == [*cells, (None, 1), (None, 4)]
    assert grid.weights[3:].tolist() == [[0.5, 0, 0.5], [0, 1, 0]]
    assert make_grid(cells[:2]).rows == cells[:2]


@pytest.mark.parametrize(
    ("effects", "crossing"),
    [
        ([0.3, 0.1, 0.05], inf),
        ([-0.1, 0.1, 0.1], 0),
        ([0.2, 0.1, -0.1], 8),
        ([0.2, -0.2, 0.2], 2),
        ([0.0, 0.0, 0.0], inf),
        ([0.3, 0.3, -0.1], 4 * 4**0.75),
    ],
)
def test_a_crossing_lies_where_the_line_over_the_logarithm_does(
    effects: list[float], crossing: float
) -> None:
    assert find_crossing([1, 4, 16], effects) == pytest.approx(crossing)
