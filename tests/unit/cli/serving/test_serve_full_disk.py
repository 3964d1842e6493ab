"""`serve` on a full disk, with an engine that only pretends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slipstream.cli.main import run
from slipstream.serving.run import RunFolder, find_runs_root, list_runs, read_process
from slipstream.serving.supervision.engine_process import choose_port
from tests.unit.cli.serving.test_serve import (
    NOBODY,
    find_runs,
    pair,
    serve_until_ready,
    stopping_once,
)
from tests.unit.full_disk import FILLER, fill

Capture = pytest.CaptureFixture[str]

__all__ = ["pair"]


@pytest.fixture
def served(pair: list[str], small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """Return a run, on a small disk, whose supervisor was killed."""
    monkeypatch.setenv("XDG_STATE_HOME", str(small_disk))
    assert serve_until_ready(*pair, "--port", str(choose_port(None))) == 0
    ((folder, ended),) = list_runs(find_runs_root(os.environ))
    cut_off = {"state": "ready", "supervisor": NOBODY}
    folder.write(ended.model_copy(update=cut_off))
    return folder


def test_a_successor_on_a_full_disk_goes_on_in_the_folder_that_is_there(
    served: RunFolder, small_disk: Path, capsys: Capture
) -> None:
    fill(small_disk)
    here = read_process(os.getpid())

    def has_taken_over() -> bool:
        now = served.read()
        taken = now.supervisor == here and now.state == "ready"
        if taken:
            (small_disk / FILLER).unlink()
        return taken

    with stopping_once(has_taken_over):
        assert run(["serve", str(served.path)], os.environ) == 0
    assert [found.id for found in find_runs()] == [served.path.name]
    assert served.read().state == "stopped"
    assert "disk_full: there is no space left to write" in capsys.readouterr().err


def test_a_new_run_on_a_full_disk_is_refused_before_an_engine_starts(
    served: RunFolder, pair: list[str], tmp_path: Path, capsys: Capture
) -> None:
    fill(tmp_path / "disk")
    started = len(list((tmp_path / "fake").glob("start-*")))
    assert run(["serve", *pair, "--port", str(choose_port(None))], os.environ) == 1
    shown = capsys.readouterr().err
    assert "error: disk_full: " in shown
    assert "hint: df -h " in shown
    assert [path.name for path in served.path.parent.iterdir()] == [served.path.name]
    assert len(list((tmp_path / "fake").glob("start-*"))) == started


def test_a_detached_supervisor_that_is_killed_on_a_full_disk_has_a_successor(
    pair: list[str], small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(small_disk))
    paths = [os.environ["PYTHONPATH"], *filter(None, sys.path)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    command = [sys.executable, "-m", "slipstream"]
    served = [*command, "serve", *pair, "--port", str(choose_port(None)), "--detach"]
    subprocess.run(served, check=True, capture_output=True, timeout=120)
    ((folder, first),) = list_runs(find_runs_root(os.environ))
    fill(small_disk)
    os.kill(first.supervisor.pid, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while (now := folder.read()).supervisor == first.supervisor or now.state != "ready":
        assert time.monotonic() < deadline, now.state
        time.sleep(0.1)
    assert [found.id for found in find_runs()] == [first.id]
    subprocess.run([*command, "stop"], check=True, capture_output=True, timeout=60)
    assert read_process(now.supervisor.pid) is None
    assert folder.read().state == "stopped"
