"""A rollout on the fleet's first machine: the record and both plans, for any desk to go on."""

from typing import TypeVar

from pydantic import ValidationError

from slipstream.errors import InvalidInputError
from slipstream.fleet.plan import FleetPlan
from slipstream.fleet.record import Fleet
from slipstream.fleet.roll import Rollout, Version
from slipstream.fleet.transport import Transport
from slipstream.records import Record

READ_SECONDS = 30.0
_RECORD = "rollout.json"
_PLANS: dict[Version, str] = {"old": "rollout-old-plan.json", "new": "rollout-new-plan.json"}
_READ = 'cat "$1" 2>/dev/null || exit 3'
AnyRecord = TypeVar("AnyRecord", bound=Record)


def save_rollout(fleet: Fleet, transport: Transport, rollout: Rollout) -> None:
    """Write down how far it is."""
    _write(fleet, transport, _RECORD, rollout)


def save_plans(fleet: Fleet, transport: Transport, plans: dict[Version, FleetPlan]) -> None:
    """Write down what groups had and what they get."""
    for version, plan in plans.items():
        _write(fleet, transport, _PLANS[version], plan)


def read_rollout(fleet: Fleet, transport: Transport) -> Rollout | None:
    """Read the last rollout, None if there was none."""
    return _read(fleet, transport, _RECORD, Rollout)


def read_plans(fleet: Fleet, transport: Transport) -> dict[Version, FleetPlan]:
    """Read both plans of the last rollout; paths in them are those of the desk that began it."""
    plans: dict[Version, FleetPlan] = {}
    for version, name in _PLANS.items():
        plan = _read(fleet, transport, name, FleetPlan)
        if plan is None:
            raise InvalidInputError(
                f"{fleet.first_machine} does not have both plans of the rollout",
                hint="slipstream fleet roll, to begin another",
            )
        plans[version] = plan.model_copy(update={"fleet": fleet})
    return plans


def _write(fleet: Fleet, transport: Transport, name: str, record: Record) -> None:
    transport.send(fleet.first_machine, record.to_json().encode(), f"{fleet.folder}/{name}")


def _read(fleet: Fleet, transport: Transport, name: str, kind: type[AnyRecord]) -> AnyRecord | None:
    command = ["sh", "-c", _READ, "sh", f"{fleet.folder}/{name}"]
    answer = transport.run(fleet.first_machine, command, timeout=READ_SECONDS)
    if answer.code:
        return None
    try:
        return kind.model_validate_json(answer.stdout)
    except ValidationError as fault:
        raise InvalidInputError(
            f"{fleet.first_machine}: {name} is not a {kind.__name__} that this version reads",
            hint="slipstream fleet roll, to begin another",
        ) from fault
