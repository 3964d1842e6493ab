"""A rollout carried out: each step on the machines, its record kept on the fleet's first one."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from slipstream.errors import EngineError, InvalidInputError, SlipstreamError, UnreachableError
from slipstream.fleet.far_commands import call, explain, read_answer
from slipstream.fleet.front.deploying import close_to, open_to, read_front
from slipstream.fleet.plan import FleetPlan
from slipstream.fleet.record import Fleet
from slipstream.fleet.roll import Action, Rollout, Version, fail, find_next, succeed
from slipstream.fleet.starting import Show, start_groups, stop_groups
from slipstream.fleet.status import read_fleet_status, read_run
from slipstream.fleet.transport import Transport
from slipstream.measuring.verifying.served_check import ServedCheck

DRAIN_SECONDS = 600.0
OPEN_WITHIN_SECONDS = 60.0
VERIFY_SECONDS = 900.0
TRIES = 3
TRY_AGAIN_SECONDS = 5.0
_LOOK_EVERY_SECONDS = 1.0


class Performer(Protocol):
    """What does a step; every one can be done twice."""

    def perform(self, action: Action) -> str | None:
        """Do it, and return what is worth keeping."""


def carry_out(
    rollout: Rollout,
    performer: Performer,
    *,
    save: Callable[[Rollout], None],
    check: Callable[[], None],
    wait: Callable[[float], None] = time.sleep,
) -> Rollout:
    """Go on until the rollout is over; a machine that cannot be reached leaves it as it stands.

    `check` raises if the fleet is not ours to change any more: that is no reason to go back.
    """
    while (action := find_next(rollout)) is not None:
        check()
        save(rollout)
        began = time.monotonic()
        try:
            said = _try(performer, action, wait)
        except UnreachableError:
            raise
        except SlipstreamError as fault:
            rollout = fail(rollout, action, fault.message, datetime.now(UTC))
        else:
            seconds = time.monotonic() - began
            rollout = succeed(rollout, action, datetime.now(UTC), seconds, said)
    save(rollout)
    return rollout


def _try(performer: Performer, action: Action, wait: Callable[[float], None]) -> str | None:
    for _ in range(TRIES - 1):
        try:
            return performer.perform(action)
        except UnreachableError:
            wait(TRY_AGAIN_SECONDS)
    return performer.perform(action)


@dataclass(frozen=True, slots=True)
class FleetPerformer:
    """The real one."""

    fleet: Fleet
    plans: dict[Version, FleetPlan]
    transport: Transport
    show: Show
    drain_seconds: float = DRAIN_SECONDS
    judge: Callable[[], str] | None = None

    def perform(self, action: Action) -> str | None:
        """Do a step of a group."""
        self.show(self._find_head(action.group), action.step, f"group {action.group}")
        if action.step == "close":
            self._close(action.group)
        elif action.step == "drain":
            self._drain(action.group)
        elif action.step == "stop":
            self._stop(action.group)
        elif action.step == "start":
            self._start(action.group, action.version)
        elif action.step == "verify":
            return self._verify(action.group)
        elif action.step == "judge":
            return self._judge()
        else:
            self._open(action.group)
        return None

    def _close(self, group: str) -> None:
        others = [
            one for one in read_front(self.fleet, self.transport).groups if one.group != group
        ]
        if not any(one.state == "open" for one in others):
            raise InvalidInputError(
                f"no other group takes requests while {group} is closed",
                hint="slipstream fleet status; to interrupt the service: fleet stop, then fleet up",
            )
        close_to(self.fleet, self.transport, group)

    def _drain(self, group: str) -> None:
        """Wait for the requests that the group has; past the time, its own drain ends them."""
        deadline = time.monotonic() + self.drain_seconds
        while time.monotonic() < deadline:
            state = read_front(self.fleet, self.transport).find(group)
            if state is None or not state.requests:
                return
            self.show(self._find_head(group), "drain", f"{state.requests} requests")
            time.sleep(_LOOK_EVERY_SECONDS)

    def _stop(self, group: str) -> None:
        status = read_fleet_status(self.fleet, self.transport, datetime.now(UTC))
        faults = stop_groups(self.fleet, [group], status, self.transport, now=False, show=self.show)
        _raise_first(faults)

    def _start(self, group: str, version: Version) -> None:
        # What another desk began to start has perhaps the other plan.
        self._stop(group)
        _raise_first(start_groups(self.plans[version], [group], self.transport, self.show))

    def _verify(self, group: str) -> str | None:
        """Have the machine that answers check its own text; nothing to check without drafts."""
        planned = self.plans["new"].find_group(group)
        if planned is None or not planned.speculation:
            return None
        head = self._find_head(group)
        run = read_run(self.fleet, self.transport, head)
        if run is None:
            raise EngineError(f"{head} has no run", hint=f"slipstream fleet logs {head}")
        words = ["verify", run.folder, "--json"]
        answer = call(self.fleet, self.transport, head, words, timeout=VERIFY_SECONDS)
        if not answer.stdout:
            raise EngineError(
                f"{head} could not be verified: {explain(answer)}",
                hint=f"ssh {self.fleet.name_ssh(head)} slipstream verify {run.folder}",
            )
        check = read_answer(head, answer, ServedCheck)
        if not (check.passed or check.is_undrafted):
            raise EngineError(check.sentence, hint=f"slipstream fleet logs {head}")
        return check.sentence

    def _judge(self) -> str:
        """Have requests decide about the canary; what they were compared with is not kept."""
        if self.judge is None:
            raise EngineError(
                "the trial of the canary was left, and cannot go on",
                hint="slipstream fleet roll --canary 1",
            )
        return self.judge()

    def _open(self, group: str) -> None:
        open_to(self.fleet, self.transport, group)
        deadline = time.monotonic() + OPEN_WITHIN_SECONDS
        while time.monotonic() < deadline:
            state = read_front(self.fleet, self.transport).find(group)
            if state is not None and state.state == "open":
                return
            time.sleep(_LOOK_EVERY_SECONDS)
        raise EngineError(
            f"the front does not reach {group}", hint="slipstream fleet doctor; fleet init"
        )

    def _find_head(self, group: str) -> str:
        return self.fleet.groups[group].machines[0]


def _raise_first(faults: dict[str, SlipstreamError]) -> None:
    for fault in faults.values():
        raise fault
