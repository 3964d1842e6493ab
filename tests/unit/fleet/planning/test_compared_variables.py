"""docs/fleet.md shows beside other scripts what the plan of the same Sparks really sets."""

import re
from pathlib import Path

import pytest

from slipstream.fleet.plan import FleetPlan
from tests.unit.fleet.planning.test_planner import plan_sparks

PAGE = Path(__file__).parents[4] / "docs" / "fleet.md"


def list_rows(title: str) -> list[tuple[list[str], str]]:
    """Return the settings and our values of a table, by the words before it."""
    text = PAGE.read_text().partition(f"**{title}")[2].partition("\n\n|")[2]
    rows = [line.split(" | ") for line in text.partition("\n\n")[0].splitlines()[2:]]
    return [(re.findall(r"`([^`]+)`", row[0]), row[1].strip()) for row in rows]


def split(ours: str, count: int) -> list[str]:
    """Return our value of each setting of a row; none if it is told in words."""
    if ours == "not set":
        return [ours] * count
    values = re.split("; " if ";" in ours else ", ", ours) if count > 1 else [ours]
    return values if not re.search(r"[a-z] [a-z]|rank", ours) else []


def show(plan: FleetPlan, name: str) -> str:
    """Show a setting of the first rank, and after it that of the second if it differs."""
    found = [rank.plan.find(name) for rank in plan.groups[0].ranks[:2]]
    if name.startswith("RAY_"):
        return "not set"
    values = ["not set" if one is None else str(one.value) for one in found]
    if name == "VLLM_HOST_IP":
        values[1] = f".{values[1].rpartition('.')[2]}"
    return values[0] if values[0] == values[1] else ", ".join(values)


@pytest.mark.parametrize(
    ("title", "name"), [("Two Sparks", "two-sparks"), ("Four Sparks", "four-sparks")]
)
def test_our_column_is_what_the_plan_sets(title: str, name: str) -> None:
    plan = plan_sparks(name)
    shown = {
        setting: value
        for names, ours in list_rows(title)
        for setting, value in zip(names, split(ours, len(names)), strict=False)
    }
    assert len(shown) >= 8
    assert {setting: show(plan, setting) for setting in shown} == shown
