"""The runs of a fleet and what they do, a line per group and machine."""

from slipstream.fleet.machines.commands import escape
from slipstream.fleet.running.status import FleetStatus, FleetView, GroupView, MachineStatus
from slipstream.reporting.serving.run import show_age
from slipstream.reporting.tables import align
from slipstream.units import UNKNOWN


def render_fleet_status(status: FleetStatus) -> str:
    """Show groups, then machines, then what to type about those that could not be asked."""
    groups = [(one.name, one.state, escape(one.url or "none", 80)) for one in status.groups]
    machines = [_describe(one, status) for one in status.machines]
    parts = [
        align([("GROUP", "STATE", "URL"), *groups]),
        align([("MACHINE", "GROUP", "STATE", "FOR", "RUN", "LAST"), *machines]),
        [
            f"trial on {one.machine}: {escape(one.run.trial.describe())}"
            for one in status.machines
            if one.run is not None and one.run.trial is not None
        ],
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


def render_fleet_view(view: FleetView) -> list[str]:
    """Show what every group does, and all of them together."""
    ready = sum(group.state == "ready" for group in view.groups)
    total = _show(view.tokens_per_second, ".0f")
    head = (
        f"fleet {view.fleet}  {view.at:%H:%M:%S} UTC  "
        f"{ready} of {len(view.groups)} groups ready  {total} tokens/s"
    )
    columns = ("GROUP", "MACHINES", "STATE", "TOKENS/S", "RUNNING", "WAITING", "DRAFT", "ACCEPTED")
    rows = [(*columns, "RESTARTS", "DRIFTS"), *map(_describe_view, view.groups)]
    return [head, "", *align(rows)]


def _describe_view(group: GroupView) -> tuple[str, ...]:
    more = f" +{len(group.machines) - 1}" if len(group.machines) > 1 else ""
    return (
        group.name,
        f"{group.machines[0]}{more}",
        group.state,
        _show(group.tokens_per_second, ".0f"),
        _show(group.in_flight, "d"),
        _show(group.waiting, "d"),
        _show(group.draft_length, "d"),
        _show(group.acceptance_length, ".2f"),
        _show(group.restarts, "d"),
        str(group.drifts),
    )


def _show(figure: float | None, form: str) -> str:
    return UNKNOWN if figure is None else format(figure, form)
