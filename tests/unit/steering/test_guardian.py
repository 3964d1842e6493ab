"""The guardian does the least that is allowed, waits for it to show, and takes it back."""

from typing import Any

import pytest

from slipstream.steering.guardian import (
    ACTIONS,
    COOL_DOWN_SECONDS,
    ORDER_SECONDS,
    RESTART_EVERY_SECONDS,
    Action,
    Drift,
    Guardian,
    GuardianRules,
    Levers,
)

LEVERS = Levers(draft_length=7)


def find(**changes: Any) -> Drift:
    drift = Drift(
        family="first position",
        where="all requests",
        before=0.7,
        after=0.2,
        requests=40,
        times=1,
        at=1.0,
    )
    return drift.model_copy(update=changes)


def allow(*actions: Action) -> Guardian:
    return Guardian(GuardianRules(allowed=actions))


def act(guardian: Guardian, drift: Drift, now: float, levers: Levers = LEVERS) -> list[Any]:
    """Return the actions, with the order where there is one."""
    steps = guardian.decide([drift], [drift], levers, now)
    return [step.action if step.most is None else (step.action, step.most) for step in steps]


def list_cool_downs(count: int) -> list[float]:
    return [number * COOL_DOWN_SECONDS for number in range(count)]


def test_by_default_it_notes_and_lowers_and_says_why() -> None:
    note, lower = Guardian(GuardianRules()).decide([find()], [find()], LEVERS, 0.0)
    assert (note.action, lower.action, lower.most) == ("note", "lower", 3)
    assert note.reason == lower.reason == find().describe()


def test_it_goes_on_with_what_takes_away_more_and_swaps_back_once_for_each_drafter() -> None:
    guardian, levers = allow(*ACTIONS), Levers(draft_length=7, can_swap_back=True)
    taken = [act(guardian, find(), now, levers)[1:] for now in list_cool_downs(6)]
    assert taken == [[("lower", 3)], [("lower", 1)], ["swap-back"], [("plain", 0)], ["restart"], []]
    guardian.begin_anew()
    assert act(guardian, find(), 6 * COOL_DOWN_SECONDS, levers)[1:] == ["swap-back"]


@pytest.mark.parametrize("forbidden", ACTIONS)
def test_each_action_can_be_forbidden(forbidden: Action) -> None:
    guardian = allow(*(action for action in ACTIONS if action != forbidden))
    levers = Levers(draft_length=7, can_swap_back=True)
    taken = {one for now in list_cool_downs(6) for one in act(guardian, find(), now, levers)}
    names = {one if isinstance(one, str) else one[0] for one in taken}
    assert names == {*ACTIONS} - {forbidden}


def test_it_waits_for_the_last_action_to_show_and_notes_a_drift_once() -> None:
    guardian = allow("note", "lower")
    assert act(guardian, find(times=2), 0.0) == [("lower", 3)]
    assert act(guardian, find(times=3), COOL_DOWN_SECONDS - 1) == []
    assert act(guardian, find(times=4), COOL_DOWN_SECONDS) == [("lower", 1)]


@pytest.mark.parametrize(
    "drift",
    [
        find(decay="traffic of one key", key="ann"),
        find(decay="context collapse"),
        find(family="step seconds", decay="low power"),
        find(family="cached share"),
        find(family="first token seconds"),
    ],
)
def test_what_no_action_mends_is_noted_only(drift: Drift) -> None:
    assert act(allow(*ACTIONS), drift, 0.0) == ["note"]


def test_a_slow_engine_is_restarted_and_not_again_for_hours() -> None:
    guardian, slow = allow(*ACTIONS), find(family="step seconds", before=0.02, after=0.04)
    assert act(guardian, slow, 0.0) == ["note", "restart"]
    assert act(guardian, slow, RESTART_EVERY_SECONDS - 1) == ["note"]
    assert act(guardian, slow, RESTART_EVERY_SECONDS) == ["note", "restart"]


def test_without_a_length_to_lower_or_a_drafter_before_there_is_nothing_to_do() -> None:
    assert act(allow("lower", "swap-back", "plain"), find(), 0.0, Levers(None)) == []


@pytest.mark.parametrize("others", [[], [find(family="cached share")]])
def test_an_order_ends_with_its_drift_whatever_else_drifts(others: list[Drift]) -> None:
    guardian = allow("lower")
    act(guardian, find(), 0.0)
    assert guardian.decide([], [find()], LEVERS, COOL_DOWN_SECONDS) == []
    assert guardian.decide([], others, LEVERS, COOL_DOWN_SECONDS - 1) == []
    (step,) = guardian.decide([], others, LEVERS, COOL_DOWN_SECONDS)
    assert (step.action, guardian.most) == ("lift", None)
    assert guardian.decide([], others, LEVERS, 2 * COOL_DOWN_SECONDS) == []


def test_an_old_order_is_lifted_and_the_next_one_lasts_longer() -> None:
    guardian, now = allow("plain"), 0.0
    for lasting in (ORDER_SECONDS, 2 * ORDER_SECONDS):
        assert act(guardian, find(), now) == [("plain", 0)]
        assert guardian.decide([], [find()], LEVERS, now + lasting - 1) == []
        (step,) = guardian.decide([], [find()], LEVERS, now + lasting)
        assert step.action == "lift"
        now += lasting + COOL_DOWN_SECONDS
