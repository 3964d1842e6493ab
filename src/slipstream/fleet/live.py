"""`FleetView`: what every group does now, from `slipstream top --once` on its first machine."""

from collections.abc import Sequence
from typing import Literal

from pydantic import AwareDatetime

from slipstream.errors import SlipstreamError
from slipstream.fleet.far_commands import call, read_answer
from slipstream.fleet.record import Fleet
from slipstream.fleet.status import FleetStatus, GroupState
from slipstream.fleet.transport import Transport, ask_all
from slipstream.records import Record
from slipstream.serving.live_view import LiveView
from slipstream.steering.drafts import Drafts
from slipstream.steering.state import SteeringState

VIEW_SECONDS = 30


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
    """All groups at one moment."""

    schema_version: Literal[1] = 1
    fleet: str
    at: AwareDatetime
    groups: tuple[GroupView, ...]

    @property
    def tokens_per_second(self) -> float | None:
        """Return what all groups generate together, as far as it is known."""
        return _add([group.tokens_per_second for group in self.groups])


def read_fleet_view(fleet: Fleet, transport: Transport, status: FleetStatus) -> FleetView:
    """Ask the first machine of every group that has a run."""
    heads = {name: group.machines[0] for name, group in fleet.groups.items()}
    runs = {name: status.find_machine(head).run for name, head in heads.items()}
    asked = {name: run.id for name, run in runs.items() if run is not None}

    def ask(name: str) -> LiveView:
        words = ["top", "--once", "--json", asked[name]]
        answer = call(fleet, transport, heads[name], words, timeout=VIEW_SECONDS)
        return read_answer(heads[name], answer, LiveView)

    views = ask_all(asked, ask)
    return FleetView(
        fleet=fleet.name,
        at=status.at,
        groups=tuple(
            _describe(one.name, fleet.groups[one.name].machines, one.state, views.get(one.name))
            for one in status.groups
        ),
    )


def _describe(
    name: str,
    machines: tuple[str, ...],
    state: GroupState,
    view: LiveView | SlipstreamError | None,
) -> GroupView:
    if not isinstance(view, LiveView):
        return GroupView(name=name, machines=machines, state=state)
    steering = view.steering
    return GroupView(
        name=name,
        machines=machines,
        state=state,
        tokens_per_second=view.measure_throughput(None),
        in_flight=view.in_flight,
        waiting=view.waiting,
        draft_length=steering.draft_length if steering else None,
        acceptance_length=_measure_acceptance(steering) if steering else None,
        restarts=view.status.restarts,
        drifts=len(view.status.drifts),
    )


def _measure_acceptance(state: SteeringState) -> float | None:
    """Return the mean acceptance length over all requests since the engine's start."""
    return Drafts.total(state.kinds.values()).tokens_per_step


def _add(figures: Sequence[float | None]) -> float | None:
    known = [figure for figure in figures if figure is not None]
    return sum(known) if known else None
