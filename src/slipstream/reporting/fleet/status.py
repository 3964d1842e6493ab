"""A fleet as it runs: its state, what it does, what its doctor found, and a rollout."""

from slipstream.fleet.machines.commands import escape
from slipstream.fleet.rolling.rollout import GroupRoll, Rollout
from slipstream.fleet.running.examination import FleetExamination, MachineCheck
from slipstream.fleet.running.status import (
    RENEW_BEFORE,
    FleetStatus,
    FleetView,
    GroupView,
    MachineStatus,
)
from slipstream.reporting.report import align, show
from slipstream.reporting.serving.run import show_age


def render_fleet_status(status: FleetStatus) -> str:
    """Show groups, then machines, then what to type about those that could not be asked."""
    groups = [(one.name, one.state, escape(one.url or "none", 80)) for one in status.groups]
    machines = [_describe(one, status) for one in status.machines]
    parts = [
        align([("GROUP", "STATE", "URL"), *groups]),
        align([("MACHINE", "GROUP", "STATE", "FOR", "CERTIFICATE", "RUN", "LAST"), *machines]),
        [
            f"{one.name} runs another plan than the fleet's file sets, "
            f"{escape('; '.join(one.changed))}: slipstream fleet roll {one.name}"
            for one in status.groups
            if one.changed
        ],
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
        [
            line
            for one in status.machines
            if one.certificate_ends and one.certificate_ends - status.at < RENEW_BEFORE
            for line in (
                f"warning: {one.machine}: a certificate expires on {one.certificate_ends:%Y-%m-%d}",
                "  hint: slipstream fleet up, on the machine with the fleet's authority",
            )
        ],
        [f"next: {_suggest(status)}"],
    ]
    return "\n\n".join("\n".join(part) for part in parts if part)


def _describe(one: MachineStatus, status: FleetStatus) -> tuple[str, ...]:
    place = "none" if one.group is None else f"{one.group}, rank {one.rank}"
    days = f"{(one.certificate_ends - status.at).days} days" if one.certificate_ends else "none"
    if one.fault is not None:
        return one.machine, place, "unknown", "", "", "", "it could not be reached"
    if one.run is None:
        return one.machine, place, "none", "", days, "", "no run of this fleet"
    age = show_age((status.at - one.run.since).total_seconds())
    message = escape(one.run.message or "", 60)
    return one.machine, place, one.run.state, age, days, escape(one.run.id, 80), message


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
    total = show(view.tokens_per_second, 0)
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
        show(group.tokens_per_second, 0),
        show(group.in_flight, 0),
        show(group.waiting, 0),
        show(group.draft_length, 0),
        show(group.acceptance_length, 2),
        show(group.restarts, 0),
        str(group.drifts),
    )


def render_fleet_examination(examination: FleetExamination) -> str:
    """Show every finding with its machine and what to type, faults first."""
    ordered = sorted(examination.found, key=lambda one: one.check.verdict != "fault")
    lines = [line for one in ordered for line in _describe_check(one)]
    faults, warnings = examination.count("fault"), examination.count("warning")
    end = f"{faults} faults, {warnings} warnings, {examination.passed} checks passed"
    return "\n".join([*lines, *([""] if lines else []), end])


def _describe_check(one: MachineCheck) -> list[str]:
    where = f"{one.machine}: " if one.machine else ""
    lines = [f"{one.check.verdict} ({one.check.subject}): {where}{one.check.message}"]
    lines += [f"  - {detail}" for detail in one.check.details]
    return [*lines, *([f"  hint: {one.check.hint}"] if one.check.hint else [])]


def render_rollout(rollout: Rollout) -> str:
    """Write a line per group, and how it ended."""
    width = max(len(one.group) for one in rollout.groups)
    what = "plan" if rollout.drafter is None else "drafter"
    lines = [f"{one.group:<{width}}  {_describe_roll(one, what)}" for one in rollout.groups]
    took = (rollout.changed_at - rollout.began_at).total_seconds()
    lines += ["", f"rollout {rollout.id}: {rollout.state} after {took:.0f} s"]
    if rollout.failure:
        lines.append(f"because of {escape(rollout.failure)}")
    if rollout.state == "rollback failed":
        lines.append("next: slipstream fleet status, then slipstream fleet roll --resume")
    return "\n".join(lines)


def _describe_roll(one: GroupRoll, what: str) -> str:
    left = f"left to do: {', '.join(one.remaining)}" if one.remaining else f"{one.version} {what}"
    took = ", ".join(f"{step} {seconds:.1f} s" for step, seconds in one.seconds.items())
    checks = [f"; {escape(result)}" for result in (one.verified, one.evaluated) if result]
    return left + (f" ({took})" if took else "") + "".join(checks)
