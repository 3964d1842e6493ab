"""The choice is the model's best, what is close is measured again, and no schedule ends at 0."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as some

from slipstream.errors import InvalidInputError
from slipstream.tuning.choice import SpeedChoice, choose, find_tax
from slipstream.tuning.goal import Goal, Limit
from slipstream.tuning.speed_model import SpeedModel
from tests.unit.tuning.pieces import make_model


def limit_goal(seconds: float, share: float = 0.95) -> Goal:
    limit = Limit(figure="tpot", seconds=seconds, share=share)
    return Goal(name="limits", limits=(limit,))


LATENCY, THROUGHPUT = Goal(name="latency"), Goal(name="throughput")
costs = some.floats(1e-4, 1e-2)
models = some.builds(
    make_model,
    some.tuples(some.floats(0.01, 0.2), costs, costs),
    some.tuples(some.floats(0.01, 0.2), costs),
    some.floats(0.1, 0.95),
    length=some.sampled_from((3, 7, 15)),
    sequences=some.sampled_from((4, 16, 64)),
    measured=some.sampled_from((8.0, 64.0)),
)
loads = some.sampled_from((1, 2, 5, 12))


def time(model: SpeedModel, length: int, load: int) -> float:
    return model.predict(length, load).seconds_per_token


@given(models, loads)
def test_the_choice_is_never_slower_than_another_by_the_models_own_numbers(
    model: SpeedModel, load: int
) -> None:
    choice = choose(model, LATENCY, load)
    assert choice.concurrency == load
    assert choice.prediction == model.predict(choice.draft_length, load)
    assert not choice.prediction.far
    for length in model.lengths:
        if not model.predict(length, load).far:
            assert time(model, choice.draft_length, load) <= time(model, length, load)
    assert choice.draft_length in choice.to_confirm
    assert set(choice.to_confirm) <= set(model.lengths)
    assert len(choice.to_confirm) <= 5
    assert SpeedChoice.model_validate_json(choice.to_json()) == choice


@given(models, loads)
def test_no_other_load_or_length_gives_more_throughput(model: SpeedModel, load: int) -> None:
    choice = choose(model, THROUGHPUT, load)
    for fewer in range(1, load + 1):
        for length in model.lengths:
            other = model.predict(length, fewer)
            assert other.far or other.tokens_per_second <= choice.prediction.tokens_per_second


@given(models, some.floats(0.005, 0.3), some.sampled_from((0.5, 0.95)))
def test_a_limit_is_held_at_the_largest_load_that_can(
    model: SpeedModel, seconds: float, share: float
) -> None:
    choice = choose(model, limit_goal(seconds, share), 12)

    def holds(length: int, load: int) -> bool:
        found = model.predict(length, load)
        slow = model.predict_slow(length, load, share) * (1 + found.error)
        return not found.far and slow <= seconds

    assert choice.meets_goal == holds(choice.draft_length, choice.concurrency)
    larger = range(choice.concurrency + 1, 13) if choice.meets_goal else range(1, 13)
    assert not any(holds(length, load) for load in larger for length in model.lengths)
    assert choice.slow_seconds_per_token is not None
    assert choice.meets_goal == (choice.slow_seconds_per_token <= seconds)
    for length in model.lengths:
        if holds(length, choice.concurrency):
            fastest = time(model, choice.draft_length, choice.concurrency)
            assert fastest <= time(model, length, choice.concurrency)


@given(models, loads)
def test_a_schedule_only_shortens_above_the_load_and_only_for_more_than_its_tax(
    model: SpeedModel, load: int
) -> None:
    choice = choose(model, LATENCY, load)
    if not choice.schedule:
        return
    assert choice.schedule[0].first == 1
    assert choice.schedule[0].last >= min(load, model.max_sequences)
    assert choice.schedule[0].draft_length == choice.draft_length
    batches = [
        (batch, one.draft_length)
        for one in choice.schedule
        for batch in range(one.first, one.last + 1)
    ]
    assert [batch for batch, _ in batches] == list(range(1, len(batches) + 1))
    for batch, length in batches:
        assert 1 <= length <= choice.draft_length
        gain = time(model, choice.draft_length, batch) / time(model, length, batch) - 1
        if length != choice.draft_length:
            assert gain > find_tax(batch)


@given(models, loads)
def test_above_the_overflow_plain_is_faster_and_below_it_is_not(
    model: SpeedModel, load: int
) -> None:
    choice = choose(model, LATENCY, load)
    if choice.overflow_above is None:
        return
    length, last = choice.draft_length, choice.overflow_above
    assert load <= last < model.max_sequences
    assert time(model, 0, last + 1) < time(model, length, last + 1)
    assert all(time(model, length, near) <= time(model, 0, near) for near in range(load, last + 1))


@given(
    some.tuples(some.floats(0.01, 0.2), costs, costs), some.floats(0.1, 0.95), some.integers(1, 63)
)
def test_more_sequences_never_lengthen_the_best_draft(
    drafting: tuple[float, float, float], likely: float, load: int
) -> None:
    model = make_model(drafting, (10.0, 1.0), likely)
    fewer, more = (choose(model, LATENCY, one).draft_length for one in (load, load + 1))
    assert more <= fewer


def test_drafts_that_are_never_accepted_are_not_made() -> None:
    choice = choose(make_model(likely=0.05), LATENCY, 8)
    assert choice.draft_length == 0
    assert choice.schedule == ()
    assert choice.overflow_above is None
    assert 0 in choice.to_confirm


@pytest.mark.parametrize(
    ("drafting", "plain", "scheduled"),
    [((0.05, 0.0, 0.002), (0.05, 0.001), True), ((0.076, 0.0, 1e-5), (0.073, 1e-5), False)],
)
def test_a_steep_engine_gets_a_schedule_and_an_overflow_and_a_flat_one_neither(
    drafting: tuple[float, float, float], plain: tuple[float, float], scheduled: bool
) -> None:
    choice = choose(make_model(drafting, plain, likely=0.85), LATENCY, 1)
    assert bool(choice.schedule) == (choice.overflow_above is not None) == scheduled


def test_a_load_far_beyond_the_measured_ones_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="concurrency 40 is far beyond") as refused:
        choose(make_model(measured=8), LATENCY, 40)
    assert "--concurrency 40" in refused.value.hint


def test_lengths_whose_steps_are_larger_than_any_measured_are_left_out() -> None:
    model = make_model((0.076, 0, 1e-5), likely=0.95, measured=8)
    assert choose(model, LATENCY, 12).draft_length == 15
    drafting = model.steps.drafting.model_copy(update={"most_tokens": 64.0})
    steps = model.steps.model_copy(update={"drafting": drafting})
    choice = choose(replace(model, steps=steps), LATENCY, 12)
    assert choice.draft_length == 7
    assert choice.reasons[-1].startswith("drafts of 8 and more")


def test_plain_is_measured_again_only_if_it_may_be_as_fast() -> None:
    assert 0 not in choose(make_model(likely=0.8), LATENCY, 1).to_confirm
    close = make_model((0.1, 0, 0.001), (0.055, 0.001), likely=0.5)
    assert 0 in choose(close, LATENCY, 1).to_confirm


def test_a_limit_that_nothing_holds_is_told_with_the_nearest() -> None:
    choice = choose(make_model(), limit_goal(0.001), 12)
    assert not choice.meets_goal
    assert choice.concurrency == 1
    assert choice.slow_seconds_per_token is not None


@pytest.mark.parametrize(("batch", "tax"), [(1, 0.066), (2, 0.066), (189, 0.216), (500, 0.216)])
def test_the_tax_is_the_published_one(batch: int, tax: float) -> None:
    assert find_tax(batch) == pytest.approx(tax)
    assert find_tax(2) < find_tax(20) < find_tax(189)
