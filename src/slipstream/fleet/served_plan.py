"""The plan that a fleet serves now, as its machines keep it."""

from pydantic import ValidationError

from slipstream.errors import InvalidInputError, UnreachableError
from slipstream.fleet.plan import FleetPlan
from slipstream.fleet.record import Fleet
from slipstream.fleet.starting import FLEET_PLAN_NAME
from slipstream.fleet.transport import Transport, escape
from slipstream.records import describe_faults

READ_SECONDS = 30.0
_READ = 'cat "$1" 2>/dev/null || exit 3'


def read_served_plan(fleet: Fleet, transport: Transport) -> FleetPlan:
    """Read the plan that was started last, from the fleet's first machine."""
    machine, file = fleet.first_machine, f"{fleet.folder}/{FLEET_PLAN_NAME}"
    answer = transport.run(machine, ["sh", "-c", _READ, "sh", file], timeout=READ_SECONDS)
    if answer.code:
        raise InvalidInputError(
            f"{machine} has no plan of the fleet {fleet.name}", hint="slipstream fleet up"
        )
    try:
        plan = FleetPlan.model_validate_json(answer.stdout)
    except ValidationError as fault:
        raise UnreachableError(
            f"{machine}: {file} is not a plan that this version reads: "
            f"{escape('; '.join(describe_faults(fault)[:3]))}",
            hint="slipstream fleet up",
        ) from fault
    # Paths in it are those of the desk that wrote it.
    return plan.model_copy(update={"fleet": fleet})
