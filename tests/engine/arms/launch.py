"""Starts an arm script in a process of its own and reads the outcome it leaves."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.engine.offline import engine_environment

ARMS = Path(__file__).parent


def run_script(
    script: str, job: dict[str, Any], scratch: Path, environment: Mapping[str, str] | None = None
) -> Any:
    """Hand a job to `arms/<script>` on stdin, keep its log, give back the JSON that it wrote."""
    outcome = scratch / f"{Path(script).stem}.json"
    finished = subprocess.run(
        [sys.executable, str(ARMS / script)],
        input=json.dumps(job | {"outcome": str(outcome)}),
        env=engine_environment() | dict(environment or {}),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    (scratch / f"{Path(script).stem}.log").write_text(finished.stdout + finished.stderr)
    assert finished.returncode == 0, finished.stderr[-3000:]
    return json.loads(outcome.read_text())
