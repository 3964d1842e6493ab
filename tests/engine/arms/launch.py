"""Runs an arm script, where vLLM is imported already if it can, and reads what it leaves."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

ARMS = Path(__file__).parent
WITHIN_SECONDS = 600


def engine_environment() -> dict[str, str]:
    """Keep the engine off the network and in one process; its log shows only trouble.

    Nothing is compiled: vLLM would spend five seconds of every process on the ranks of logprobs.
    """
    return os.environ | {
        "HF_HUB_OFFLINE": "1",
        "TORCH_COMPILE_DISABLE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "WARNING",
    }


def run_script(
    script: str, job: dict[str, Any], scratch: Path, environment: Mapping[str, str] | None = None
) -> Any:
    """Hand a job to `arms/<script>` on stdin, keep its log, return the JSON that it wrote.

    It must not start an engine, which has not been tried in a fork.
    """
    files = _write_job(script, job, scratch)
    order = {
        "script": str(ARMS / script),
        "job": str(files["job"]),
        "log": str(files["log"]),
        "environment": engine_environment() | dict(environment or {}),
        "seconds": WITHIN_SECONDS,
    }
    preloaded = _start_preloaded()
    assert preloaded.stdin is not None
    assert preloaded.stdout is not None
    preloaded.stdin.write(f"{json.dumps(order)}\n")
    preloaded.stdin.flush()
    return _read_outcome(files, preloaded.stdout.readline().strip())


def run_engine_script(
    script: str, job: dict[str, Any], scratch: Path, environment: Mapping[str, str] | None = None
) -> Any:
    """Do the same in a process of its own, for a script that starts an engine or another vLLM."""
    files = _write_job(script, job, scratch)
    with files["job"].open() as given, files["log"].open("w") as log:
        finished = subprocess.run(
            [sys.executable, str(ARMS / script)],
            env=engine_environment() | dict(environment or {}),
            stdin=given,
            stdout=log,
            stderr=log,
            timeout=WITHIN_SECONDS,
            check=False,
        )
    return _read_outcome(files, str(finished.returncode))


def _write_job(script: str, job: dict[str, Any], scratch: Path) -> dict[str, Path]:
    files = {kind: scratch / f"{Path(script).stem}.{kind}" for kind in ("job", "log", "json")}
    files["job"].write_text(json.dumps(job | {"outcome": str(files["json"])}))
    return files


def _read_outcome(files: Mapping[str, Path], code: str) -> Any:
    assert code == "0", f"exit code {code}: {files['log'].read_text()[-3000:]}"
    return json.loads(files["json"].read_text())


def end_preloaded() -> None:
    """End the process that has vLLM imported; the next script starts another."""
    if _start_preloaded.cache_info().currsize:
        with _start_preloaded() as process:
            assert process.stdin is not None
            process.stdin.close()
        _start_preloaded.cache_clear()


@cache
def _start_preloaded() -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, str(ARMS / "preloaded.py")],
        env=engine_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
