"""One group after the other, and all the way back if one fails, whoever goes on with it."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.errors import EngineError, InvalidInputError, SlowError, UnreachableError
from slipstream.fleet.rolling.rollout import Action, Rollout, Version, begin, find_next, turn_back
from slipstream.fleet.rolling.steps import TRIES, carry_out

NOW = datetime(2026, 11, 16, tzinfo=UTC)
GROUPS = ("a", "b", "c")


class Site:
    """What a rollout changes: which groups take requests, and which plan each runs."""

    def __init__(self, *failing: tuple[str, str, Version]) -> None:
        self.open = dict.fromkeys(GROUPS, True)
        self.runs: dict[str, Version | None] = dict.fromkeys(GROUPS, "old")
        self.failing = set(failing)
        self.unreachable = 0
        self.least_open = len(GROUPS)
        self.done: list[str] = []

    def perform(self, action: Action) -> str | None:
        group, step, version = action
        if self.unreachable:
            self.unreachable -= 1
            raise UnreachableError("spark-1 cannot be reached", hint="ping spark-1")
        if step in ("close", "open"):
            self.open[group] = step == "open"
            assert step == "close" or self.runs[group] is not None
        elif step == "stop":
            assert not self.open[group]
            self.runs[group] = None
        if (group, step, version) in self.failing:
            raise EngineError(f"{group} cannot {step}", hint="slipstream fleet logs")
        if step == "start":
            self.runs[group] = version
        self.least_open = min(self.least_open, sum(self.open.values()))
        self.done.append(f"{step} {group}")
        return "each of 300 tokens is the target's own" if step == "verify" else None


def roll(site: Site, rollout: Rollout | None = None) -> tuple[Rollout, list[Rollout]]:
    saved: list[Rollout] = []
    ended = carry_out(
        rollout or begin("1", "lab", GROUPS, NOW),
        site,
        save=saved.append,
        wait=lambda seconds: None,
    )
    return ended, saved


def test_every_group_is_closed_drained_restarted_verified_and_opened_in_turn() -> None:
    site = Site()
    ended, saved = roll(site)
    assert ended.state == "done"
    assert set(site.runs.values()) == {"new"}
    assert site.done[:6] == ["close a", "drain a", "stop a", "start a", "verify a", "open a"]
    assert site.least_open == 2
    assert ended.groups[0].verified == "each of 300 tokens is the target's own"
    assert saved[-1] == ended


@pytest.mark.parametrize("step", ["close", "drain", "stop", "start", "verify", "open"])
@pytest.mark.parametrize("group", GROUPS)
def test_a_group_that_fails_rolls_all_back_to_the_old_plan(group: str, step: str) -> None:
    site = Site((group, step, "new"))
    ended, _ = roll(site)
    assert ended.state == "rolled back"
    assert ended.failure == f"{group}, {step}: {group} cannot {step}"
    assert set(site.runs.values()) == {"old"}
    assert all(site.open.values())
    assert site.least_open >= 2
    untouched = GROUPS[GROUPS.index(group) + 1 :]
    assert not any(done.endswith(untouched) for done in site.done)


def test_a_group_that_was_only_closed_is_not_restarted() -> None:
    site = Site(("a", "drain", "new"))
    ended, _ = roll(site)
    assert site.done == ["close a", "open a"]
    assert ended.groups[0].version == "old"


def test_groups_that_were_done_are_rolled_back_in_reverse_after_the_one_that_failed() -> None:
    site = Site(("c", "verify", "new"))
    ended, _ = roll(site)
    assert [one.group for one in ended.groups] == ["c", "b", "a"]
    started = [done for done in site.done if done.startswith("start")]
    assert started == ["start a", "start b", "start c", "start c", "start b", "start a"]


def test_a_rollback_that_fails_stops_and_leaves_the_others_alone() -> None:
    site = Site(("b", "verify", "new"), ("b", "start", "old"))
    ended, _ = roll(site)
    assert ended.state == "rollback failed"
    assert ended.failure == "b, verify: b cannot verify; rolling back, b: b cannot start"
    assert site.open == {"a": True, "b": False, "c": True}
    assert find_next(ended) is None


def test_a_machine_is_asked_again_and_if_it_stays_away_the_rollout_is_left_as_it_stands() -> None:
    site = Site()
    site.unreachable = TRIES - 1
    assert roll(site)[0].state == "done"
    site, rollout = Site(), begin("1", "lab", GROUPS, NOW)
    site.unreachable = TRIES
    saved: list[Rollout] = []
    with pytest.raises(UnreachableError):
        carry_out(rollout, site, save=saved.append, wait=lambda seconds: None)
    assert saved[-1].state == "rolling"
    assert roll(site, saved[-1])[0].state == "done"


def test_a_step_that_does_not_end_in_time_has_failed_and_is_not_tried_again() -> None:
    class Slow(Site):
        def perform(self, action: Action) -> str | None:
            if action == ("b", "verify", "new"):
                self.done.append("verify b")
                raise SlowError("two: the command did not end within 900 s", hint="uptime")
            return super().perform(action)

    site = Slow()
    ended, _ = roll(site)
    assert (ended.state, site.done.count("verify b")) == ("rolled back", 1)
    assert set(site.runs.values()) == {"old"}
    assert all(site.open.values())


@given(
    failing=st.sets(st.sampled_from([(g, s) for g in GROUPS for s in ("stop", "start", "verify")])),
    ends_at=st.lists(st.integers(0, 40), max_size=4),
)
def test_whoever_goes_on_at_any_point_it_ends_with_one_version_everywhere(
    failing: set[tuple[str, str]], ends_at: list[int]
) -> None:
    site = Site(*((group, step, "new") for group, step in failing))
    rollout: Rollout | None = begin("1", "lab", GROUPS, NOW)
    for most in ends_at:
        count, saved = 0, list[Rollout]()

        def save(one: Rollout, most: int = most, saved: list[Rollout] = saved) -> None:
            nonlocal count
            count += 1
            if count > most:
                raise InvalidInputError("the control machine is gone", hint="another one")
            saved.append(one)

        assert rollout is not None
        try:
            rollout = carry_out(rollout, site, save=save)
        except InvalidInputError:
            # What was saved last may be a step behind.
            rollout = Rollout.model_validate_json(saved[-1].to_json()) if saved else rollout
    ended, _ = roll(site, rollout)
    assert ended.state == ("rolled back" if failing else "done")
    assert set(site.runs.values()) == {"old" if failing else "new"}
    assert all(site.open.values())
    assert site.least_open >= 2


def test_a_canary_is_judged_before_the_other_groups_are_touched() -> None:
    site = Site()
    ended, _ = roll(site, begin("1", "lab", GROUPS, NOW, canary=2))
    assert ended.state == "done"
    evaluated = site.done.index("evaluate b")
    assert site.done[evaluated - 1 : evaluated + 2] == ["open b", "evaluate b", "close c"]
    assert site.done.count("evaluate b") == sum(one.startswith("evaluate") for one in site.done)


def test_a_canary_that_is_not_promoted_is_rolled_back_alone() -> None:
    site = Site(("a", "evaluate", "new"))
    ended, _ = roll(site, begin("1", "lab", GROUPS, NOW, canary=1))
    assert ended.state == "rolled back"
    assert ended.failure == "a, evaluate: a cannot evaluate"
    assert set(site.runs.values()) == {"old"}
    assert all(site.open.values())
    assert {one.split()[1] for one in site.done} == {"a"}


def test_a_drafter_is_swapped_in_group_by_group_and_judged_on_its_canary() -> None:
    site = Site()
    ended, _ = roll(site, begin("1", "lab", GROUPS, NOW, canary=2, trial_seconds=9, drafter="d"))
    assert site.done == ["swap a", "swap b", "evaluate b", "swap c"]
    assert (ended.state, ended.canary) == ("done", ("a", "b"))
    assert {one.version for one in ended.groups} == {"new"}


@pytest.mark.parametrize(
    ("step", "done"),
    [
        ("swap", ["swap a", "swap back b", "swap back a"]),
        ("evaluate", ["swap a", "swap b", "swap back b", "swap back a"]),
    ],
)
def test_a_drafter_that_fails_is_taken_back_from_whoever_may_have_it(
    step: str, done: list[str]
) -> None:
    site = Site(("b", step, "new"))
    ended, _ = roll(site, begin("1", "lab", GROUPS, NOW, canary=2, drafter="d"))
    assert ended.state == "rolled back"
    assert site.done == done
    assert {one.version for one in ended.groups} == {"old"}


def test_a_swap_that_is_over_can_be_taken_back_and_resumed() -> None:
    site = Site(("b", "swap back", "old"))
    ended, _ = roll(site, begin("1", "lab", GROUPS, NOW, drafter="d"))
    back, saved = roll(site, turn_back(ended, "by order", NOW))
    assert (back.state, saved[-1]) == ("rollback failed", back)
    site.failing.clear()
    again = back.model_copy(update={"state": "rolling back"})
    assert roll(site, again)[0].state == "rolled back"
    assert site.done[-3:] == ["swap back c", "swap back b", "swap back a"]
