"""Better is promoted, worse goes back, and what only looks like either is neither."""

from typing import Any

import pytest

from slipstream.fleet.canary.canary_test import ERRORS, CanaryTest
from slipstream.fleet.canary.record import CanaryVerdict, RegretEvidence
from slipstream.steering.ledger import LedgerLine
from tests.unit.fleet.canary.fleets import load_simulation
from tests.unit.steering.lines import make

simulation = load_simulation()
BEFORE = 200


def run(name: str, seed: int, *, most: int = BEFORE) -> CanaryVerdict:
    verdict: CanaryVerdict
    _, verdict, _ = simulation.simulate(
        seed, scenario=simulation.SCENARIOS[name], before=BEFORE, most=most
    )
    return verdict


def begin(subject: Any = "drafter") -> CanaryTest:
    """Begin a trial after lines that differ a little, by kind and batch."""
    lines = [_vary(number) for number in range(120)]
    return CanaryTest(frozenset("a"), {"a": lines, "b": lines}, subject=subject, most_requests=60)


def _vary(number: int, **changes: Any) -> LedgerLine:
    varied = {"batch": 2.0 + number % 3, "seconds": 2.0 + number % 5 / 10, "cached_tokens": 0}
    return make(**{"at": 1789000000.0 + number, **varied, **changes})


def test_no_decision_is_more_often_false_than_one_in_twenty() -> None:
    assert ERRORS.total <= 0.05


@pytest.mark.parametrize("name", ["equal", "equal, canary's machine 30 % slower"])
def test_an_equal_drafter_is_left_undecided(name: str) -> None:
    verdicts = [run(name, seed) for seed in range(1, 4)]
    assert {verdict.outcome for verdict in verdicts} == {"undecided"}


def test_a_drafter_that_drafts_noise_goes_back_within_a_hundred_requests() -> None:
    verdicts = [run("noise", seed) for seed in range(1, 4)]
    assert {verdict.outcome for verdict in verdicts} == {"go-back"}
    assert max(verdict.requests for verdict in verdicts) <= 100


def test_a_much_better_drafter_is_promoted() -> None:
    simulation.SCENARIOS["much better"] = simulation.Scenario(accepted=1.4)
    verdicts = [run("much better", seed) for seed in range(1, 4)]
    assert {verdict.outcome for verdict in verdicts} == {"promote"}
    assert {verdict.cause for verdict in verdicts} == {"speed"}


def test_a_machine_that_turns_slow_is_not_taken_for_the_drafter() -> None:
    name = "equal, canary's machine 30 % slower from the trial on"
    assert {run(name, seed).outcome for seed in range(1, 4)} == {"undecided"}


def test_a_plan_with_slower_steps_goes_back() -> None:
    simulation.SCENARIOS["slow plan"] = simulation.Scenario(subject="plan", step=2.2)
    verdicts = [run("slow plan", seed) for seed in range(1, 4)]
    assert {verdict.outcome for verdict in verdicts} == {"go-back"}


def test_a_plan_may_be_a_little_slower_and_a_drafter_may_not() -> None:
    assert begin("plan").threshold == 0.9
    assert begin("drafter").threshold == 1.0


def test_answers_that_the_target_would_not_have_given_go_back() -> None:
    test = begin()
    test.regret = RegretEvidence(
        answers=24,
        tokens=900,
        canary_faults=9,
        other_faults=0,
        canary_worst=4.0,
        other_worst=0.1,
        gap=0.25,
        is_worse=True,
    )
    verdict = test.verdict
    assert verdict is not None
    assert (verdict.outcome, verdict.cause) == ("go-back", "regret")
    assert "9 of 24 answers" in verdict.because


def test_a_kind_that_loses_goes_back_though_the_others_gain() -> None:
    test = begin()
    for number in range(60):
        good = {"accepted": (29, 29, 28, 27, 20, 10, 9), "steps": 30, "tokens": 182}
        test.add("a", _vary(number, accepted=(1, 0, 0, 0, 0, 0, 0)))
        test.add("b", _vary(number))
        test.add("a", _vary(number, kind="prose", **good))
    verdict = test.verdict
    assert verdict is not None
    assert (verdict.outcome, verdict.cause) == ("go-back", "acceptance")
    assert verdict.because.startswith("of code, ")


def test_a_trial_waits_for_enough_requests_before_it() -> None:
    few = [_vary(number) for number in range(30)]
    test = CanaryTest(frozenset("a"), {"a": few, "b": few}, subject="drafter")
    assert test.missing_windows > 0
    assert begin().missing_windows == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"key": "supervisor"},
        {"tokens": 8, "steps": 4, "drafts": 3, "drafted": 21, "accepted": [2, 1, 1, 0, 0, 0, 0]},
        {"cached_tokens": 256},
        {"first_seconds": None},
    ],
)
def test_a_request_that_says_nothing_about_speed_is_left_out(changes: dict[str, Any]) -> None:
    test = begin()
    test.add("a", _vary(1, **changes))
    assert test.evidence.requests == {}
    test.add("a", _vary(1))
    assert test.evidence.requests == {"a": 1}


def test_an_engine_that_was_started_anew_has_no_old_cache() -> None:
    test = begin("plan")
    test.add("a", _vary(1, cached_tokens=256))
    assert test.evidence.requests == {"a": 1}


def test_requests_are_compared_with_those_of_their_kind_and_batch_only() -> None:
    test = begin()
    for number in range(8):
        test.add("a", _vary(number, kind="prose", batch=2.0))
        test.add("b", _vary(number, kind="code", batch=2.0))
        test.add("b", _vary(number, kind="prose", batch=9.0))
    assert test.evidence.speed is None
    test.add("b", _vary(1, kind="prose", batch=2.0))
    test.add("b", _vary(2, kind="prose", batch=2.0))
    assert test.evidence.speed is not None


def test_drafts_of_another_length_are_judged_by_their_speed_alone() -> None:
    test = begin()
    longer = {"drafted": 29 * 15, "accepted": (29,) * 5 + (0,) * 10, "tokens": 175}
    for number in range(60):
        test.add("a", _vary(number, **longer))
        test.add("b", _vary(number))
    assert test.evidence.expected_speed is None
    verdict = test.verdict
    assert verdict is not None
    assert (verdict.outcome, verdict.cause) == ("promote", "speed")


def test_a_canary_whose_requests_have_no_match_ends_undecided() -> None:
    test = begin()
    for number in range(240):
        assert test.verdict is None
        test.add("a", _vary(number, kind="prose"))
    verdict = test.verdict
    assert verdict is not None
    assert (verdict.outcome, verdict.cause) == ("undecided", "limit")
    assert verdict.because.startswith("only 0 of 240 requests")
