"""Step time and acceptance make times per token; kinds are averaged over their tokens."""

from random import Random

import pytest

from slipstream.errors import InvalidInputError
from slipstream.tuning.acceptance import DraftAcceptance, RequestDrafts
from slipstream.tuning.experiment import plan_starts
from slipstream.tuning.speed_model import SpeedModel
from slipstream.tuning.step_time import fit_step_time
from tests.unit.tuning.synthetic_engine import SyntheticEngine

ENGINE = SyntheticEngine()
STARTS = plan_starts(15, 32, loads=8, starts=2, runner="V1")
SHARES = {"code": 0.5, "prose": 0.5}


def model(
    seed: int = 0, *, prompts: int = 40, sequences: int = 32, plain: bool = True
) -> SpeedModel:
    chance = Random(seed)
    points = [one for one in ENGINE.run(STARTS, chance) if plain or one.draft_length]
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


def test_plain_is_among_the_lengths_if_it_was_measured() -> None:
    assert model().lengths == range(16)
    assert model(plain=False).lengths == range(1, 16)


def test_a_kind_without_drafts_is_refused() -> None:
    made = model()
    with pytest.raises(InvalidInputError, match="json"):
        _ = SpeedModel(made.steps, made.acceptance, {**SHARES, "json": 1.0}, 32).lengths


def test_the_slow_requests_are_those_with_fewer_tokens_a_step() -> None:
    steps = model().steps
    made = SpeedModel(steps, (always("code", 3), always("prose", 0)), SHARES, 32)
    step = steps.predict(4, 3)[0]
    assert made.predict_slow(3, 4, 0.5) == pytest.approx(step / 4)
    assert made.predict_slow(3, 4, 0.51) == pytest.approx(step)
    assert made.predict_slow(0, 4, 0.99) == pytest.approx(steps.predict(4, 0)[0])


def test_a_higher_percentile_is_never_faster() -> None:
    made = model()
    slow = [made.predict_slow(7, 8, share / 100) for share in range(5, 100, 5)]
    assert slow == sorted(slow)
    assert slow[0] < made.predict(7, 8).seconds_per_token < slow[-1]
