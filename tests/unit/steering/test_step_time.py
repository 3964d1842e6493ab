"""Costs come out of times whose errors are shares, even if a few of the times are wrong."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as some

from slipstream.steering.step_time import (
    PILOT_REQUESTS,
    ExpectedTime,
    StepCost,
    StepFit,
    StepRow,
    fit_steps,
    t_quantile,
)

CELLS = [(n, k) for n in (1.0, 2.0, 5.0, 16.0) for k in (2, 7, 15)]
costs = some.builds(
    StepCost,
    fixed=some.floats(0.1, 10),
    per_sequence=some.floats(0.001, 1),
    per_token=some.floats(0.001, 1),
)


def take(cost: StepCost, noise: float = 0.0, seed: int = 0) -> list[StepRow]:
    chance = random.Random(seed)
    return [StepRow(n, k, cost.predict(n, k) * (1 + chance.gauss(0, noise))) for n, k in CELLS]


def fit(rows: list[StepRow]) -> StepFit:
    found = fit_steps(rows)
    assert found is not None
    return found


@given(costs)
def test_costs_without_noise_are_found(cost: StepCost) -> None:
    found = fit(take(cost))
    values = (found.cost.fixed, found.cost.per_sequence, found.cost.per_token)
    assert values == pytest.approx((cost.fixed, cost.per_sequence, cost.per_token), rel=1e-6)
    assert found.residuals == pytest.approx([0] * len(CELLS), abs=1e-6)
    assert found.degrees_of_freedom == len(CELLS) - 3
    assert (found.cost.most_sequences, found.cost.most_tokens) == (16, 256)


@given(costs, some.integers(0, len(CELLS) - 1), some.sampled_from((0.2, 0.6, 2.0, 9.0)))
def test_one_wild_value_is_set_aside(cost: StepCost, wild: int, times: float) -> None:
    rows = take(cost, 0.005, wild)
    rows[wild] = rows[wild]._replace(seconds=rows[wild].seconds * times)
    found = fit(rows)
    assert (found.cost.points, found.cost.set_aside) == (len(rows) - 1, 1)
    for n, k in CELLS:
        assert found.cost.predict(n, k) == pytest.approx(cost.predict(n, k), rel=0.02)


def test_where_a_third_is_wild_nothing_is_set_aside() -> None:
    rows = take(StepCost(fixed=1, per_token=0.01))
    found = fit(
        [row._replace(seconds=row.seconds * (3 if n % 3 else 1)) for n, row in enumerate(rows)]
    )
    assert found.cost.set_aside == 0
    assert max(map(abs, found.residuals)) > 0.3


@given(
    some.lists(some.floats(1e-4, 1e2), min_size=len(CELLS), max_size=len(CELLS)),
    some.lists(some.sampled_from((0, 5, 5000)), min_size=len(CELLS), max_size=len(CELLS)),
)
def test_no_cost_is_negative_whatever_was_measured(times: list[float], prompts: list[int]) -> None:
    cells = zip(CELLS, times, prompts, strict=True)
    found = fit([StepRow(n, k, time, 1, tokens) for (n, k), time, tokens in cells])
    assert min(found.cost.fixed, found.cost.per_sequence, found.cost.per_token) >= 0
    assert found.per_prompt_token >= 0
    assert min(found.cost.covariance[place][place] for place in range(3)) > 0


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [StepRow(2, 0, 1.0)] * 5,
        [StepRow(n, 7, 1.0) for n in (1, 2)][:1],
        [StepRow(1, 2, 1.0), StepRow(4, 7, 1.0)],
    ],
)
def test_rows_that_cannot_tell_costs_apart_give_nothing(rows: list[StepRow]) -> None:
    assert fit_steps(rows) is None


@pytest.mark.parametrize(
    ("lengths", "columns"), [((0,), [0, 1]), ((7, 7.4), [0, 2]), ((3, 7), [0, 1, 2])]
)
def test_the_costs_that_are_fitted_are_those_that_rows_tell_apart(
    lengths: tuple[float, ...], columns: list[int]
) -> None:
    rows = [StepRow(n, k, 0.1 + 0.01 * n * (k + 1)) for n in (1, 4, 9, 16) for k in lengths]
    alike = fit([row._replace(prompt_tokens=5) for row in rows])
    assert fit(rows).columns == alike.columns == columns
    read = [
        row._replace(prompt_tokens=tokens, seconds=row.seconds + 1e-3 * tokens)
        for row, tokens in zip(rows, (0, 50, 20, 90) * len(lengths), strict=True)
    ]
    prompts = fit(read)
    assert prompts.columns == [*columns, 3]
    assert prompts.per_prompt_token == pytest.approx(1e-3)


def test_a_value_far_from_the_rows_is_less_sure() -> None:
    found = fit(take(StepCost(fixed=1, per_sequence=0.01, per_token=0.01)))
    near, far = (found.cost.find_error(n, 7) for n in (4, 64))
    assert 0 < near < far / 2
    assert [found.cost.is_far(n, 15) for n in (16, 24, 25)] == [False, False, True]


@pytest.mark.parametrize(
    ("degrees", "quantile"), [(1, 12.7062), (2, 4.3027), (10, 2.2281), (5000, 1.9604)]
)
def test_few_degrees_of_freedom_widen_an_interval(degrees: int, quantile: float) -> None:
    assert t_quantile(degrees) == pytest.approx(quantile, abs=1e-4)


def draw(chance: random.Random) -> tuple[tuple[float, ...], float]:
    batch, length = chance.uniform(1, 16), chance.uniform(0, 7)
    features = (1.0, batch, batch * length)
    seconds = 0.02 + 0.002 * batch + 0.0005 * batch * length
    return features, seconds * chance.uniform(0.9, 1.1)


def test_nothing_is_said_during_the_pilot() -> None:
    model, chance = ExpectedTime(3), random.Random(1)
    for _ in range(PILOT_REQUESTS):
        assert model.predict((1.0, 2.0, 2.0)) is None
        model.learn(*draw(chance))
    assert model.predict((1.0, 2.0, 2.0)) is not None


def test_load_and_length_are_told_apart() -> None:
    model, chance = ExpectedTime(3), random.Random(1)
    for _ in range(500):
        model.learn(*draw(chance))
    assert model.predict((1.0, 1.0, 0.0)) == pytest.approx(0.022, rel=0.05)
    assert model.predict((1.0, 16.0, 112.0)) == pytest.approx(0.108, rel=0.05)


def test_stalls_move_it_little_and_nonsense_not_at_all() -> None:
    model, chance = ExpectedTime(3), random.Random(1)
    for _ in range(500):
        model.learn(*draw(chance))
    for number in range(500):
        features, seconds = draw(chance)
        model.learn(features, 1e6 if number % 50 == 0 else seconds)
        model.learn(features, seconds)
    assert model.predict((1.0, 8.0, 24.0)) == pytest.approx(0.048, rel=0.1)


def test_it_stays_above_zero_where_nothing_like_it_was_seen() -> None:
    model = ExpectedTime(2)
    for number in range(200):
        batch = 1.0 + number % 4
        model.learn((1.0, batch), 0.1 - 0.02 * batch)
    assert (model.predict((1.0, 100.0)) or 0) > 0
    model.learn((1.0, 1.0), 0.0)
    assert (model.predict((1.0, 1.0)) or 0) > 0
