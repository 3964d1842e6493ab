"""From what an engine answered to a choice, and to whether the choice was right."""

from random import Random

import pytest

from slipstream.errors import InvalidInputError
from slipstream.tuning.acceptance import DraftAcceptance
from slipstream.tuning.experiment import (
    EngineStart,
    plan_starts,
    read_acceptance,
    read_point,
)
from slipstream.tuning.goal import Goal, parse_goal
from slipstream.tuning.profile import SpeedProfile, confirm, make_profile
from slipstream.tuning.speed_model import StepPoint
from tests.unit.reporting.records import make_conditions
from tests.unit.tuning.synthetic_engine import SyntheticEngine, serve

ENGINE = SyntheticEngine()
SHARES = {"code": 0.5, "prose": 0.5}
LOAD = 8
LENGTHS = range(16)


def measure(
    engine: SyntheticEngine, starts: tuple[EngineStart, ...], chance: Random
) -> tuple[list[StepPoint], list[DraftAcceptance]]:
    """Serve all loads of all starts and read them, as a driver does."""
    points: list[StepPoint] = []
    acceptance: list[DraftAcceptance] = []
    for start in starts:
        loads = [
            serve(engine, kind, load, start, chance)
            for load in start.concurrencies
            for kind in engine.kinds
        ]
        points += [read_point(samples, drafts=bool(start.draft_length)) for samples in loads]
        if start.draft_length:
            lengths = {length for *_, length in start.schedule} or {start.draft_length}
            acceptance += read_acceptance(loads, lengths)
    return points, acceptance


def tune(seed: int = 0, load: int = LOAD) -> SpeedProfile:
    starts = plan_starts(15, 16, runner="V1")
    points, acceptance = measure(ENGINE, starts, Random(seed))
    return make_profile(
        make_conditions(host=None),
        points,
        acceptance,
        goal=Goal(name="latency"),
        concurrency=load,
        max_sequences=16,
    )


def test_a_profile_loads_back_and_holds_every_length_at_the_loads_people_ask_for() -> None:
    profile = tune()
    assert SpeedProfile.model_validate_json(profile.to_json()) == profile
    assert {one.draft_length for one in profile.predictions} == set(LENGTHS)
    assert {one.concurrency for one in profile.predictions} == {1, 2, 4, 8, 16, 32, 64}
    model = profile.model
    for one in profile.predictions:
        assert one == model.predict(one.draft_length, one.concurrency)
    assert profile.shares == SHARES
    assert profile.confirmations == ()


def serve_lengths(profile: SpeedProfile, engine: SyntheticEngine, seed: int = 9) -> SpeedProfile:
    starts = tuple(EngineStart(length, (LOAD,)) for length in profile.choice.to_confirm)
    return confirm(profile, *measure(engine, starts, Random(seed)))


def test_confirming_tells_by_how_much_the_prediction_was_off() -> None:
    profile = tune()
    confirmed = serve_lengths(profile, ENGINE)
    assert [one.draft_length for one in confirmed.confirmations] == list(profile.choice.to_confirm)
    for one in confirmed.confirmations:
        assert abs(one.off_by) < 0.1
        ratio = one.measured_seconds_per_token / one.predicted_seconds_per_token
        assert one.off_by == pytest.approx(ratio - 1)
    assert confirmed.choice.to_confirm == ()
    assert confirmed.choice.reasons[-1].startswith("measured: ")
    assert SpeedProfile.model_validate_json(confirmed.to_json()) == confirmed


def test_what_was_measured_beats_what_was_foretold() -> None:
    profile = tune()
    chosen = profile.choice.draft_length
    slower = measure(SyntheticEngine(fixed=0.2), (EngineStart(chosen, (LOAD,)),), Random(1))
    other = chosen - 1
    faster = measure(ENGINE, (EngineStart(other, (LOAD,)),), Random(2))
    confirmed = confirm(profile, [*slower[0], *faster[0]], [*slower[1], *faster[1]])
    assert confirmed.choice.draft_length == other
    assert confirmed.choice.prediction == profile.model.predict(other, LOAD)
    assert [one.off_by > 0.5 for one in confirmed.confirmations] == [False, True]


def test_a_limit_is_judged_by_what_was_measured() -> None:
    profile = tune().model_copy(update={"goal": parse_goal(["tpot<60ms@p50"])})
    chosen = EngineStart(profile.choice.draft_length, (LOAD,))
    engines = (ENGINE, SyntheticEngine(fixed=0.3))
    good, bad = (confirm(profile, *measure(engine, (chosen,), Random(1))) for engine in engines)
    assert good.choice.meets_goal
    assert not bad.choice.meets_goal
    assert (
        (good.choice.slow_seconds_per_token or 0) < 0.06 < (bad.choice.slow_seconds_per_token or 0)
    )


def test_a_plain_engine_can_be_confirmed_too() -> None:
    profile = tune()
    starts = (EngineStart(0, (LOAD,)), EngineStart(4, (LOAD,)))
    confirmed = confirm(profile, *measure(ENGINE, starts, Random(3)))
    assert [one.draft_length for one in confirmed.confirmations] == [0, 4]
    assert confirmed.choice.draft_length == 4
    assert abs(confirmed.confirmations[0].off_by) < 0.06


def test_a_confirmation_must_have_every_kind() -> None:
    points, acceptance = measure(ENGINE, (EngineStart(4, (LOAD,)),), Random(3))
    code = [point for point in points if point.kind == "code"]
    with pytest.raises(InvalidInputError, match="not measured for every kind"):
        confirm(tune(), code, acceptance)
