"""`fleet up` from a third machine, then a killed rank and a cut cable, over real SSH.

The engines are stubs whose ranks need each other; scripts/prove-group does the same with vLLM.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fleet_bed.bed import explain_absence

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(bool(explain_absence()), reason=explain_absence() or ""),
]
SCRIPT = Path(__file__).parents[3] / "scripts" / "prove-group"


def test_two_machines_are_one_group_from_start_to_stop() -> None:
    words = ["--stub", "--no-scan", "--faults", "kill-follower", "cut-link"]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "cut-link: both engines ended after" in done.stdout
    assert "two machines: 4 of 4 texts" in done.stdout
