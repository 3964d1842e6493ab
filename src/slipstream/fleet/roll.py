"""`Rollout`: one group after the other gets another plan, and all go back if one fails; pure.

A group's part is the list of steps that are left for it, so that whoever reads the record goes on
where it was left. Every step can be done twice.
"""

from datetime import datetime
from typing import Literal, NamedTuple

from pydantic import AwareDatetime, Field

from slipstream.records import Record

Step = Literal["close", "drain", "stop", "start", "verify", "open", "judge"]
RollState = Literal["rolling", "going back", "done", "went back", "stuck"]
Version = Literal["old", "new"]

FORWARD: tuple[Step, ...] = ("close", "drain", "stop", "start", "verify", "open")
# What served before needs no proof but that it starts and answers.
BACK: tuple[Step, ...] = ("close", "drain", "stop", "start", "open")
# A group that failed while it was closed: nobody is to wait for it.
RESTORE: tuple[Step, ...] = ("stop", "start", "open")
REOPEN: tuple[Step, ...] = ("open",)
# By the step that failed.
_AFTER: dict[Step, tuple[Step, ...]] = {
    "close": REOPEN,
    "drain": REOPEN,
    "stop": RESTORE,
    "start": RESTORE,
    "verify": RESTORE,
    "open": BACK,
    "judge": BACK,
}


class GroupRoll(Record):
    """A group in a rollout; without steps that are left it has the version that it says."""

    group: str
    remaining: tuple[Step, ...]
    version: Version = "old"
    seconds: dict[Step, float] = Field(default_factory=dict)
    # What the short certificate said, and of a canary what its requests did.
    verified: str | None = None
    judged: str | None = None


class Rollout(Record):
    """A rollout as it stands; in the order in which its groups are taken."""

    schema_version: Literal[1] = 1
    id: str
    fleet: str
    began_at: AwareDatetime
    changed_at: AwareDatetime
    state: RollState = "rolling"
    groups: tuple[GroupRoll, ...]
    failure: str | None = None

    @property
    def version(self) -> Version:
        """The version that groups are given now."""
        return "new" if self.state in ("rolling", "done") else "old"

    @property
    def is_over(self) -> bool:
        """Say whether nothing is left to do."""
        return self.state in ("done", "went back", "stuck")


class Action(NamedTuple):
    """The next thing to do."""

    group: str
    step: Step
    version: Version


def begin(
    identity: str, fleet: str, groups: tuple[str, ...], now: datetime, *, canary: int = 0
) -> Rollout:
    """Begin a rollout of groups, in this order; the first few may be judged before the others."""
    steps = {canary - 1: (*FORWARD, "judge")} if canary else {}
    taken = tuple(
        GroupRoll(group=name, remaining=steps.get(place, FORWARD))
        for place, name in enumerate(groups)
    )
    return Rollout(id=identity, fleet=fleet, began_at=now, changed_at=now, groups=taken)


def find_next(rollout: Rollout) -> Action | None:
    """Return what to do next; None if it is over."""
    for one in () if rollout.is_over else rollout.groups:
        if one.remaining:
            return Action(one.group, one.remaining[0], rollout.version)
    return None


def succeed(
    rollout: Rollout, action: Action, now: datetime, seconds: float, said: str | None = None
) -> Rollout:
    """Return the rollout after a step was done; `said` is what a check of it found."""

    def go_on(one: GroupRoll) -> GroupRoll:
        if one.group != action.group:
            return one
        changed: dict[str, object] = {
            "remaining": one.remaining[1:],
            "seconds": {**one.seconds, action.step: round(seconds, 1)},
        }
        if action.step == "start":
            changed["version"] = action.version
        if action.step == "verify":
            changed["verified"] = said
        if action.step == "judge":
            changed["judged"] = said
        return one.model_copy(update=changed)

    groups = tuple(map(go_on, rollout.groups))
    state = rollout.state
    if not any(one.remaining for one in groups):
        state = "done" if state == "rolling" else "went back"
    return rollout.model_copy(update={"groups": groups, "state": state, "changed_at": now})


def fail(rollout: Rollout, action: Action, reason: str, now: datetime) -> Rollout:
    """Return the rollout after a step failed: it goes back, or is stuck if it already did.

    The failed group comes first, for it takes no requests; those that were done follow in reverse.
    """
    if rollout.state == "going back":
        failure = f"{rollout.failure}; going back, {action.group}: {reason}"
        return rollout.model_copy(update={"state": "stuck", "failure": failure, "changed_at": now})
    failed = [one for one in rollout.groups if one.group == action.group]
    done = [one for one in rollout.groups if not one.remaining]
    waiting = [one for one in rollout.groups if one.remaining and one not in failed]
    groups = (
        *(_turn(one, _AFTER[action.step]) for one in failed),
        *(_turn(one, BACK) for one in reversed(done)),
        *(_turn(one, ()) for one in waiting),
    )
    return rollout.model_copy(
        update={
            "groups": groups,
            "state": "going back",
            "failure": f"{action.group}, {action.step}: {reason}",
            "changed_at": now,
        }
    )


def _turn(one: GroupRoll, remaining: tuple[Step, ...]) -> GroupRoll:
    return one.model_copy(update={"remaining": remaining})
