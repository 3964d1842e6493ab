"""docs/faults.md knows every fault that the source can raise, and no other."""

import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
# Cautions of a measurement and findings of `doctor` have codes of their own.
FAULTS = re.compile(
    r"class Fault\(|from slipstream.checkpoints.pairing import .*(Fault|refuse|warn)"
)
RAISED = re.compile(r'(?:code ?= ?f?|(?:refuse|warn|misfit)\)?\(\s*)"([a-z{}-]+)"')


def list_raised() -> set[str]:
    found: set[str] = set()
    for path in (REPOSITORY / "src" / "slipstream").rglob("*.py"):
        text = path.read_text()
        for code in RAISED.findall(text) if FAULTS.search(text) else ():
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
