"""A fleet's runs as text; what machines say of themselves is escaped."""

from slipstream.fleet.status import FleetStatus, MachineStatus
from slipstream.fleet.transport import escape
from slipstream.reporting.serving.run import show_age
from slipstream.reporting.text.tables import align


def render_fleet_status(status: FleetStatus) -> str:
    """Show groups, then machines, then what to type about those that could not be asked."""
    groups = [(one.name, one.state, escape(one.url or "none", 80)) for one in status.groups]
    machines = [_describe(one, status) for one in status.machines]
    parts = [
        align([("GROUP", "STATE", "URL"), *groups]),
        align([("MACHINE", "GROUP", "STATE", "FOR", "RUN", "LAST"), *machines]),
        [
            line
            for one in status.machines
            if one.fault
            for line in (f"warning: {escape(one.fault)}", f"  hint: {one.hint}")
        ],
        [f"next: {_suggest(status)}"],
    ]
    return "\n\n".join("\n".join(part) for part in parts if part)


def _describe(one: MachineStatus, status: FleetStatus) -> tuple[str, ...]:
    place = "none" if one.group is None else f"{one.group}, rank {one.rank}"
    if one.fault is not None:
        return one.machine, place, "unknown", "", "", "it could not be asked"
    if one.run is None:
        return one.machine, place, "none", "", "", "no run of this fleet"
    age = show_age((status.at - one.run.since).total_seconds())
    said = escape(one.run.message or "", 60)
    return one.machine, place, one.run.state, age, escape(one.run.id, 80), said


def _suggest(status: FleetStatus) -> str:
    states = {group.state for group in status.groups}
    if "failed" in states or "unknown" in states:
        return "slipstream fleet doctor"
    if "down" in states:
        return "slipstream fleet up"
    return "slipstream fleet top" if states == {"ready"} else "slipstream fleet logs -f --events"
