"""Costs come out of times whose errors are shares, even if a few of the times are wrong."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as some

from slipstream.tuning.least_squares import find_leverage, fit_shares, invert, t_quantile

ROWS = [(1.0, n, n * (k + 1.0)) for n in (1.0, 2.0, 5.0, 16.0) for k in (2, 7, 15)]
costs = some.tuples(some.floats(0.1, 10), some.floats(0.001, 1), some.floats(0.001, 1))


def take(row: tuple[float, ...], cost: tuple[float, ...]) -> float:
    return sum(part * times for part, times in zip(cost, row, strict=True))


@given(costs)
def test_costs_without_noise_are_found(cost: tuple[float, float, float]) -> None:
    fit = fit_shares(ROWS, [take(row, cost) for row in ROWS])
    assert fit is not None
    assert fit.coefficients == pytest.approx(cost, rel=1e-6)
    assert fit.residuals == pytest.approx([0] * len(ROWS), abs=1e-6)
    assert fit.degrees_of_freedom == len(ROWS) - 3


@given(costs, some.integers(0, len(ROWS) - 1), some.sampled_from((0.2, 0.6, 2.0, 9.0)))
def test_one_wild_value_is_set_aside(
    cost: tuple[float, float, float], wild: int, times: float
) -> None:
    chance = Random(wild)
    values = [take(row, cost) * (1 + chance.gauss(0, 0.005)) for row in ROWS]
    values[wild] *= times
    fit = fit_shares(ROWS, values)
    assert fit is not None
    assert set(range(len(ROWS))) - set(fit.kept) == {wild}
    assert [take(row, fit.coefficients) for row in ROWS] == pytest.approx(
        [take(row, cost) for row in ROWS], rel=0.02
    )


def test_where_a_third_is_wild_nothing_is_set_aside() -> None:
    values = [take(row, (1, 0, 0.01)) * (3 if number % 3 else 1) for number, row in enumerate(ROWS)]
    fit = fit_shares(ROWS, values)
    assert fit is not None
    assert fit.kept == tuple(range(len(ROWS)))
    assert max(map(abs, fit.residuals)) > 0.3


@given(some.lists(some.floats(0.5, 2), min_size=len(ROWS), max_size=len(ROWS)))
def test_no_cost_is_negative_whatever_was_measured(values: list[float]) -> None:
    fit = fit_shares(ROWS, values)
    assert fit is not None
    assert min(fit.coefficients) >= 0
    assert min(fit.covariance[place][place] for place in range(3)) > 0


@pytest.mark.parametrize("rows", [[(1.0, 2.0)] * 5, [(1.0, n, 8.0 * n) for n in (1.0, 2.0, 4.0)]])
def test_rows_that_cannot_tell_costs_apart_give_nothing(rows: list[tuple[float, ...]]) -> None:
    assert fit_shares(rows, [1.0] * len(rows)) is None


def test_the_inverse_of_a_matrix_times_it_is_one() -> None:
    matrix = [[2.0, 1.0, 300.0], [1.0, 3.0, 20.0], [300.0, 20.0, 90000.0]]
    inverse = invert(matrix)
    assert inverse is not None
    for i, line in enumerate(inverse):
        product = [sum(a * matrix[k][j] for k, a in enumerate(line)) for j in range(3)]
        assert product == pytest.approx([float(i == j) for j in range(3)], abs=1e-9)


def test_a_value_far_from_the_rows_is_less_sure() -> None:
    fit = fit_shares(ROWS, [take(row, (1, 0.01, 0.01)) for row in ROWS])
    assert fit is not None
    near, far = (find_leverage((1, n, 8 * n), fit.covariance) for n in (4, 64))
    assert 0 < near < far / 20


# The table of every textbook: two-sided 95 % and 99 %.
T_TABLE = {
    1: (12.7062, 63.6567),
    2: (4.3027, 9.9248),
    3: (3.1824, 5.8409),
    4: (2.7764, 4.6041),
    5: (2.5706, 4.0321),
    6: (2.4469, 3.7074),
    9: (2.2622, 3.2498),
    10: (2.2281, 3.1693),
    29: (2.0452, 2.7564),
    30: (2.0423, 2.7500),
    120: (1.9799, 2.6174),
}


@pytest.mark.parametrize("degrees", T_TABLE)
def test_few_degrees_of_freedom_widen_an_interval(degrees: int) -> None:
    found = (t_quantile(degrees), t_quantile(degrees, 0.99))
    assert found == pytest.approx(T_TABLE[degrees], abs=1e-4)


def test_many_degrees_of_freedom_are_a_normal_distribution() -> None:
    assert t_quantile(5000) == pytest.approx(1.95996, rel=1e-3)
    assert t_quantile(7, 0.5) == pytest.approx(0.7111, abs=1e-4)
