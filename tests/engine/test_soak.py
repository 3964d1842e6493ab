"""The short form of `scripts/soak`: minutes of everything at once, and one kill."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.weekly]

SCRIPT = Path(__file__).parents[2] / "scripts" / "soak"
HOURS = 0.03


def test_a_few_minutes_of_everything_leave_no_error_unexplained(tmp_path: Path) -> None:
    words = ["--hours", str(HOURS), "--kills", "1", "--clients", "2", "--folder", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *words], capture_output=True, text=True, timeout=1200
    )
    sys.stdout.write(f"\n{done.stderr}{done.stdout}")
    errors = tmp_path / "errors.jsonl"
    assert done.returncode == 0, errors.read_text() if errors.exists() else done.stderr
    summary = json.loads(done.stdout)
    counts = summary["counts"]
    assert summary["missed"] == []
    assert counts["kills"] == 1
    assert counts.get("unexplained", 0) == 0
    for kind in ("chat", "completion", "stream", "structured", "tools"):
        assert counts[f"{kind}: answered"] > 0
    assert counts["hostile: refused on purpose"] > 0
    samples = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    assert {"supervisor", "warden", "api", "core", "soak"} <= set(samples[-1]["processes"])
    assert len({sample["generation"] for sample in samples if sample["ready"]}) == 2
