"""A step's time from a few loads: known costs are found, the error holds, the rest is refused."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as some

from slipstream.errors import InvalidInputError
from slipstream.tuning.experiment import plan_starts
from slipstream.tuning.step_time import StepPoint, StepTime, fit_step_time
from tests.unit.tuning.synthetic_engine import SyntheticEngine

ENGINE = SyntheticEngine()
STARTS = plan_starts(15, 16, loads=7, starts=2, runner="V1")
LOADS = [(load, length) for load in (1, 3, 8, 16) for length in (0, 1, 4, 15)]
# Median times per token, in ms, of Qwen3.6-27B on one GB10: README of AEON-7/vllm-dflash.
PUBLISHED = {"code": (15.2, 21.2, 29.4, 47.1), "prose": (33.6, 46.8, 64.4, 104.0)}


def point(sequences: float, length: float, seconds: float = 0.1) -> StepPoint:
    return StepPoint(
        kind="code",
        concurrency=round(sequences),
        sequences=sequences,
        draft_length=length,
        seconds_per_step=seconds,
    )


def test_known_costs_are_recovered_within_their_errors() -> None:
    for seed in range(10):
        fit = fit_step_time(ENGINE.run(STARTS, Random(seed)))
        assert fit.plain is not None
        for estimate, truth in (
            (fit.drafting.fixed, ENGINE.fixed),
            (fit.drafting.by_sequence, ENGINE.by_sequence),
            (fit.drafting.by_token, ENGINE.by_token),
            (fit.plain.fixed, ENGINE.plain_fixed),
            (fit.plain.by_sequence, ENGINE.plain_by_sequence),
        ):
            assert abs(estimate.value - truth) <= 4 * estimate.error + 1e-3 * ENGINE.fixed
        assert fit.spread == pytest.approx(ENGINE.noise, rel=0.6)


def test_the_error_holds_what_is_measured_next() -> None:
    chance, held, off = Random(1), [], []
    for _ in range(60):
        fit = fit_step_time(ENGINE.run(STARTS, chance))
        for load, length in LOADS:
            seconds, spread = fit.predict(load, length)
            found = ENGINE.measure("code", load, length, chance).seconds_per_step
            held.append(abs(found / seconds - 1) <= fit.student * spread)
            off.append(abs(seconds / ENGINE.take_seconds(load, length) - 1))
    assert 0.91 <= sum(held) / len(held) <= 0.98
    assert sorted(off)[int(0.95 * len(off))] < 0.035


def test_two_loads_that_went_wrong_do_no_harm() -> None:
    points = ENGINE.run(STARTS, Random(3))
    for number in (2, 9):
        slow = 2.5 * points[number].seconds_per_step
        points[number] = points[number].model_copy(update={"seconds_per_step": slow})
    fit = fit_step_time(points)
    assert "2 of 14 loads fit no line and were set aside" in fit.cautions
    for load, length in LOADS:
        seconds, _ = fit.predict(load, length)
        assert seconds == pytest.approx(ENGINE.take_seconds(load, length), rel=0.06)


def test_published_rates_of_a_gb10_lie_on_a_line() -> None:
    tokens = {"code": 5.67, "prose": 2.63}
    points = [
        point(load, 15, time * tokens[kind] / 1000)
        for kind, times in PUBLISHED.items()
        for load, time in zip((1, 4, 8, 16), times, strict=True)
    ]
    fit = fit_step_time(points)
    assert fit.spread < 0.03
    share = fit.drafting.by_token.value / fit.drafting.fixed.value
    assert share == pytest.approx(0.01, rel=0.1)


def test_one_draft_length_is_taken_to_cost_by_token_and_that_is_said() -> None:
    engine = SyntheticEngine(by_sequence=0, noise=0)
    fit = fit_step_time([engine.measure("code", n, 14.99, Random(0)) for n in (1, 2, 5, 16)])
    assert "one draft length was measured" in fit.cautions[0]
    assert fit.drafting.by_sequence.value == 0
    assert fit.predict(8, 3)[0] == pytest.approx(engine.take_seconds(8, 3), rel=1e-6)


def test_noise_that_is_no_noise_is_said() -> None:
    fit = fit_step_time(SyntheticEngine(noise=0.2).run(STARTS, Random(5)))
    assert any("off the fitted step time by" in caution for caution in fit.cautions)


@pytest.mark.parametrize(
    ("points", "why"),
    [
        ([], "one batch size, or none"),
        ([point(4, 7), point(4.4, 7), point(4, 3), point(4.1, 3), point(4, 1)], "one batch size"),
        ([point(1, 7), point(8, 7, 0.2), point(8, 2)], "3 loads are too few"),
        ([point(1, 7), point(8, 2)], "do not determine 3 costs"),
        ([point(1, 7), point(4, 1), point(1, 7), point(4, 1)], "do not determine 3 costs"),
        ([*(point(n, k) for n in (1, 4, 8) for k in (2, 7)), point(1, 0)], "without drafts"),
    ],
)
def test_too_little_is_refused(points: list[StepPoint], why: str) -> None:
    with pytest.raises(InvalidInputError, match=why):
        fit_step_time(points)


def test_without_a_plain_start_nothing_is_said_about_plain() -> None:
    fit = fit_step_time([one for one in ENGINE.run(STARTS, Random(0)) if one.draft_length])
    assert fit.plain is None
    with pytest.raises(InvalidInputError, match="no engine without a drafter"):
        fit.predict(1, 0)


def test_steps_much_larger_than_all_measured_are_far() -> None:
    fit = fit_step_time(ENGINE.run(STARTS, Random(0)))
    assert [fit.is_far(n, 15) for n in (1, 16, 24, 25)] == [False, False, False, True]
    assert [fit.is_far(n, 0) for n in (16, 24, 25)] == [False, False, True]
    near, far = (fit.predict(n, 15)[1] for n in (8, 64))
    assert far > near


@given(
    some.lists(some.floats(0.02, 0.5), min_size=12, max_size=12),
    some.floats(1, 64),
    some.integers(1, 15),
)
def test_a_larger_step_never_takes_less_whatever_was_measured(
    seconds: list[float], sequences: float, length: int
) -> None:
    cells = [(n, k) for n in (1, 4, 8, 16) for k in (0, 5, 15)]
    points = [point(n, k, time) for (n, k), time in zip(cells, seconds, strict=True)]
    fit = fit_step_time(points)
    here, _ = fit.predict(sequences, length)
    assert 0 < here <= fit.predict(sequences + 1, length)[0]
    assert here <= fit.predict(sequences, length + 1)[0]
    assert fit.predict(sequences, 0)[0] <= fit.predict(sequences + 1, 0)[0]
    assert StepTime.model_validate_json(fit.to_json()) == fit
