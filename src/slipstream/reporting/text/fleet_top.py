"""A fleet as it works, a line per group."""

from slipstream.fleet.live import FleetView, GroupView
from slipstream.reporting.tables import align
from slipstream.units import UNKNOWN


def render_fleet_view(view: FleetView) -> list[str]:
    """Show what every group does, and all of them together."""
    ready = sum(group.state == "ready" for group in view.groups)
    total = _show(view.tokens_per_second, ".0f")
    head = (
        f"fleet {view.fleet}  {view.at:%H:%M:%S} UTC  "
        f"{ready} of {len(view.groups)} groups ready  {total} tokens/s"
    )
    columns = ("GROUP", "MACHINES", "STATE", "TOKENS/S", "RUNNING", "WAITING", "DRAFT", "ACCEPTED")
    rows = [(*columns, "RESTARTS", "DRIFTS"), *map(_describe, view.groups)]
    return [head, "", *align(rows)]


def _describe(group: GroupView) -> tuple[str, ...]:
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
