"""`Rollout`: one group after the other gets another plan or drafter; all return if one fails; pure.

A group's part is the list of steps that are left for it, so that whoever reads the record goes on
where it was left. Every step can be done twice.
"""

from datetime import datetime
from typing import Literal, NamedTuple

from pydantic import AwareDatetime, Field

from slipstream.records import Record

Step = Literal["close", "drain", "stop", "start", "verify", "open", "swap", "evaluate", "swap back"]
RollState = Literal["rolling", "rolling back", "done", "rolled back", "rollback failed"]
Version = Literal["old", "new"]
FORWARD: tuple[Step, ...] = ("close", "drain", "stop", "start", "verify", "open")
# What served before needs no proof but that it starts and answers.
BACK: tuple[Step, ...] = ("close", "drain", "stop", "start", "open")
# A group that failed while it was closed: nobody is to wait for it.
RESTORE: tuple[Step, ...] = ("stop", "start", "open")
SWAP: tuple[Step, ...] = ("swap",)
SWAP_BACK: tuple[Step, ...] = ("swap back",)
# By the step that failed.
_AFTER: dict[Step, tuple[Step, ...]] = {
    "close": ("open",),
    "drain": ("open",),
    "stop": RESTORE,
    "start": RESTORE,
    "verify": RESTORE,
    "open": BACK,
}


class GroupRoll(Record):
    """A group in a rollout; without steps that are left it has the version that it says."""

    group: str
    remaining: tuple[Step, ...]
    version: Version = "old"
    seconds: dict[Step, float] = Field(default_factory=dict)
    # What the short certificate said, and of a canary what its requests did.
    verified: str | None = None
    evaluated: str | None = None


class Rollout(Record):
    """A rollout as it stands; in the order in which its groups are taken.

    With a drafter it is swapped into groups that run; otherwise they are restarted with a plan.
    """

    schema_version: Literal[3] = 3
    id: str
    fleet: str
    began_at: AwareDatetime
    changed_at: AwareDatetime
    drafter: str | None = None
    # The groups that try it first, and how long their requests may take to decide.
    canary: tuple[str, ...] = ()
    trial_seconds: float | None = None
    state: RollState = "rolling"
    groups: tuple[GroupRoll, ...]
    failure: str | None = None

    @property
    def version(self) -> Version:
        return "new" if self.state in ("rolling", "done") else "old"

    @property
    def is_over(self) -> bool:
        return self.state in ("done", "rolled back", "rollback failed")


class Action(NamedTuple):
    group: str
    step: Step
    version: Version


def begin(
    identity: str,
    fleet: str,
    groups: tuple[str, ...],
    now: datetime,
    *,
    canary: int = 0,
    trial_seconds: float | None = None,
    drafter: str | None = None,
) -> Rollout:
    """Begin a rollout of groups, in this order; a canary is evaluated before the others."""
    steps = FORWARD if drafter is None else SWAP
    taken = tuple(
        GroupRoll(group=name, remaining=(*steps, "evaluate") if place == canary else steps)
        for place, name in enumerate(groups, start=1)
    )
    return Rollout(
        id=identity,
        fleet=fleet,
        began_at=now,
        changed_at=now,
        drafter=drafter,
        canary=groups[:canary],
        trial_seconds=trial_seconds if canary else None,
        groups=taken,
    )


def find_next(rollout: Rollout) -> Action | None:
    for one in () if rollout.is_over else rollout.groups:
        if one.remaining:
            return Action(one.group, one.remaining[0], rollout.version)
    return None


def succeed(
    rollout: Rollout, action: Action, now: datetime, seconds: float, result: str | None
) -> Rollout:
    """Return the rollout after a step was done; `said` is what a check of it found."""

    def go_on(one: GroupRoll) -> GroupRoll:
        if one.group != action.group:
            return one
        changed: dict[str, object] = {
            "remaining": one.remaining[1:],
            "seconds": {**one.seconds, action.step: round(seconds, 1)},
        }
        if action.step in ("start", "swap", "swap back"):
            changed["version"] = action.version
        if action.step in ("verify", "evaluate"):
            changed["verified" if action.step == "verify" else "evaluated"] = result
        return one.model_copy(update=changed)

    groups = tuple(map(go_on, rollout.groups))
    state = rollout.state
    if not any(one.remaining for one in groups):
        state = "done" if state == "rolling" else "rolled back"
    return rollout.model_copy(update={"groups": groups, "state": state, "changed_at": now})


def fail(rollout: Rollout, action: Action, reason: str, now: datetime) -> Rollout:
    """Return the rollout after a step failed: it is rolled back, unless that is what failed.

    The failed group comes first, for it takes no requests; those that were done follow in reverse.
    """
    changed: dict[str, object] = {"changed_at": now}
    if rollout.state == "rolling back":
        failure = f"{rollout.failure}; rolling back, {action.group}: {reason}"
        return rollout.model_copy(
            update={**changed, "state": "rollback failed", "failure": failure}
        )
    back = BACK if rollout.drafter is None else SWAP_BACK
    failed = [one for one in rollout.groups if one.group == action.group]
    done = [one for one in rollout.groups if not one.remaining]
    waiting = [one for one in rollout.groups if one.remaining and one not in failed]
    changed["groups"] = (
        *(_turn(one, _AFTER.get(action.step, back)) for one in failed),
        *(_turn(one, back) for one in reversed(done)),
        *(_turn(one, ()) for one in waiting),
    )
    changed["failure"] = f"{action.group}, {action.step}: {reason}"
    return rollout.model_copy(update={**changed, "state": "rolling back"})


def turn_back(rollout: Rollout, reason: str, now: datetime) -> Rollout:
    """Return a swap that is taken back from every group that has the drafter."""
    groups = tuple(_turn(one, SWAP_BACK) for one in reversed(rollout.groups))
    changed = {"groups": groups, "state": "rolling back", "failure": reason, "changed_at": now}
    return rollout.model_copy(update=changed)


def _turn(one: GroupRoll, remaining: tuple[Step, ...]) -> GroupRoll:
    return one.model_copy(update={"remaining": remaining})
