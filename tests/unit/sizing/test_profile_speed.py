"""A tuning's profile and a controller's state become the speed of a replica."""

import pytest

from slipstream.errors import InvalidInputError
from slipstream.sizing.engine_speed import make_yield
from slipstream.sizing.profile_speed import take_profile, take_state
from slipstream.steering.state import SteeringState
from tests.unit.steering.states import make_state
from tests.unit.tuning.test_profile import tune


def test_a_profile_predicts_the_same_speeds_as_the_model_it_came_from() -> None:
    profile = tune()
    speed = take_profile(profile, (40.0, 60.0, 50.0), "tuning.json")
    assert speed.lengths == tuple(profile.model.lengths)
    assert speed.start_seconds == 50.0
    assert speed.error == profile.choice.prediction.error
    for length in (0, 3, 15):
        for load in (1, 8):
            predicted = profile.model.predict(length, load)
            seconds = speed.find_cost(length).predict(load, length)
            assert seconds == pytest.approx(predicted.seconds_per_step)
            tokens = 1 / sum(
                share / speed.count_tokens_per_step(kind, length)
                for kind, share in profile.shares.items()
            )
            assert tokens == pytest.approx(predicted.tokens_per_step, rel=0.01)


def test_requests_differ_no_more_than_chance_leaves_over() -> None:
    by_position = (0.5, 0.25)
    few = make_yield("code", 2, by_position, [(8, 1.6), (8, 1.9), (8, 1.75)])
    many = make_yield("code", 2, by_position, [(900, 1.4), (900, 2.1), (900, 1.75)])
    assert max(few.factors) - min(few.factors) < 0.02
    assert max(many.factors) - min(many.factors) > 0.35


def test_a_controller_tells_a_line_through_its_lengths() -> None:
    state = make_lengths(((0, 0.10), (1, 0.11), (3, 0.13)))
    speed = take_state(state, 16, "steering.json")
    assert speed.drafting is not None
    assert speed.drafting.predict(4, 3) == pytest.approx(0.13)
    assert speed.plain is not None
    assert speed.error >= 0.3
    assert any("4 sequences" in caution for caution in speed.cautions)


def test_a_controller_that_knows_one_length_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="fewer than two draft lengths"):
        take_state(make_lengths(((0, 0.10),)), 16, "steering.json")


def make_lengths(times: tuple[tuple[int, float], ...]) -> SteeringState:
    lengths = [
        {
            "draft_length": length,
            "step_seconds": seconds,
            "tokens_per_step": 1.0,
            "tokens_per_second": 1.0,
            "steps": 50,
        }
        for length, seconds in times
    ]
    document = make_state().model_dump(mode="json") | {"running": 4, "lengths": lengths}
    return SteeringState.model_validate(document)
