"""A rollout carried out: each step on the machines, its record kept on the fleet's first one."""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

from slipstream.errors import (
    EngineError,
    InvalidInputError,
    SlipstreamError,
    SlowError,
    UnreachableError,
)
from slipstream.fleet.balancer.deploying import ask_balancer, deploy_balancer, read_deployed
from slipstream.fleet.far_side.evaluation import EvaluateRun, RunVerdict
from slipstream.fleet.machines.commands import Machines, Show, escape, read_answer
from slipstream.fleet.machines.lease import LeaseLostError
from slipstream.fleet.plan import FleetPlan, list_backends
from slipstream.fleet.record import Fleet
from slipstream.fleet.rolling.rollout import (
    Action,
    Rollout,
    Step,
    Version,
    fail,
    find_next,
    succeed,
)
from slipstream.fleet.running.starting import start_groups, stop_groups
from slipstream.fleet.running.status import read_fleet_status, read_run, read_served_groups
from slipstream.measuring.verifying.served_check import ServedCheck
from slipstream.serving.run_status import RunStatus
from slipstream.serving.swaps import ServedDrafter, Swap

DRAIN_SECONDS = 600.0
OPEN_WITHIN_SECONDS = 60.0
VERIFY_SECONDS = 900.0
# The machine's own command waits for half an hour.
SWAP_SECONDS = 1900.0
TRIAL_SECONDS = 6 * 3600.0
# A trial ends by its own machine's clock; so much later its machine is asked no more.
TRIAL_SLACK_SECONDS = 900.0
TRIES = 3
TRY_AGAIN_SECONDS = 5.0
_LOOK_EVERY_SECONDS = 1.0
_EVALUATE_EVERY_SECONDS = 15.0
_RECORD = "rollout.json"
# Generation 0 is the drafter of the plan.
_GENERATION = re.compile(r"generation [1-9]\d*")
_PLANS: dict[Version, str] = {"old": "rollout-old-plan.json", "new": "rollout-new-plan.json"}
_ANOTHER = "slipstream fleet roll, to start a new one"


class Performer(Protocol):
    """What does a step; every one can be done twice."""

    def perform(self, action: Action) -> str | None:
        """Do it, and return what is worth keeping."""


def carry_out(
    rollout: Rollout,
    performer: Performer,
    *,
    save: Callable[[Rollout], None],
    wait: Callable[[float], None] = time.sleep,
) -> Rollout:
    """Go on until the rollout is over; a machine that cannot be reached leaves it as it stands.

    So does a lost lease. A step that takes too long has failed.
    """
    while (action := find_next(rollout)) is not None:
        save(rollout)
        began = time.monotonic()
        try:
            result = _try(performer, action, wait)
        except SlipstreamError as fault:
            if isinstance(fault, UnreachableError) and not isinstance(fault, SlowError):
                raise
            rollout = fail(rollout, action, fault.message, datetime.now(UTC))
        else:
            seconds = time.monotonic() - began
            rollout = succeed(rollout, action, datetime.now(UTC), seconds, result)
    save(rollout)
    return rollout


def _try(performer: Performer, action: Action, wait: Callable[[float], None]) -> str | None:
    for _ in range(TRIES - 1):
        try:
            return performer.perform(action)
        except (LeaseLostError, SlowError):
            raise
        except UnreachableError:
            wait(TRY_AGAIN_SECONDS)
    return performer.perform(action)


@dataclass(frozen=True, slots=True)
class FleetPerformer:
    """The real one; a rollout of a drafter has no plans."""

    far: Machines
    rollout: Rollout
    plans: dict[Version, FleetPlan]
    show: Show
    drain_seconds: float = DRAIN_SECONDS
    # What groups were started with since the record was read.
    _started: dict[str, Version] = field(default_factory=dict)

    def perform(self, action: Action) -> str | None:
        group, step = action.group, action.step
        self.show(self._find_head(group), step, f"group {group}")
        if step == "start":
            self._start(group, action.version)
            return None
        steps: dict[Step, Callable[[str], str | None]] = {
            "close": self._close,
            "drain": self._drain,
            "stop": self._stop,
            "verify": self._verify,
            "open": self._open,
            "swap": self._swap,
            "evaluate": self._evaluate,
            "swap back": self._swap_back,
        }
        return steps[step](group)

    def _close(self, group: str) -> None:
        states = ask_balancer(self.far).groups
        if not any(one.state == "open" for one in states if one.group != group):
            raise InvalidInputError(
                f"no other group accepts requests while {group} is closed",
                hint="`fleet stop` and `fleet up` interrupt the service; slipstream fleet status",
            )
        ask_balancer(self.far, "close", group)

    def _drain(self, group: str) -> None:
        """Wait for the requests that the group has; past the time, its own drain ends them."""
        deadline = time.monotonic() + self.drain_seconds
        while time.monotonic() < deadline:
            state = ask_balancer(self.far).find(group)
            if state is None or not state.requests:
                return
            self.show(self._find_head(group), "drain", f"{state.requests} requests")
            time.sleep(_LOOK_EVERY_SECONDS)

    def _stop(self, group: str) -> None:
        status = read_fleet_status(self.far, datetime.now(UTC))
        _raise_first(stop_groups(self.far, [group], status, now=False, show=self.show))

    def _start(self, group: str, version: Version) -> None:
        # What another control machine began to start has perhaps the other plan.
        self._stop(group)
        self._started[group] = version
        _raise_first(start_groups(self.plans[version], [group], self.far, self.show))

    def _verify(self, group: str) -> str | None:
        """Have the machine that answers check its own text; nothing to check without drafts."""
        planned = self.plans["new"].find_group(group)
        if planned is None or not planned.speculation:
            return None
        head, run = self._find_head(group), self._read_run(group)
        words = ["verify", run.folder, "--json"]
        answer = self.far.call(head, words, timeout=VERIFY_SECONDS)
        if not answer.document:
            raise EngineError(
                f"{head} could not be verified: {answer.complaint}",
                hint=self.far.fleet.hint_ssh(head, "slipstream verify", run.folder),
            )
        check = read_answer(head, answer, ServedCheck)
        if not (check.passed or check.is_undrafted):
            raise EngineError(check.sentence, hint=f"slipstream fleet logs {head}")
        return check.sentence

    def _open(self, group: str) -> None:
        self._place_groups()
        ask_balancer(self.far, "open", group)
        deadline = time.monotonic() + OPEN_WITHIN_SECONDS
        while time.monotonic() < deadline:
            state = ask_balancer(self.far).find(group)
            if state is not None and state.state == "open":
                return
            time.sleep(_LOOK_EVERY_SECONDS)
        raise EngineError(
            f"the load balancer does not reach {group}",
            hint="fleet init writes certificates; to check: slipstream fleet doctor",
        )

    def _place_groups(self) -> None:
        """Have the load balancer look for every group where it is by now, if any of them moves."""
        old, new = self.plans["old"], self.plans["new"]
        if list_backends(old.groups) != list_backends(new.groups):
            versions = {one.group: one.version for one in self.rollout.groups} | self._started
            moved = [one for one in new.groups if versions.get(one.name) == "new"]
            deploy_balancer(old.replace_groups({one.name: one for one in moved}), self.far)

    def _swap(self, group: str) -> None:
        """Have a group's machine load the drafter; of a canary it holds the trial by itself."""
        run, name = self._read_run(group), self.rollout.drafter or ""
        order = f"{self.rollout.id}-{group}"
        if serves(run, name) or (run.trial is not None and run.trial.order == order):
            return
        words = [name, "--order", order]
        if group in self.rollout.canary:
            words += ["--trial", f"{(self.rollout.trial_seconds or TRIAL_SECONDS) / 3600:g}"]
        swap = self._order(group, run, words)
        if swap.outcome != "swapped":
            raise EngineError(escape(swap.message), hint=swap.hint or "slipstream fleet status")

    def _swap_back(self, group: str) -> None:
        """Have the drafter before in a group, unless it has returned to it by itself.

        A run that is over had the new one, and its next start has what the plan says.
        """
        run = read_run(self.far, self._find_head(group))
        is_over = run is None or run.state in ("stopped", "failed")
        if run is not None and not is_over and serves(run, self.rollout.drafter or ""):
            self._order(group, run, ["--back"])

    def _order(self, group: str, run: RunStatus, words: list[str]) -> Swap:
        head = self._find_head(group)
        command = ["swap", run.id, *words, "--json"]
        answer = self.far.call(head, command, timeout=SWAP_SECONDS)
        if not answer.document:
            raise EngineError(f"{group}: {answer.complaint}", hint=f"slipstream fleet logs {group}")
        return read_answer(head, answer, Swap)

    def _evaluate(self, _: str) -> str:
        evaluate = self._evaluate_drafter if self.rollout.drafter else self._evaluate_plan
        limit = self.rollout.trial_seconds or TRIAL_SECONDS
        deadline = time.monotonic() + limit + TRIAL_SLACK_SECONDS
        results = dict.fromkeys(self.rollout.canary, "")
        while left := [group for group in results if not results[group]]:
            for group in left:
                try:
                    results[group] = evaluate(group, limit) or ""
                except LeaseLostError:
                    raise
                except UnreachableError:  # Its trial goes on without us.
                    if time.monotonic() > deadline:
                        raise
            if not all(results.values()):
                time.sleep(_EVALUATE_EVERY_SECONDS)
        return "; ".join(results.values())

    def _evaluate_drafter(self, group: str, _: float) -> str | None:
        """Return what the trial on a group's machine found, None while it goes on."""
        trial = self._read_run(group).trial
        if trial is None or trial.order != f"{self.rollout.id}-{group}":
            raise EngineError(
                f"{group}: its run ended during the trial", hint="slipstream fleet status"
            )
        self.show(self._find_head(group), "trial", escape(trial.describe()))
        if trial.state == "running":
            return None
        if trial.state != "passed":
            raise EngineError(f"{group}: {escape(trial.message)}", hint="slipstream fleet status")
        return f"{group}: {escape(trial.message)}"

    def _evaluate_plan(self, group: str, limit: float) -> str | None:
        """Return how a group's run does against the one before, None while it is undecided."""
        head, request = self._find_head(group), EvaluateRun(fleet=self.far.fleet.name)
        verdict = self.far.ask(head, request, RunVerdict)
        self.show(head, "trial", verdict.message)
        if verdict.verdict == "as-good":
            return f"{group}: {verdict.message}"
        if verdict.verdict is None and verdict.seconds < limit:
            return None
        raise EngineError(f"{group}: {verdict.message}", hint="slipstream fleet top")

    def _read_run(self, group: str) -> RunStatus:
        head = self._find_head(group)
        run = read_run(self.far, head)
        if run is None:
            raise EngineError(f"{head} has no run", hint=f"slipstream fleet logs {head}")
        return run

    def _find_head(self, group: str) -> str:
        return self.far.fleet.groups[group].machines[0]


def list_swapping_groups(fleet: Fleet) -> tuple[str, ...]:
    """List the groups that draft, in the order of the file; raise if one of them cannot swap."""
    drafting = {name: group for name, group in fleet.groups.items() if group.speculation}
    if spread := [name for name, group in drafting.items() if len(group.machines) > 1]:
        raise InvalidInputError(
            f"{', '.join(spread)}: an engine over several machines cannot swap its drafter",
            hint=f"name the drafter in fleet.toml, then: slipstream fleet roll {' '.join(spread)}",
        )
    return tuple(drafting)


def leave_out_serving(far: Machines, groups: Sequence[str], drafter: str) -> tuple[str, ...]:
    """Return the groups that do not have a drafter yet: from the others it is never taken back."""
    runs = {name: read_run(far, far.fleet.groups[name].machines[0]) for name in groups}
    left = tuple(name for name, run in runs.items() if run is None or not serves(run, drafter))
    if not left:
        raise InvalidInputError(
            f"{', '.join(groups)}: {drafter} is already in use", hint="slipstream fleet status"
        )
    return left


def find_learned(far: Machines, group: str) -> ServedDrafter:
    """Return the drafter that a group serves if it has learned it and its trial is over."""
    head = far.fleet.groups[group].machines[0]
    run = read_run(far, head)
    if run is None or not run.drafters or not _GENERATION.fullmatch(run.drafters[-1].name):
        raise InvalidInputError(
            f"{group} serves no drafter that it has learned",
            hint=far.fleet.hint_ssh(head, "slipstream learn", run.id if run else "RUN"),
        )
    if run.trial is not None and run.trial.state == "running":
        raise InvalidInputError(
            f"{group}: {escape(run.trial.describe())}", hint="slipstream fleet status"
        )
    return run.drafters[-1]


def serves(run: RunStatus, drafter: str) -> bool:
    """Say whether a drafter that was swapped in is the one that drafts; commits are left out."""
    return bool(run.drafters) and run.drafters[-1].name.partition("@")[0] == drafter


def save_rollout(far: Machines, rollout: Rollout) -> None:
    far.send(far.fleet.first_machine, rollout.to_json().encode(), _RECORD)


def save_plans(far: Machines, plans: dict[Version, FleetPlan]) -> None:
    for version, plan in plans.items():
        far.send(far.fleet.first_machine, plan.to_json().encode(), _PLANS[version])


def read_rollout(far: Machines) -> Rollout | None:
    machine = far.fleet.first_machine
    away = far.fleet.hint_ssh(machine, f"rm {far.fleet.folder}/{_RECORD}")
    hint = f"if no rollout is running: {away}"
    return far.read_record(machine, _RECORD, Rollout, hint=hint)


def read_plans(far: Machines) -> dict[Version, FleetPlan]:
    return {version: _read_plan(far, name, _ANOTHER) for version, name in _PLANS.items()}


def read_served_plan(far: Machines, planned: FleetPlan, names: Sequence[str]) -> FleetPlan:
    """Return a plan with every group as its own runs have it; those that are named have to run."""
    status = read_fleet_status(far, datetime.now(UTC))
    served = read_served_groups(far, status, far.fleet.groups)
    if idle := [name for name in names if name not in served]:
        raise InvalidInputError(
            f"{', '.join(idle)}: it does not run, so there is nothing to roll back to",
            hint=f"slipstream fleet up {' '.join(idle)}",
        )
    plan, deployed = planned.replace_groups(served), read_deployed(far)
    if deployed is not None:
        settings = deployed.model_copy(update={"groups": plan.balancer and plan.balancer.groups})
        plan = plan.model_copy(update={"balancer": settings})
    return plan


def _read_plan(far: Machines, name: str, hint: str) -> FleetPlan:
    machine = far.fleet.first_machine
    plan = far.read_record(machine, name, FleetPlan, hint=hint)
    if plan is None:
        raise InvalidInputError(f"{machine} has no {name} of the fleet {far.fleet.name}", hint=hint)
    # Paths in it are those of the control machine that wrote it.
    return plan.model_copy(update={"fleet": far.fleet})


def _raise_first(faults: dict[str, SlipstreamError]) -> None:
    for fault in faults.values():
        raise fault
