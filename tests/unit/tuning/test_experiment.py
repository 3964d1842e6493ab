"""Few loads that tell much: the ends, two draft lengths, and one start where one will do."""

from itertools import pairwise
from random import Random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as some

from slipstream.errors import UsageError
from slipstream.tuning.experiment import EngineStart, plan_confirmation, plan_starts
from slipstream.tuning.step_time import fit_step_time
from tests.unit.tuning.synthetic_engine import SyntheticEngine, find_length

ENGINE = SyntheticEngine(noise=0.03)
budgets = some.tuples(
    some.integers(1, 15), some.integers(2, 64), some.integers(5, 12), some.integers(1, 4)
)


@given(budgets)
def test_the_budget_is_kept_and_the_costs_can_be_told(budget: tuple[int, int, int, int]) -> None:
    longest, most, loads, starts = budget
    planned = plan_starts(longest, most, loads=loads, starts=starts, runner="V1")
    assert len(planned) <= starts
    assert sum(len(start.concurrencies) for start in planned) == loads
    assert max(load for start in planned for load in start.concurrencies) == most
    cells = {(load, find_length(one, load)) for one in planned for load in one.concurrencies}
    assert {(1, longest), (most, longest)} <= cells
    assert {(1, 0), (most, 0)} <= cells or starts == 1
    fit = fit_step_time(ENGINE.run(planned, Random(0)))
    assert (fit.plain is None) == (starts == 1)
    for load in (1, most):
        assert not fit.is_far(load, longest)


@given(budgets)
def test_a_schedule_covers_every_batch_once(budget: tuple[int, int, int, int]) -> None:
    longest, most, loads, starts = budget
    for start in plan_starts(longest, most, loads=loads, starts=starts, runner="V1"):
        if start.schedule:
            assert start.schedule[0][0] == 1
            assert start.schedule[-1][1] == most
            for (_, last, length), (first, _, other) in pairwise(start.schedule):
                assert first == last + 1
                assert length != other
            assert {length for _, _, length in start.schedule} == {longest, max(1, longest // 3)}


def test_two_starts_measure_two_draft_lengths_in_one_of_them() -> None:
    drafting, plain = plan_starts(15, 16, loads=7, starts=2, runner="V1")
    assert plain.draft_length == 0
    assert drafting.draft_length == 15
    assert {length for _, _, length in drafting.schedule} == {5, 15}
    assert "confirm" not in drafting.because
    on_v2, _ = plan_starts(15, 16, loads=7, starts=2, runner="V2")
    assert "confirm a short one before it is dismissed" in on_v2.because


def test_three_starts_need_no_schedule() -> None:
    planned = plan_starts(15, 16, loads=9, starts=3, runner="V2")
    assert [start.draft_length for start in planned] == [15, 5, 0]
    assert not any(start.schedule for start in planned)


def test_at_two_users_the_longest_drafts_are_all_there_is_to_measure() -> None:
    drafting, plain = plan_starts(7, 2, loads=5, starts=2, runner="V1")
    assert (drafting.draft_length, drafting.schedule) == (7, ())
    assert plain.concurrencies == (1, 2)


@pytest.mark.parametrize(
    ("loads", "starts", "most"), [(4, 2, 16), (2, 1, 16), (9, 0, 16), (9, 2, 1)]
)
def test_a_budget_that_tells_nothing_is_refused(loads: int, starts: int, most: int) -> None:
    with pytest.raises(UsageError, match="do not determine the cost of a step"):
        plan_starts(15, most, loads=loads, starts=starts, runner="V1")


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
    chosen = plan_starts(15, 16, loads=7, starts=2, runner="V1")
    assert find_error(chosen) < 0.8 * find_error(ladder)


def test_a_confirmation_has_the_choice_at_its_load_and_its_neighbours_nearby() -> None:
    start = plan_confirmation(5, (4, 5, 6), 8, 8, runner="V1")
    assert find_length(start, 8) == 5
    assert {find_length(start, load) for load in start.concurrencies} == {4, 5, 6}
    assert start.concurrencies == (6, 7, 8)
    alone = plan_confirmation(5, (4, 5, 6), 1, 8, runner="V1")
    assert alone.concurrencies == (1, 2, 3)
    assert alone.schedule[0] == (1, 1, 5)
    assert alone.because == "confirms 5 drafted tokens beside 4 and 6"


def test_a_gpu_confirms_the_choice_alone() -> None:
    assert plan_confirmation(5, (0, 4, 5, 6), 8, 16, runner="V2") == EngineStart(
        5, (8,), because="confirms 5 drafted tokens"
    )


def test_before_drafts_are_dismissed_the_best_of_them_are_served() -> None:
    start = plan_confirmation(0, (0, 2, 3, 4), 8, 8, runner="V1")
    assert find_length(start, 8) == 3
    assert start.because == "whether 3 drafted tokens are slower than none"
