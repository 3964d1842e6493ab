"""The speed of an engine is recovered from the ledger that it wrote."""

from collections.abc import Iterator

import pytest

from slipstream.errors import InvalidInputError
from slipstream.sizing.demand import draw_requests
from slipstream.sizing.engine_speed import EngineSpeed
from slipstream.sizing.ledger_speed import take_ledger
from slipstream.sizing.simulation import ServedRequest, SimulatedPool, Simulation
from slipstream.steering.ledger import LedgerLine
from tests.unit.sizing.pieces import make_demand, make_speed
from tests.unit.steering.lines import make

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
        decoding = end - first - others * speed.by_prompt_token
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
    speed = make_speed(fixed=0.03, by_token=0.002, by_prompt_token=0.001, longest=3)
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
    assert found.by_prompt_token == pytest.approx(0.001, rel=0.15)
    if length:
        for kind in KINDS:
            assert found.count_tokens_per_step(kind, 3) == pytest.approx(
                speed.count_tokens_per_step(kind, 3), rel=0.02
            )


def test_a_ledger_of_one_batch_does_not_tell_what_a_sequence_costs() -> None:
    lines = [make(at=1000.0 + 10 * number, batch=1.0, id=str(number)) for number in range(40)]
    with pytest.raises(InvalidInputError, match="about the same batch"):
        take_ledger(lines, "ledger")


def test_too_few_requests_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="too few requests"):
        take_ledger([make()], "ledger")
