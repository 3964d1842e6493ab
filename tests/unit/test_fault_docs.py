"""docs/faults.md knows every fault that the source can raise, and no other."""

import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
# What weakens a measurement is a caution, shown with its verdict; what doctor finds has areas.
ELSEWHERE = ("measuring", "serving/support")
RAISED = re.compile(r'(?:code ?= ?f?|(?:refuse|warn|misfit)\)?\(\s*)"([a-z{}-]+)"')


def list_raised() -> set[str]:
    found: set[str] = set()
    source = REPOSITORY / "src" / "slipstream"
    for path in source.rglob("*.py"):
        if str(path.relative_to(source)).startswith(ELSEWHERE):
            continue
        for code in RAISED.findall(path.read_text()):
            found |= {code.replace("{role}", role) for role in ("target", "drafter")}
    return found


def list_documented() -> set[str]:
    rows = [
        line for line in (REPOSITORY / "docs/faults.md").read_text().splitlines() if "|" in line
    ]
    return {code for row in rows for code in re.findall(r"`([a-z-]+)`", row.split("|")[1])}


def test_every_fault_is_documented_and_nothing_else() -> None:
    assert len(list_raised()) > 20
    assert list_documented() == list_raised()
