"""What a time depends on is learned from the times, and a stall teaches little."""

import random

import pytest

from slipstream.steering.expected_time import PILOT_REQUESTS, ExpectedTime


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
