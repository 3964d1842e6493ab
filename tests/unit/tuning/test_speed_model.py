"""Step time and acceptance make times per token; kinds are averaged over their tokens."""

from random import Random

import pytest

from slipstream.errors import InvalidInputError
from slipstream.tuning.acceptance import DraftAcceptance, RequestDrafts
from slipstream.tuning.experiment import plan_starts
from slipstream.tuning.speed_model import SpeedModel, StepPoint, fit_step_time
from tests.unit.tuning.synthetic_engine import SyntheticEngine

ENGINE = SyntheticEngine()
STARTS = plan_starts(15, 32, runner="V1")
FEW = plan_starts(15, 16, runner="V1")
LOADS = [(load, length) for load in (1, 3, 8, 16) for length in (0, 1, 4, 15)]
# Median times per token, in ms, of Qwen3.6-27B on one GB10: README of AEON-7/vllm-dflash.
PUBLISHED = {"code": (15.2, 21.2, 29.4, 47.1), "prose": (33.6, 46.8, 64.4, 104.0)}
SHARES = {"code": 0.5, "prose": 0.5}


def model(seed: int = 0, *, prompts: int = 40, sequences: int = 32) -> SpeedModel:
    chance = Random(seed)
    points = ENGINE.run(STARTS, chance)
    drafts = tuple(ENGINE.draft_all(15, chance, prompts=prompts))
    return SpeedModel(fit_step_time(points), drafts, SHARES, sequences)


def always(kind: str, accepted: int) -> DraftAcceptance:
    """Make drafts of 3 of which always as many are accepted."""
    row = RequestDrafts(
        prompt_id=kind, drafts=100, accepted=(100,) * accepted + (0,) * (3 - accepted)
    )
    return DraftAcceptance(kind=kind, draft_length=3, requests=(row,))


def test_every_draft_length_is_foretold_within_a_few_percent_and_its_error() -> None:
    truth = {
        (length, load): ENGINE.token_seconds(SHARES, length, load)
        for length in (0, 1, 3, 7, 15)
        for load in (1, 4, 16, 32)
    }
    held, off = 0, []
    for seed in range(12):
        made = model(seed)
        for (length, load), exact in truth.items():
            found = made.predict(length, load)
            assert found.tokens_per_second == pytest.approx(load / found.seconds_per_token)
            off.append(abs(found.seconds_per_token / exact - 1))
            held += off[-1] <= found.error
    assert held / len(off) >= 0.95
    assert sorted(off)[len(off) // 2] < 0.02
    assert max(off) < 0.09


def test_a_mixture_takes_the_time_of_its_tokens() -> None:
    steps = model().steps
    mixed = SpeedModel(steps, (always("code", 3), always("prose", 0)), SHARES, 32)
    alone = {
        kind: SpeedModel(steps, mixed.acceptance, {kind: 1.0}, 32).predict(3, 4) for kind in SHARES
    }
    # A token of code takes a quarter of a step and one of prose a whole: 5/8 on average.
    assert alone["code"].tokens_per_step == pytest.approx(4)
    assert mixed.predict(3, 4).tokens_per_step == pytest.approx(8 / 5)
    assert mixed.predict(3, 4).seconds_per_token == pytest.approx(
        sum(one.seconds_per_token for one in alone.values()) / 2
    )


def test_sequences_beyond_the_limit_wait() -> None:
    made = model(sequences=16)
    full, beyond = made.predict(3, 16), made.predict(3, 64)
    assert beyond.seconds_per_token == full.seconds_per_token
    assert beyond.tokens_per_second == full.tokens_per_second
    assert not beyond.far


def test_a_load_far_beyond_the_measured_ones_says_so() -> None:
    made = model(sequences=128)
    assert not made.predict(15, 32).far
    assert made.predict(15, 64).far
    assert made.predict(15, 64).error > made.predict(15, 32).error


def test_the_slow_requests_are_those_with_fewer_tokens_a_step() -> None:
    steps = model().steps
    made = SpeedModel(steps, (always("code", 3), always("prose", 0)), SHARES, 32)
    step = steps.predict(4, 3)[0]
    assert made.predict_slow(3, 4, 0.5) == pytest.approx(step / 4)
    assert made.predict_slow(3, 4, 0.51) == pytest.approx(step)
    assert made.predict_slow(0, 4, 0.99) == pytest.approx(steps.predict(4, 0)[0])
    slow = [model().predict_slow(7, 8, share / 100) for share in range(5, 100, 30)]
    assert slow == sorted(slow)


def point(sequences: float, length: float, seconds: float = 0.1) -> StepPoint:
    return StepPoint(
        kind="code",
        concurrency=round(sequences),
        sequences=sequences,
        draft_length=length,
        seconds_per_step=seconds,
    )


PLAIN = [point(1, 0, 0.071), point(16, 0, 0.086)]


def test_known_costs_are_recovered_within_their_errors() -> None:
    for seed in range(10):
        fit = fit_step_time(ENGINE.run(FEW, Random(seed)))
        truth = (ENGINE.fixed, ENGINE.per_sequence, ENGINE.per_token)
        plain = (ENGINE.plain_fixed, ENGINE.plain_per_sequence, 0.0)
        for cost, exact in ((fit.drafting, truth), (fit.plain, plain)):
            for (value, error), one in zip(cost.list_costs(fit.spread), exact, strict=True):
                assert abs(value - one) <= 4 * error + 1e-3 * ENGINE.fixed
        assert fit.spread == pytest.approx(ENGINE.noise, rel=0.6)
        assert fit.cautions == ()
    assert fit_step_time(SyntheticEngine(noise=0.2).run(FEW, Random(5))).cautions


def test_the_error_holds_what_is_measured_next() -> None:
    chance, held, off = Random(1), [], []
    for _ in range(60):
        fit = fit_step_time(ENGINE.run(FEW, chance))
        for load, length in LOADS:
            seconds, spread = fit.predict(load, length)
            found = ENGINE.measure("code", load, length, chance).seconds_per_step
            held.append(abs(found / seconds - 1) <= fit.student * spread)
            off.append(abs(seconds / ENGINE.take_seconds(load, length) - 1))
    assert 0.91 <= sum(held) / len(held) <= 0.98
    assert sorted(off)[int(0.95 * len(off))] < 0.035


def test_two_loads_that_went_wrong_do_no_harm() -> None:
    points = ENGINE.run(FEW, Random(3))
    for number in (2, 9):
        slow = 2.5 * points[number].seconds_per_step
        points[number] = points[number].model_copy(update={"seconds_per_step": slow})
    fit = fit_step_time(points)
    assert "2 of 14 loads fit no line and were left out" in fit.cautions
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
    fit = fit_step_time([*points, *PLAIN])
    assert fit.spread < 0.03
    assert fit.drafting.per_token / fit.drafting.fixed == pytest.approx(0.01, rel=0.1)


def test_one_draft_length_is_taken_to_cost_by_token_and_that_is_said() -> None:
    engine = SyntheticEngine(per_sequence=0, noise=0)
    points = [engine.measure("code", n, 14.99, Random(0)) for n in (1, 2, 5, 16)]
    fit = fit_step_time([*points, *PLAIN])
    assert "one draft length was measured" in fit.cautions[0]
    assert fit.drafting.per_sequence == 0
    assert fit.predict(8, 3)[0] == pytest.approx(engine.take_seconds(8, 3), rel=1e-6)


@pytest.mark.parametrize(
    ("points", "why"),
    [
        ([], "one batch size, or none"),
        ([point(4, 7), point(4.4, 7), point(4, 3), point(4.1, 3), point(4, 1)], "one batch size"),
        ([point(1, 7), point(8, 7, 0.2), point(8, 2), *PLAIN], "5 loads are too few"),
        ([point(1, 7), point(8, 2), *PLAIN], "do not determine the costs"),
        ([point(1, 7), point(4, 1), point(1, 7), point(4, 1)], "do not determine the costs"),
        ([*(point(n, k) for n in (1, 4, 8) for k in (2, 7)), point(1, 0)], "without drafts"),
    ],
)
def test_too_little_is_refused(points: list[StepPoint], why: str) -> None:
    with pytest.raises(InvalidInputError, match=why):
        fit_step_time(points)
