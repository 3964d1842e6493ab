"""What a fleet's doctor found, as text."""

from slipstream.fleet.running.examination import FleetExamination, MachineCheck


def render_fleet_examination(examination: FleetExamination) -> str:
    """Show every finding with its machine and what to type, faults first."""
    ordered = sorted(examination.found, key=lambda one: one.check.verdict != "fault")
    lines = [line for one in ordered for line in _describe(one)]
    faults, warnings = examination.count("fault"), examination.count("warning")
    end = f"{faults} faults, {warnings} warnings, {examination.passed} checks passed"
    return "\n".join([*lines, *([""] if lines else []), end])


def _describe(one: MachineCheck) -> list[str]:
    where = f"{one.machine}: " if one.machine else ""
    lines = [f"{one.check.verdict} ({one.check.subject}): {where}{one.check.message}"]
    lines += [f"  - {detail}" for detail in one.check.details]
    return [*lines, *([f"  hint: {one.check.hint}"] if one.check.hint else [])]
