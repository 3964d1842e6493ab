"""The learning rate rises in a line and falls along half a cosine."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from slipstream.training.settings import Schedule

SCHEDULES = some.builds(
    Schedule,
    steps=some.integers(1, 5000),
    learning_rate=some.floats(1e-6, 1),
    warm_up=some.floats(0, 0.5),
)


def test_the_rate_rises_in_equal_steps_to_the_one_that_was_asked_for() -> None:
    schedule = Schedule(steps=100, learning_rate=1e-3, warm_up=0.04)
    rates = [schedule.rate_at(step) for step in range(5)]
    assert rates == pytest.approx([0.25e-3, 0.5e-3, 0.75e-3, 1e-3, 1e-3])


def test_half_way_down_the_rate_is_half_way_to_a_twentieth() -> None:
    schedule = Schedule(steps=110, learning_rate=1e-3, warm_up=10 / 110)
    assert schedule.rate_at(60) == pytest.approx((1 + 0.05) / 2 * 1e-3)
    assert schedule.rate_at(110) == pytest.approx(0.05e-3)


@given(SCHEDULES)
def test_the_rate_is_never_none_and_never_more_than_asked_for(schedule: Schedule) -> None:
    for step in {0, 1, schedule.steps // 50, schedule.steps // 2, schedule.steps - 1}:
        assert 0 < schedule.rate_at(step) <= schedule.learning_rate * (1 + 1e-9)


@given(SCHEDULES, some.data())
def test_after_the_rise_the_rate_only_falls_and_ends_above_a_twentieth(
    schedule: Schedule, data: some.DataObject
) -> None:
    rise = max(1, round(schedule.steps * schedule.warm_up))
    first = data.draw(some.integers(rise, max(rise, schedule.steps - 1)))
    second = data.draw(some.integers(first, max(rise, schedule.steps - 1)))
    floor = schedule.learning_rate / 20
    assert schedule.rate_at(first) >= schedule.rate_at(second) >= floor * (1 - 1e-9)


def test_a_single_step_is_taken_at_the_full_rate() -> None:
    assert Schedule(steps=1, learning_rate=0.5).rate_at(0) == 0.5
