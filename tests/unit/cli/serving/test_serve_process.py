"""`serve` as a process of its own: what ends it, what follows it, and what it never imports."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from slipstream.cli.main import run
from slipstream.serving.run import Run, RunFolder, find_runs_root, is_alive, list_runs
from slipstream.serving.supervision.engine_process import choose_port
from tests.unit.cli.serving.test_serve import pair

__all__ = ["pair"]

SOURCE = str(Path(__file__).parents[4] / "src")
# Asks itself to stop in a state, while a download goes on that nothing interrupts.
DRIVER = """
import os, sys, time
from concurrent.futures import ThreadPoolExecutor
from slipstream.cli import main
from slipstream.cli.weights import WeightsOnDisk
from slipstream.serving.run import RunFolder
state, number, begin = sys.argv[1], int(sys.argv[2]), RunFolder.begin

def download(*_):
    with ThreadPoolExecutor() as pool:
        pool.submit(time.sleep, 60)
        os.kill(os.getpid(), number)
        pool.submit(time.sleep, 60).result()

def plan(self, run):
    begin(self, run)
    os.kill(os.getpid(), number)
    time.sleep(60)

if state == "planned":
    RunFolder.begin = plan
WeightsOnDisk.localize = download
sys.argv = ["slipstream", *sys.argv[3:]]
main.run_and_exit()
"""
PLANTED = """
from pathlib import Path
Path(__file__).with_name("planted-code-ran").touch()
"""


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return what a process needs to find our packages and the fake engine."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((os.environ["PYTHONPATH"], SOURCE)))
    return dict(os.environ)


def find_newest() -> tuple[RunFolder, Run]:
    return list_runs(find_runs_root(os.environ))[0]


def wait_for_ready(count: int) -> Run:
    """Wait until there are so many runs and the newest is ready."""
    deadline = time.monotonic() + 60
    while len(found := list_runs(find_runs_root(os.environ))) < count or (
        found[0][1].state != "ready"
    ):
        assert time.monotonic() < deadline, [run.state for _, run in found]
        time.sleep(0.05)
    return found[0][1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("state", ["planned", "downloading"])
def test_a_run_stops_before_there_is_an_engine(
    pair: list[str], environment: dict[str, str], state: str, number: signal.Signals
) -> None:
    words = ["serve", *pair, "--port", str(choose_port(None))]
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-P", "-c", DRIVER, state, str(int(number)), *words],
        env=environment,
        capture_output=True,
        timeout=50,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert time.monotonic() - began < 30
    folder, run = find_newest()
    assert run.state == "stopped"
    before = [event.state for event in folder.read_events()][:-2]
    assert before == ([] if state == "planned" else ["downloading"])


def test_a_successor_takes_over_waits_longer_each_time_and_runs_no_planted_code(
    pair: list[str], environment: dict[str, str], tmp_path: Path
) -> None:
    for name in ("vllm", "slipstream", "httpx", "pydantic"):
        (tmp_path / f"{name}.py").write_text(PLANTED)
    words = ["serve", *pair, "--port", str(choose_port(None)), "--detach"]
    command = [sys.executable, "-P", "-m", "slipstream", *words]
    started = subprocess.run(command, env=environment, capture_output=True, timeout=60)
    try:
        assert started.returncode == 0, started.stderr.decode()
        first = wait_for_ready(1)
        assert first.argv[:3] == (sys.executable, "-P", "-m")
        waits = list[float]()
        for count in (2, 3):
            supervisor = find_newest()[1].supervisor
            os.kill(supervisor.pid, signal.SIGKILL)
            killed = time.time()
            run_now = wait_for_ready(count)
            waits.append(run_now.began_at.timestamp() - killed)
            assert len(run_now.takeovers) == count - 1
        sys.stdout.write(f"\nsuccessors began {waits[0]:.1f} and {waits[1]:.1f} s after a kill")
        assert waits[0] >= 1
        assert waits[1] >= 5
    finally:
        assert run(["stop"], os.environ) == 0
    assert not is_alive(find_newest()[1].supervisor)
    assert not (tmp_path / "planted-code-ran").exists()


def test_the_module_run_by_name_imports_nothing_from_the_working_directory(
    environment: dict[str, str], tmp_path: Path
) -> None:
    for name in ("pydantic", "httpx", "argparse", "tomllib"):
        (tmp_path / f"{name}.py").write_text(PLANTED)
    command = [sys.executable, "-m", "slipstream", "models"]
    done = subprocess.run(command, env=environment, capture_output=True, timeout=30)
    assert done.returncode == 0, done.stderr.decode()
    assert not (tmp_path / "planted-code-ran").exists()


def read_all(master: int) -> str:
    """Return what was written to a terminal until its last writer closed it."""
    parts = list[bytes]()
    with suppress(OSError):  # EIO is the end of a terminal.
        while part := os.read(master, 4096):
            parts.append(part)
    return b"".join(parts).decode()


def test_on_a_terminal_a_detached_run_shows_progress_and_only_lines_reach_its_log(
    pair: list[str], environment: dict[str, str]
) -> None:
    words = ["serve", *pair, "--port", str(choose_port(None)), "--detach"]
    command = [sys.executable, "-P", "-m", "slipstream", *words]
    master, terminal = os.openpty()
    environment["TERM"] = "xterm"
    with subprocess.Popen(command, env=environment, stderr=terminal) as started:
        os.close(terminal)
        shown = read_all(master)
    os.close(master)
    try:
        assert started.returncode == 0, shown
        assert "ready at http" in shown
        log = find_newest()[0].supervisor_log.read_text()
        assert "ready at http" in log
        assert "\033" not in log
    finally:
        run(["stop", "--now"], os.environ)
