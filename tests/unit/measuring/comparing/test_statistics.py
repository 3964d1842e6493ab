"""The arithmetic under a verdict: rounds, noise by level, intervals that hold together."""

from math import inf, sqrt
from operator import add
from random import Random
from statistics import fmean, pstdev

import pytest

from slipstream.measuring.comparing.design import Design
from slipstream.measuring.comparing.statistics import (
    draw_errors,
    find_crossing,
    find_half_widths,
    find_noise,
    find_quantile,
    list_rows,
)

PAIR = ("A", "B")
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


@pytest.mark.parametrize("sizes", [(0.03, 0, 0), (0, 0.03, 0), (0, 0, 0.03)])
def test_noise_is_found_at_its_own_level(sizes: tuple[float, float, float]) -> None:
    chance = Random(1)
    long = Design(tuple("ABBA") * 60, tuple(place // 4 for place in range(240)))
    noise = find_noise(long, scatter(chance, long, *sizes))
    found = [fmean(level.spreads.values()) for level in noise.levels]
    place = sizes.index(0.03)
    assert found[place] == pytest.approx(0.03, rel=0.2)
    assert found[place + 1 :] == pytest.approx([0.0] * (2 - place), abs=1e-9)


def test_a_noisy_concurrency_does_not_hide_among_quiet_ones() -> None:
    chance = Random(2)
    values = scatter(chance, TWICE, 0, 0, 0.001)
    values["chat", 16] = {"p": [chance.gauss(0, 0.1) for _ in TWICE.arms]}
    cells = find_noise(TWICE, values).levels[-1].spreads
    assert cells["chat", 16] == cells["code", 16] > 1.4 * cells["chat", 1] == 1.4 * cells["code", 4]


def test_one_round_and_one_cell_get_the_t_of_two_degrees_of_freedom() -> None:
    noise = find_noise(ABBA, {("chat", 1): {"p": [0.0, 0.0, 0.02, 0.02]}})
    halves = find_half_widths(draw_errors(noise, Random(3), 40_000))
    assert halves[PAIR, ("chat", 1)] == pytest.approx(0.02 / sqrt(2) * 4.303, rel=0.05)


def test_three_arms_and_one_cell_get_the_studentized_range() -> None:
    residuals = [0.02, -0.02, 0.01, -0.01, 0.02, -0.02]
    noise = find_noise(THREE, {("chat", 1): {"p": residuals}})
    spread = noise.levels[0].spreads[None]
    halves = find_half_widths(draw_errors(noise, Random(3), 40_000))
    # The 95 % point for 3 means and 3 degrees of freedom, of means of two starts.
    assert list(halves.values()) == pytest.approx([5.910 * spread / sqrt(2)] * 3, rel=0.05)


def test_a_start_moves_all_pairs_of_its_arm() -> None:
    chance = Random(9)
    values = {("chat", 1): {"p": [chance.gauss(0, 0.1) for _ in THREE.arms]}}
    errors = draw_errors(find_noise(THREE, values), chance, 50)
    to_b, to_c, b_to_c = (errors[pair, ("chat", 1)] for pair in THREE.contrasts)
    assert list(map(add, to_b, b_to_c)) == pytest.approx(to_c)


def test_what_moves_all_cells_at_once_costs_no_correction_for_their_number() -> None:
    row = [0.0, 0.0, 0.02, 0.02]
    many = {(kind, 1): {"p": row} for kind in "abcdefghij"}
    alone, together = (
        find_half_widths(draw_errors(find_noise(ABBA, values), Random(4), 4000))
        for values in ({("a", 1): {"p": row}}, many)
    )
    assert together[PAIR, ("a", 1)] == pytest.approx(alone[PAIR, ("a", 1)], rel=0.1)
    assert together[PAIR, ("a", 1)] == together[PAIR, (None, 1)]


def test_cells_that_move_by_themselves_are_widened_together() -> None:
    chance = Random(5)
    values = scatter(chance, TWICE, 0, 0, 0.02)
    errors = draw_errors(find_noise(TWICE, values), Random(5), 4000)
    halves = find_half_widths(errors)
    alone = {
        row: find_quantile([abs(error) for error in drawn], 0.95) for row, drawn in errors.items()
    }
    assert all(halves[row] > 1.2 * alone[row] for row in errors)
    held = [
        all(abs(error) <= halves[row] for row, error in zip(errors, draw, strict=True))
        for draw in zip(*errors.values(), strict=True)
    ]
    assert fmean(held) == pytest.approx(0.95, abs=0.002)


def test_prompts_that_gain_differently_widen_the_interval_as_a_t_of_their_number_does() -> None:
    gains = {f"p{number}": number / 10 for number in range(6)}
    values = {("chat", 1): {name: [0, gain, gain, 0] for name, gain in gains.items()}}
    drawn = draw_errors(find_noise(ABBA, values), Random(6), 20_000)[PAIR, ("chat", 1)]
    standard_error = pstdev(gains.values()) / sqrt(5)
    assert find_quantile([abs(error) for error in drawn], 0.95) == pytest.approx(
        2.571 * standard_error, rel=0.1
    )


def test_a_prompt_has_the_same_luck_at_every_concurrency() -> None:
    gains = {f"p{number}": [0.0, number / 10, number / 10, 0.0] for number in range(6)}
    errors = draw_errors(find_noise(ABBA, {("a", 1): gains, ("a", 9): gains}), Random(7), 50)
    assert errors[PAIR, ("a", 1)] == errors[PAIR, ("a", 9)]


def test_more_rounds_narrow_all_but_what_prompts_have_of_their_own() -> None:
    chance = Random(8)
    gains = [0.3 * number for number in range(8)]

    def foresee(*gains: float) -> tuple[float, float]:
        rows = {
            f"p{number}": [gain * (arm == "B") + chance.gauss(0, 0.05) for arm in ABBA.arms]
            for number, gain in enumerate(gains)
        }
        noise = find_noise(ABBA, {("chat", 1): rows})
        now, then = (
            find_half_widths(draw_errors(one, Random(8), 2000))[PAIR, ("chat", 1)]
            for one in (noise, noise.foresee(12))
        )
        return now, then

    now, then = foresee(*gains)
    assert then > 0.8 * now
    now, then = foresee(*[0.0] * 8)
    assert then < 0.5 * now


def test_all_kinds_have_a_row_where_there_are_several() -> None:
    cells = [("chat", 1), ("chat", 4), ("code", 1)]
    assert list_rows(cells)[None, 1] == [("chat", 1), ("code", 1)]
    assert list_rows(cells)[None, 4] == [("chat", 4)]
    assert list(list_rows(cells[:2])) == cells[:2]


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
