"""Few loads that tell much: the ends, two draft lengths, one start where one will do."""

from itertools import pairwise
from random import Random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as some

from slipstream.errors import EngineError, UsageError
from slipstream.tuning.experiment import (
    EngineStart,
    plan_confirmation,
    plan_starts,
    read_acceptance,
    read_point,
)
from slipstream.tuning.speed_model import fit_step_time
from tests.unit.tuning.synthetic_engine import SyntheticEngine, average, find_length, serve

ENGINE, QUIET = SyntheticEngine(noise=0.03), SyntheticEngine(noise=0.01)
LONG, PLAIN = EngineStart(7, (1, 4, 16)), EngineStart(0, (1, 16))
SCHEDULED = EngineStart(7, (2, 8), schedule=((1, 2, 7), (3, 8, 2)))


@given(some.integers(1, 15), some.integers(2, 64))
def test_the_costs_can_be_told_and_a_schedule_covers_every_batch_once(
    longest: int, most: int
) -> None:
    drafting, plain = planned = plan_starts(longest, most, runner="V1")
    assert len(drafting.concurrencies) == 5
    assert (plain.draft_length, plain.concurrencies) == (0, (1, most))
    cells = {(load, find_length(drafting, load)) for load in drafting.concurrencies}
    assert {(1, longest), (most, longest)} <= cells
    fit = fit_step_time(ENGINE.run(planned, Random(0)))
    assert not any(fit.drafting.is_far(load, longest) for load in (1, most))
    if drafting.schedule:
        assert (drafting.schedule[0][0], drafting.schedule[-1][1]) == (1, most)
        for (_, last, length), (first, _, other) in pairwise(drafting.schedule):
            assert first == last + 1
            assert length != other
        assert {length for _, _, length in drafting.schedule} == {longest, max(1, longest // 3)}


def test_at_two_users_the_longest_drafts_are_all_there_is_to_measure() -> None:
    drafting, plain = plan_starts(7, 2, runner="V1")
    assert (drafting.draft_length, drafting.schedule) == (7, ())
    assert plain.concurrencies == (1, 2)
    with pytest.raises(UsageError):
        plan_starts(15, 1, runner="V1")


def test_the_chosen_loads_tell_more_than_an_even_ladder_of_long_drafts() -> None:
    def find_error(starts: tuple[EngineStart, ...]) -> float:
        off = []
        for seed in range(20):
            fit = fit_step_time(ENGINE.run(starts, Random(seed)))
            for load in (1, 4, 16):
                for length in (1, 3, 7, 15):
                    exact = ENGINE.take_seconds(load, length)
                    off.append(abs(fit.predict(load, length)[0] / exact - 1))
        return fmean(off)

    ladder = (EngineStart(15, (1, 2, 4, 8, 16)), EngineStart(0, (1, 16)))
    chosen = plan_starts(15, 16, runner="V1")
    assert find_error(chosen) < 0.8 * find_error(ladder)


def test_a_confirmation_has_the_choice_at_its_load_and_its_neighbours_nearby() -> None:
    start = plan_confirmation(5, (4, 5, 6), 8, 8, runner="V1")
    assert find_length(start, 8) == 5
    assert {find_length(start, load) for load in start.concurrencies} == {4, 5, 6}
    assert start.concurrencies == (6, 7, 8)
    alone = plan_confirmation(5, (4, 5, 6), 1, 8, runner="V1")
    assert alone.concurrencies == (1, 2, 3)
    assert alone.schedule[0] == (1, 1, 5)
    on_gpu = plan_confirmation(5, (0, 4, 5, 6), 8, 16, runner="V2")
    assert (on_gpu.draft_length, on_gpu.concurrencies, on_gpu.schedule) == (5, (8,), ())


def test_before_drafts_are_dismissed_the_best_of_them_are_served() -> None:
    assert find_length(plan_confirmation(0, (0, 2, 3, 4), 8, 8, runner="V1"), 8) == 3


@pytest.mark.parametrize("load", [1, 4, 16])
@pytest.mark.parametrize("start", [LONG, PLAIN])
def test_a_load_tells_the_time_of_its_steps(start: EngineStart, load: int) -> None:
    drafts = bool(start.draft_length)
    point = read_point(serve(QUIET, "code", load, start, Random(load)), drafts=drafts)
    assert (point.kind, point.concurrency, point.draft_length) == ("code", load, start.draft_length)
    exact = QUIET.take_seconds(point.sequences, start.draft_length)
    assert point.seconds_per_step == pytest.approx(exact, rel=0.02)


def test_a_place_that_reads_its_prompt_does_not_share_a_step() -> None:
    alone = read_point(serve(QUIET, "code", 1, LONG, Random(0)), drafts=True)
    many = read_point(serve(QUIET, "code", 16, LONG, Random(0)), drafts=True)
    assert alone.sequences == 1
    assert 14 < many.sequences < 16


def test_drafts_are_counted_by_kind_and_length_whatever_the_load() -> None:
    loads = [
        serve(QUIET, kind, load, LONG, Random(load)) for kind in QUIET.kinds for load in (2, 16)
    ]
    found = read_acceptance(loads, (7,))
    assert [(one.kind, one.draft_length) for one in found] == [("code", 7), ("prose", 7)]
    assert [len(one.requests) for one in found] == [54, 54]
    for one in found:
        likely = QUIET.kinds[one.kind]
        exact = sum(likely**place for place in range(8))
        assert average(one, 7) == pytest.approx(exact, rel=0.08)
        assert sum(request.pace for request in one.requests) / 54 == pytest.approx(1, rel=0.1)


def test_requests_whose_draft_length_changed_under_way_are_left_out() -> None:
    samples = serve(QUIET, "code", 8, SCHEDULED, Random(1))
    changed = [
        one.model_copy(update={"drafted": one.drafted + 5 * (one.drafts // 2)})
        for one in samples[:3]
    ]
    samples[:3] = changed
    found = read_acceptance([samples, serve(QUIET, "code", 2, SCHEDULED, Random(2))], (2, 7))
    assert [one.draft_length for one in found] == [2, 7]
    assert len(found[0].requests) <= len(samples) - len(changed)
    assert len(found[1].requests) == 6
    assert {len(request.accepted) for request in found[0].requests} == {2}
    assert 2 < read_point(samples, drafts=True).draft_length < 7


def test_failed_requests_and_those_of_one_token_are_left_out() -> None:
    samples = serve(QUIET, "code", 4, LONG, Random(1))
    broken = [sample.model_copy(update={"error": "it broke", "drafts": 0}) for sample in samples]
    short = samples[0].model_copy(update={"output_tokens": 1})
    assert read_point([*samples, *broken, short], drafts=True) == read_point(samples, drafts=True)
    with pytest.raises(EngineError, match="no request got two tokens"):
        read_point(broken, drafts=True)


def test_an_engine_that_does_not_tell_its_drafts_is_asked_to() -> None:
    samples = [
        sample.model_copy(update={"drafts": 0, "drafted": 0, "accepted_by_position": ()})
        for sample in serve(QUIET, "code", 4, LONG, Random(1))
    ]
    with pytest.raises(EngineError, match="has no drafts") as refused:
        read_point(samples, drafts=True)
    assert "--per-request-spec-decode-metrics summary" in refused.value.hint
