"""`FleetStatus`: the run of every machine, and from them the state of every group."""

from pathlib import PurePosixPath
from typing import Literal

from pydantic import AwareDatetime

from slipstream.errors import SlipstreamError
from slipstream.fleet.far_commands import call, read_answer
from slipstream.fleet.record import Fleet
from slipstream.fleet.transport import Transport, ask_all
from slipstream.records import Record
from slipstream.serving.run_status import RunStatus, StatusList

PLAN_NAME = "plan.json"
STATUS_SECONDS = 30
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


class GroupStatus(Record):
    """A group as clients see it."""

    name: str
    state: GroupState
    url: str | None


class FleetStatus(Record):
    """Every machine and every group at one moment."""

    schema_version: Literal[1] = 1
    fleet: str
    at: AwareDatetime
    machines: tuple[MachineStatus, ...]
    groups: tuple[GroupStatus, ...]

    @property
    def is_ready(self) -> bool:
        """Say whether every group answers."""
        return all(group.state == "ready" for group in self.groups)

    def find_machine(self, name: str) -> MachineStatus:
        """Return a machine by its name."""
        return next(one for one in self.machines if one.machine == name)


def read_fleet_status(fleet: Fleet, transport: Transport, now: AwareDatetime) -> FleetStatus:
    """Ask all machines concurrently for their runs."""
    answers = ask_all(fleet.machines, lambda machine: read_run(fleet, transport, machine))
    machines = tuple(_describe(fleet, name, answer) for name, answer in answers.items())
    by_name = {one.machine: one for one in machines}
    groups = tuple(
        judge_group(name, [by_name[machine] for machine in group.machines])
        for name, group in fleet.groups.items()
    )
    return FleetStatus(fleet=fleet.name, at=now, machines=machines, groups=groups)


def find_run(fleet: Fleet, listed: StatusList) -> RunStatus | None:
    """Find the newest run that was started from this fleet's plan on the machine."""
    place = PurePosixPath(fleet.folder) / PLAN_NAME
    own = [
        run
        for run in listed.runs
        if run.plan_file and PurePosixPath(run.plan_file).parts[-len(place.parts) :] == place.parts
    ]
    return max(own, key=lambda run: run.began_at, default=None)


def judge_group(name: str, members: list[MachineStatus]) -> GroupStatus:
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


def read_run(fleet: Fleet, transport: Transport, machine: str) -> RunStatus | None:
    """Ask a machine for its newest run of the fleet's plan."""
    # Without a run that is ready it leaves with 1, and its document is there all the same.
    answer = call(fleet, transport, machine, ["status", "--json"], timeout=STATUS_SECONDS)
    return find_run(fleet, read_answer(machine, answer, StatusList))


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
