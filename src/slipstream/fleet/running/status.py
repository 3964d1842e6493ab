"""What every machine and group does: `FleetStatus` is the state of their runs, `FleetView` figures.

A machine's run is the newest that was started from a plan of this fleet there. What a group serves
is read from its own runs: what was sent to it, or is in the fleet's file, it may not serve.
"""

from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Literal

from pydantic import AwareDatetime

from slipstream.errors import InvalidInputError, SlipstreamError, UnreachableError
from slipstream.fleet.machines.commands import Machines, ask_all, read_answer
from slipstream.fleet.plan import FleetPlan, GroupPlan, RankPlan
from slipstream.fleet.record import Fleet, find_plan_name, is_of_fleet
from slipstream.planning.plan import LaunchPlan, diff_plans
from slipstream.records import Record
from slipstream.serving.live_view import LiveView
from slipstream.serving.plugin_settings import with_drafter
from slipstream.serving.run_status import RunStatus, StatusList
from slipstream.steering.drafts import Drafts

STATUS_SECONDS = 30
# Certificates that end so soon are renewed by `init`, `up` and `roll`.
RENEW_BEFORE = timedelta(days=60)
VIEW_SECONDS = 30
GroupState = Literal["ready", "starting", "ending", "failed", "down", "unknown"]
_RISING = ("planned", "downloading", "starting", "warming")
_ENDING = ("draining", "stopping")


class MachineStatus(Record):
    """A machine of a fleet: its newest run of the fleet's plan, or why it could not be asked."""

    machine: str
    group: str | None
    rank: int | None
    run: RunStatus | None = None
    fault: str | None = None
    hint: str | None = None
    certificate_ends: AwareDatetime | None = None


class GroupStatus(Record):
    name: str
    state: GroupState
    url: str | None
    # How what it serves differs from what the fleet's file asks for, if that was compared.
    changed: tuple[str, ...] = ()


class FleetStatus(Record):
    schema_version: Literal[1] = 1
    fleet: str
    at: AwareDatetime
    machines: tuple[MachineStatus, ...]
    groups: tuple[GroupStatus, ...]

    @property
    def is_ready(self) -> bool:
        return all(group.state == "ready" for group in self.groups)

    def find_machine(self, name: str) -> MachineStatus:
        return next(one for one in self.machines if one.machine == name)


class GroupView(Record):
    """A group's figures; what cannot be told is None."""

    name: str
    machines: tuple[str, ...]
    state: GroupState
    tokens_per_second: float | None = None
    in_flight: int | None = None
    waiting: int | None = None
    draft_length: int | None = None
    acceptance_length: float | None = None
    restarts: int | None = None
    drifts: int = 0


class FleetView(Record):
    schema_version: Literal[1] = 1
    fleet: str
    at: AwareDatetime
    groups: tuple[GroupView, ...]

    @property
    def tokens_per_second(self) -> float | None:
        known = [one.tokens_per_second for one in self.groups if one.tokens_per_second is not None]
        return sum(known) if known else None


def read_fleet_status(far: Machines, now: AwareDatetime) -> FleetStatus:
    answers = ask_all(far.fleet.machines, lambda machine: read_run(far, machine))
    by_name = {name: _describe(far.fleet, name, answer) for name, answer in answers.items()}
    groups = tuple(
        find_group_state(name, [by_name[machine] for machine in group.machines])
        for name, group in far.fleet.groups.items()
    )
    machines = tuple(by_name.values())
    return FleetStatus(fleet=far.fleet.name, at=now, machines=machines, groups=groups)


def read_run(far: Machines, machine: str) -> RunStatus | None:
    """Ask a machine for its newest run of the fleet's plan."""
    # Without a run that is ready it leaves with 1, and its document is there all the same.
    answer = far.call(machine, ["status", "--json"], timeout=STATUS_SECONDS)
    listed = read_answer(machine, answer, StatusList)
    own = [run for run in listed.runs if is_of_fleet(far.fleet.folder, run.plan_file)]
    return max(own, key=lambda run: run.began_at, default=None)


def read_served_groups(
    far: Machines, status: FleetStatus, names: Iterable[str]
) -> dict[str, GroupPlan]:
    """Return those of these groups that were not stopped, each with the plans of its own runs."""
    found = dict[str, GroupPlan]()
    for name in names:
        machines = far.fleet.groups[name].machines
        members = [status.find_machine(machine) for machine in machines]
        for one in members:
            if one.fault is not None:
                hint = one.hint or "slipstream fleet doctor"
                raise UnreachableError(f"what {name} serves is unknown: {one.fault}", hint=hint)
        ranks = tuple(
            RankPlan(machine=one.machine, rank=rank, plan=_read_plan(far, one.machine, one.run))
            for rank, one in enumerate(members)
            if one.run is not None and one.run.state != "stopped"
        )
        if [one.machine for one in ranks] == [*machines]:
            settings = ranks[0].plan.settings
            found[name] = GroupPlan(
                name=name,
                ranks=ranks,
                address=settings.host.value if settings.host else None,
                port=settings.port.value if settings.port else far.fleet.groups[name].port,
            )
    return found


def _read_plan(far: Machines, machine: str, run: RunStatus) -> LaunchPlan:
    """Read the plan that a run was started from, with the drafter that it has by now.

    One that is still on trial is left out, as in the run's own next start.
    """
    name = find_plan_name(far.fleet.folder, run.plan_file) or ""
    hint = f"slipstream fleet stop {far.fleet.find_group(machine)}, then fleet up"
    plan = far.read_record(machine, name, LaunchPlan, hint=hint)
    if plan is None:
        raise InvalidInputError(f"{machine} has no {name}, which {run.id} serves", hint=hint)
    drafter = run.drafters[-1] if run.drafters else None
    if run.trial is not None and run.trial.state == "running":
        drafter = run.trial.before
    if drafter is None or plan.speculation is None:
        return plan
    return with_drafter(plan, drafter.folder, f"{drafter.name} was used before")


def compare_groups(
    status: FleetStatus, plan: FleetPlan, served: dict[str, GroupPlan]
) -> FleetStatus:
    """Return the status with what groups serve otherwise than planned."""

    def compare(group: GroupStatus) -> GroupStatus:
        planned, found = plan.find_group(group.name), served.get(group.name)
        if planned is None or found is None:
            return group
        run, ours = status.find_machine(found.ranks[0].machine).run, found.ranks[0].plan
        if run is not None and run.drafters and ours.speculation is not None:
            # In the fleet's file a drafter has its name.
            name = run.drafters[-1].name.partition("@")[0]
            ours = with_drafter(ours, Path(name), "")
        changes = diff_plans(ours, planned.ranks[0].plan)
        changed = tuple(f"{one.flag} {one.left} -> {one.right}" for one in changes)
        return group.model_copy(update={"changed": changed})

    return status.model_copy(update={"groups": tuple(map(compare, status.groups))})


def find_group_state(name: str, members: list[MachineStatus]) -> GroupStatus:
    """Say how a group stands: as its first rank does, unless another one is worse."""
    head = members[0]
    states = [one.run.state if one.run else None for one in members]
    url = head.run.url if head.run else None
    state: GroupState
    if any(one.fault for one in members):
        # The first rank alone answers requests; whether the others live, it has proven.
        state = "ready" if states[0] == "ready" else "unknown"
    elif all(one is None or one == "stopped" for one in states):
        state = "down"
    elif any(one in ("failed", "supervisor gone") for one in states):
        state = "failed"
    elif any(one in _ENDING for one in states):
        state = "ending"
    elif states[0] == "ready":
        state = "ready"
    elif any(one in _RISING for one in states):
        state = "starting"
    else:
        state = "down"
    return GroupStatus(name=name, state=state, url=url if state == "ready" else None)


def _describe(
    fleet: Fleet, machine: str, answer: RunStatus | SlipstreamError | None
) -> MachineStatus:
    group = fleet.find_group(machine)
    rank = fleet.groups[group].machines.index(machine) if group else None
    if isinstance(answer, SlipstreamError):
        return MachineStatus(
            machine=machine, group=group, rank=rank, fault=answer.message, hint=answer.hint
        )
    return MachineStatus(machine=machine, group=group, rank=rank, run=answer)


def read_fleet_view(far: Machines, status: FleetStatus) -> FleetView:
    heads = {name: group.machines[0] for name, group in far.fleet.groups.items()}
    runs = {name: status.find_machine(head).run for name, head in heads.items()}
    run_ids = {name: run.id for name, run in runs.items() if run is not None}

    def ask(name: str) -> LiveView:
        words = ["top", "--once", "--json", run_ids[name]]
        answer = far.call(heads[name], words, timeout=VIEW_SECONDS)
        return read_answer(heads[name], answer, LiveView)

    views = ask_all(run_ids, ask)
    groups = tuple(
        _view(one, far.fleet.groups[one.name].machines, views.get(one.name))
        for one in status.groups
    )
    return FleetView(fleet=far.fleet.name, at=status.at, groups=groups)


def _view(
    group: GroupStatus, machines: tuple[str, ...], view: LiveView | SlipstreamError | None
) -> GroupView:
    seen = GroupView(name=group.name, machines=machines, state=group.state)
    if not isinstance(view, LiveView):
        return seen
    steering = view.steering
    figures = {
        "tokens_per_second": view.measure_throughput(None),
        "in_flight": view.in_flight,
        "waiting": view.waiting,
        "restarts": view.status.restarts,
        "drifts": len(view.status.drifts),
    }
    if steering is not None:
        # Over all requests since the engine's start.
        drafts = Drafts.total(steering.kinds.values())
        figures["draft_length"] = steering.draft_length
        figures["acceptance_length"] = drafts.tokens_per_step
    return seen.model_copy(update=figures)
