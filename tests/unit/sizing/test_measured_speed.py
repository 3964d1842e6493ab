"""The speed of an engine is recovered from its ledger or its tuning."""

from collections.abc import Iterator
from math import ceil
from random import Random

import pytest

from slipstream.errors import InvalidInputError
from slipstream.sizing.demand import draw_requests
from slipstream.sizing.engine_speed import EngineSpeed
from slipstream.sizing.measured_speed import take_ledger, take_profile
from slipstream.sizing.simulation import ServedRequest, SimulatedPool, Simulation
from slipstream.steering.ledger import LedgerLine
from tests.unit.sizing.pieces import make_demand, make_speed
from tests.unit.steering.lines import make
from tests.unit.tuning.test_profile import tune

KINDS = ("code", "prose")


def write_ledger(speed: EngineSpeed, length: int, rate: float, seed: int) -> Iterator[LedgerLine]:
    """Simulate a load of one replica and write its ledger, steps and batch as an engine would."""
    demand = make_demand(rate / 2, rate / 2, prompt=200, answer=80)
    arrivals = list(draw_requests(demand, 150 / rate, seed))
    served: list[ServedRequest] = []
    pool = SimulatedPool(speed, length, 1, KINDS)
    Simulation([pool], seed=seed, keep=served.append).run(arrivals)
    prompts = {one.at: one.prompt_tokens for one in arrivals}
    cost = speed.find_cost(length)
    spans = [(one.arrived + one.first_seconds, one.arrived + one.seconds) for one in served]
    for one, (first, end) in zip(served, spans, strict=True):
        together = sum(max(0.0, min(end, b) - max(first, a)) for a, b in spans)
        batch = max(1.0, together / max(1e-9, end - first))
        others = sum(
            prompts[o.arrived] for o, (a, _) in zip(served, spans, strict=True) if first < a <= end
        )
        decoding = end - first - others * speed.per_prompt_token
        steps = max(1, round(decoding / cost.predict(batch, length)))
        drafts = speed.find_yield(one.kind, length)
        accepted = [round(steps * share) for share in drafts.by_position] if drafts else []
        yield make(
            at=1000 + end,
            kind=one.kind,
            prompt_tokens=prompts[one.arrived],
            cached_tokens=0,
            tokens=one.tokens,
            steps=steps + 1,
            drafts=steps if length else 0,
            drafted=steps * length,
            accepted=accepted,
            seconds=one.seconds,
            first_seconds=one.first_seconds,
            batch=batch,
            draft_length=float(length),
        )


@pytest.mark.parametrize("length", [0, 3])
def test_what_wrote_a_ledger_is_found_in_it(length: int) -> None:
    speed = make_speed(fixed=0.03, per_token=0.002, per_prompt_token=0.001, longest=3)
    lines = [
        line
        for rate, seed in ((0.05, 1), (0.5, 2), (1.0, 3))
        for line in write_ledger(speed, length, rate, seed)
    ]
    found = take_ledger(lines, "ledger")
    assert found.lengths == ((0,) if not length else (1, 2, 3))
    for batch in (1, 4, 8):
        expected = speed.find_cost(length).predict(batch, length)
        assert found.find_cost(length).predict(batch, length) == pytest.approx(expected, rel=0.08)
    assert found.per_prompt_token == pytest.approx(0.001, rel=0.15)
    if length:
        for kind in KINDS:
            assert found.count_tokens_per_step(kind, 3) == pytest.approx(
                speed.count_tokens_per_step(kind, 3), rel=0.02
            )


def test_an_engine_that_copies_has_the_speed_that_it_had_at_the_length_it_verified() -> None:
    speed = make_speed(fixed=0.03, per_token=0.002, per_prompt_token=0.001, longest=3)
    lines = []
    for rate, seed in ((0.05, 1), (0.5, 2), (1.0, 3)):
        for line in write_ledger(speed, 3, rate, seed):
            steps = line.steps - 1
            copies, gained = steps // 4, steps // 4 * 9
            update = {"copies": copies, "copied": copies * 12, "copied_accepted": gained}
            drafts = {"drafts": steps - copies, "drafted": (steps - copies) * 3, "accepted": (0,)}
            given = 1 + steps + gained if line.kind == "code" else line.steps
            lines.append(line.model_copy(update={**update, **drafts, "tokens": given}))
    found = take_ledger(lines, "ledger")
    verified = sum(line.drafted + line.copied for line in lines)
    length = ceil(verified / sum(line.steps - 1 for line in lines))
    assert found.lengths == (length,)
    code = [line for line in lines if line.kind == "code"]
    expected = sum(line.tokens - 1 for line in code) / sum(line.steps - 1 for line in code)
    assert found.count_tokens_per_step("code", length) == pytest.approx(expected, rel=0.02)
    assert found.count_tokens_per_step("prose", length) == pytest.approx(1.0, abs=0.02)


def write_noisy(requests: int, seed: int) -> list[LedgerLine]:
    """Write requests far apart whose steps take 30 ms and 1 ms per token, 10 % off each."""
    chance, lines = Random(seed), []
    for number in range(requests):
        batch = 1.0 + number % 8
        off, also = (1 + chance.gauss(0, 0.1) for _ in range(2))
        first, step = (0.038 + 44 * 0.0005) * off, (0.03 + batch * 8 * 0.001) * also
        seconds = first + 29 * step
        times = {"at": 1000.0 + 20 * number, "seconds": seconds, "first_seconds": first}
        lines.append(make(batch=batch, **times))
    return lines


def test_the_error_of_a_ledger_is_that_of_its_mean_and_not_of_one_request() -> None:
    few, many = (take_ledger(write_noisy(count, 1), "ledger").error for count in (60, 960))
    assert 0 < many < 0.35 * few < 0.05
    held = 0
    for seed in range(60):
        found = take_ledger(write_noisy(120, seed), "ledger")
        mean = found.find_cost(7).predict(4.5, 7)
        held += abs(mean / (0.03 + 4.5 * 8 * 0.001) - 1) <= found.error
    assert held >= 54


def test_a_ledger_of_one_batch_does_not_tell_what_a_sequence_costs() -> None:
    lines = [make(at=1000.0 + 10 * number, batch=1.0, id=str(number)) for number in range(40)]
    with pytest.raises(InvalidInputError, match="about the same batch"):
        take_ledger(lines, "ledger")


def test_too_few_requests_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="too few requests"):
        take_ledger([make()], "ledger")


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
