"""The core's report has its bounds, and is of a moment."""

from typing import Any

from slipstream.steering.state import FRESH_SECONDS, KindCounts, SteeringState
from tests.unit.steering.states import make_state


def test_a_report_loads_back_and_is_of_its_moment() -> None:
    state = make_state(at=1000)
    assert state.kinds["code"].tokens_per_step == 4000 / 1500
    assert SteeringState.model_validate_json(state.to_json()) == state
    assert state.is_fresh(1000 + FRESH_SECONDS)
    assert not state.is_fresh(1001 + FRESH_SECONDS)
    assert not state.is_fresh(999 - FRESH_SECONDS)


def make_counts(**changes: Any) -> KindCounts:
    return make_state().kinds["code"].model_copy(update=changes)


def test_counts_in_between_are_differences() -> None:
    before = make_counts(requests=10, steps=1000, drafts=1000, accepted=(1000, 800))
    recent = make_counts(copies=3, copied=90, copied_accepted=60).since(before)
    assert (recent.copies, recent.copied, recent.copied_accepted) == (3, 90, 60)
    assert (recent.requests, recent.steps, recent.drafts) == (2, 500, 400)
    assert recent.accepted == (100, 0, 500, 300, 200, 100, 50)


def test_counts_of_an_engine_that_was_started_anew_are_whole() -> None:
    assert make_counts().since(make_counts(steps=9999)) == make_counts()
    assert make_counts().since(None) == make_counts()
