"""The controlled length against every fixed one, on engines whose best length is known."""

import pytest

from slipstream.vllm_plugin.steering.draft_length import DraftLength
from slipstream.vllm_plugin.steering.goodput import StepCosts, bucket
from tests.unit.vllm_plugin.steering.simulated_engine import SimulatedEngine

# Stalls take 2 % of the simulated time, and no fixed length is spared them.
STALLED = 0.98
CODE = SimulatedEngine().rates
PROSE = (0.45, 0.35, 0.3, 0.3, 0.25, 0.2, 0.2)
NOISE = (0.01,) * 7


@pytest.mark.parametrize("sequences", [1, 2, 4, 8, 16, 32])
@pytest.mark.parametrize("rates", [CODE, PROSE, NOISE], ids=["code", "prose", "noise"])
def test_it_comes_close_to_the_best_fixed_length(sequences: int, rates: tuple[float, ...]) -> None:
    engine = SimulatedEngine(rates=rates)
    control = DraftLength(range(8))
    engine.run(control, sequences, 300)
    reached = engine.run(control, sequences, 2500)
    assert reached >= 0.97 * STALLED * engine.find_best(sequences)


def test_over_changing_loads_it_beats_every_fixed_length() -> None:
    engine, control = SimulatedEngine(), DraftLength(range(8))
    loads = [(1, CODE), (16, PROSE), (2, CODE), (32, CODE), (4, PROSE), (8, NOISE)] * 3
    reached = fixed = 0.0
    shares = [0.0] * 8
    for sequences, rates in loads:
        engine.rates = rates
        reached += engine.run(control, sequences, 600) / engine.find_best(sequences)
        for length in range(8):
            shares[length] += engine.expect(sequences, length) / engine.find_best(sequences)
    fixed = max(shares) * STALLED
    assert reached / len(loads) >= 0.95 * STALLED
    assert reached > fixed


def test_a_machine_that_slows_down_does_not_change_the_choice() -> None:
    engine, control = SimulatedEngine(), DraftLength(range(8))
    engine.run(control, 1, 1500)
    for slowness in (2.5, 0.8, 1.7):
        engine.slowness = slowness
        engine.run(control, 1, 60)
        reached = engine.run(control, 1, 500)
        assert reached >= 0.95 * STALLED * engine.find_best(1)


def test_tries_cost_no_more_than_their_share() -> None:
    engine, control = SimulatedEngine(rates=NOISE), DraftLength(range(8))
    engine.run(control, 16, 400)
    reached = engine.run(control, 16, 20_000)
    assert reached >= 0.985 * STALLED * engine.find_best(16)
    assert control.costs.count(16, 1) > 10


def test_stalls_in_the_first_steps_of_a_length_do_not_rule_it_out() -> None:
    engine, control = SimulatedEngine(rates=NOISE), DraftLength(range(8))
    control.least = 1
    engine.run(control, 2, 300)
    control.least = None
    for _ in range(2):
        control.observe(2, 0, 5 * engine.cost(2, 0, 0))
    engine.run(control, 2, 400)
    assert engine.run(control, 2, 2000) >= 0.97 * STALLED * engine.find_best(2)


def test_drafts_that_become_good_again_are_noticed() -> None:
    engine, control = SimulatedEngine(rates=NOISE), DraftLength(range(8))
    engine.run(control, 1, 2000)
    assert control.chosen == 0 or control._trying is not None
    engine.rates = CODE
    engine.run(control, 1, 3000)
    assert engine.run(control, 1, 1000) >= 0.96 * STALLED * engine.find_best(1)


def test_an_order_from_outside_bounds_the_length() -> None:
    engine, control = SimulatedEngine(), DraftLength(range(8))
    engine.run(control, 1, 500)
    control.most = 2
    assert {control.choose(1) for _ in range(500)} <= {0, 1, 2}
    control.most = 0
    assert {control.choose(1) for _ in range(500)} == {0}
    control.least, control.most = 3, 3
    assert {control.choose(1) for _ in range(100)} == {3}
    control.least, control.most = 5, 2
    assert {control.choose(1) for _ in range(100)} == {0}
    control.least = control.most = None
    assert max(control.choose(1) for _ in range(500)) > 2


def test_another_drafter_is_given_a_chance_at_once() -> None:
    engine, control = SimulatedEngine(rates=NOISE), DraftLength(range(8))
    engine.run(control, 1, 1000)
    control.forget_drafts()
    assert control.choose(1) > 0


def test_only_lengths_that_it_was_given_are_chosen() -> None:
    engine, control = SimulatedEngine(), DraftLength([7, 3])
    seen = set()
    for sequences in (1, 8, 32):
        engine.run(control, sequences, 200)
        seen.add(control.chosen)
    assert seen <= {3, 7}


def test_batches_share_a_bucket_only_if_they_are_alike() -> None:
    assert [bucket(sequences) for sequences in range(1, 9)] == list(range(1, 9))
    assert all(0.75 <= bucket(sequences) / sequences <= 1 for sequences in range(1, 300))


def test_the_other_cells_are_predicted_from_a_few() -> None:
    engine, costs = SimulatedEngine(), StepCosts()
    for sequences, length in [(1, 0), (1, 7), (2, 3), (4, 5), (8, 0), (8, 7)] * 20:
        costs.observe(sequences, length, engine.cost(sequences, length, length))
    for sequences, length in [(1, 3), (4, 0), (4, 2), (16, 4)]:
        usual = engine.cost(sequences, length, length)
        assert costs.expect(sequences, length) == pytest.approx(usual, rel=0.1)
