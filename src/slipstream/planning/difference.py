"""Two plans compared: settings that only one has, or that differ."""

from typing import Literal

from slipstream.planning.plan import LaunchPlan
from slipstream.records import Record


class Difference(Record):
    """One setting on which two plans disagree; None is not set."""

    flag: str
    left: str | None
    right: str | None
    because: str


class DifferenceList(Record):
    """All disagreements of two plans as one document."""

    schema_version: Literal[1] = 1
    differences: tuple[Difference, ...]


def diff_plans(left: LaunchPlan, right: LaunchPlan) -> tuple[Difference, ...]:
    """List the disagreements in the order of the plans, with the right side's reason."""
    flags = dict.fromkeys(
        decision.flag for plan in (left, right) for decision in (*plan.decisions, *plan.variables)
    )
    differences = []
    for flag in flags:
        ours, theirs = left.find(flag), right.find(flag)
        shown = [None if side is None else side.value or "set" for side in (ours, theirs)]
        if shown[0] != shown[1]:
            reason = theirs or ours
            because = reason.because if reason else ""
            differences.append(
                Difference(flag=flag, left=shown[0], right=shown[1], because=because)
            )
    return tuple(differences)
