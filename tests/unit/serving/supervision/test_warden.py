"""Nothing outlives its owner, whatever ends the owner and wherever a process went."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from slipstream.serving.run import read_process
from slipstream.serving.supervision.engine_process import end_group, run_group, start_group
from slipstream.serving.supervision.warden import SUCCEED_AFTER_SECONDS

FAMILY = """
import os, subprocess, sys, time
sleeper = [sys.executable, "-c", "import time; time.sleep(60)"]
child = subprocess.Popen(sleeper)
strayed = subprocess.Popen(sleeper, start_new_session=True)
print(os.getpid(), child.pid, strayed.pid, flush=True)
"""
OWNER = """
import os, sys, time
from pathlib import Path
from slipstream.serving.supervision.engine_process import start_group
command, successor = [sys.executable, "-c", sys.argv[1]], sys.argv[3:]
wait = float(os.environ.get("WAIT", 0))
process = start_group(
    command, os.environ, Path(sys.argv[2]), successor=successor, successor_wait_seconds=wait
)
print(process.pid, flush=True)
time.sleep(60)
"""
STAYS = FAMILY + "time.sleep(60)"


def read_when_written(path: Path, words: int) -> list[str]:
    deadline = time.monotonic() + 20
    while len(found := path.read_text().split() if path.exists() else []) < words:
        assert time.monotonic() < deadline, f"{path} holds only {found}"
        time.sleep(0.01)
    return found


def wait_until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 10
    while left := [pid for pid in pids if read_process(pid)]:
        assert time.monotonic() < deadline, f"{left} live on"
        time.sleep(0.01)


@pytest.mark.parametrize(("program", "code"), [("exit(0)", 0), ("exit(7)", 7)])
def test_the_exit_code_is_the_commands(tmp_path: Path, program: str, code: int) -> None:
    with run_group([sys.executable, "-c", program], os.environ, tmp_path / "log") as process:
        assert process.wait(timeout=20) == code


def test_a_command_that_a_signal_ends_is_seen_to_end_by_it(tmp_path: Path) -> None:
    program = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    with run_group([sys.executable, "-c", program], os.environ, tmp_path / "log") as process:
        assert process.wait(timeout=20) == -signal.SIGKILL


def test_what_a_command_leaves_behind_ends_with_it(tmp_path: Path) -> None:
    with run_group([sys.executable, "-c", FAMILY], os.environ, tmp_path / "log") as process:
        assert process.wait(timeout=20) == 0
    _, child, strayed = map(int, (tmp_path / "log").read_text().split())
    assert read_process(child) is None
    assert read_process(strayed) is None


def test_a_killed_command_takes_its_children_along(tmp_path: Path) -> None:
    with run_group([sys.executable, "-c", STAYS], os.environ, tmp_path / "log") as process:
        pids = [int(word) for word in read_when_written(tmp_path / "log", 3)]
        os.kill(pids[0], signal.SIGKILL)
        assert process.wait(timeout=20) == -signal.SIGKILL
    assert [pid for pid in pids if read_process(pid)] == []


@contextmanager
def owned(folder: Path, successor: str = "", **variables: str) -> Iterator[list[int]]:
    """Yield the warden and the family of an owner that runs, which is then killed."""
    log = folder / "log"
    succeeding = [sys.executable, "-c", successor] if successor else []
    command = [sys.executable, "-c", OWNER, STAYS, str(log), *succeeding]
    environment = {**os.environ, **variables}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as owner:
        assert owner.stdout is not None
        warden = int(owner.stdout.readline())
        family = [int(word) for word in read_when_written(log, 3)]
        yield [warden, *family]
        owner.kill()


def test_a_killed_owner_leaves_nothing(tmp_path: Path) -> None:
    with owned(tmp_path) as pids:
        assert all(read_process(pid) for pid in pids)
    wait_until_gone(pids)


def test_the_warden_becomes_the_successor_of_a_killed_owner(tmp_path: Path) -> None:
    told = tmp_path / "successor"
    program = (
        f"import os; open({str(told)!r}, 'w').write(f'{{os.getpid()}} {{os.environ[\"HERE\"]}}')"
    )
    with owned(tmp_path, program, HERE="yes") as (warden, *pids):
        pass
    assert read_when_written(told, 2) == [str(warden), "yes"]
    assert [pid for pid in pids if read_process(pid)] == []


def test_a_killed_warden_is_seen_and_its_group_can_be_ended(tmp_path: Path) -> None:
    process = start_group([sys.executable, "-c", STAYS], os.environ, tmp_path / "log")
    command, child, strayed = map(int, read_when_written(tmp_path / "log", 3))
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait(timeout=20) == -signal.SIGKILL
    end_group(process, grace_seconds=5)
    wait_until_gone([command, child])
    os.kill(strayed, signal.SIGKILL)


def test_the_environment_is_in_no_command_line(tmp_path: Path) -> None:
    environment = {**os.environ, "TOKEN": "a-secret-of-the-owner"}
    process = start_group([sys.executable, "-c", STAYS], environment, tmp_path / "log")
    pids = [process.pid, *map(int, read_when_written(tmp_path / "log", 3))]
    lines = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids]
    end_group(process, grace_seconds=5)
    assert all(b"a-secret" not in line for line in lines)


def test_a_warden_that_waits_to_succeed_can_be_stopped(tmp_path: Path) -> None:
    told = tmp_path / "successor"
    program = f"open({str(told)!r}, 'w').write('here')"
    with owned(tmp_path, program, WAIT="60") as (warden, *pids):
        pass
    wait_until_gone(pids)
    deadline = time.monotonic() + 10
    while read_process(warden):
        assert time.monotonic() < deadline
        os.kill(warden, signal.SIGTERM)
        time.sleep(0.05)
    assert not told.exists()


@pytest.mark.parametrize(("wait", "least"), [("0", SUCCEED_AFTER_SECONDS), ("2", 2.0)])
def test_a_successor_comes_after_the_wait_that_the_owner_set(
    tmp_path: Path, wait: str, least: float
) -> None:
    told = tmp_path / "successor"
    program = f"import time; open({str(told)!r}, 'w').write(str(time.monotonic()))"
    with owned(tmp_path, program, WAIT=wait):
        killed = time.monotonic()
    (began,) = read_when_written(told, 1)
    assert float(began) - killed >= least
