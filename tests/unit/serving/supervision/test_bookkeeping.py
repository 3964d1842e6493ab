"""A disk that is full, read-only or gone costs lines in a file, and never an engine."""

import asyncio
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from slipstream.cli.main import run
from slipstream.errors import InvalidInputError
from slipstream.records import read_record
from slipstream.serving.access.gate_file import GateSettings
from slipstream.serving.messages import GateCounts, Readiness
from slipstream.serving.run import RunFolder, Terms, read_process
from slipstream.serving.run_status import read_live
from slipstream.serving.supervision import engine_process, event_log
from slipstream.serving.supervision.engine_process import run_group
from slipstream.serving.supervision.watching import gate_following, watchdog
from tests.unit.full_disk import fill, unmount_disk
from tests.unit.serving.supervision.fake_engine import MakeStage, Stage
from tests.unit.serving.supervision.test_restarts import NO_ROOM


@pytest.fixture(autouse=True)
def hurry(hurried: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the watchdog look, and lose its patience, within a second."""
    monkeypatch.setattr(watchdog, "READY_WITHIN_SECONDS", 0.6)
    monkeypatch.setattr(watchdog, "PROBE_EVERY_SECONDS", 0.2)
    monkeypatch.setattr("slipstream.serving.supervision.generation.PROBE_SECONDS", 0.3)


def refuse_writing(_: Stage) -> Callable[[], None]:
    """Have every write of this process fail with EFBIG, as a full disk has it fail."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, before)


def put_a_file_there(stage: Stage) -> Callable[[], None]:
    """Put a file in the folder's place: nothing can be written there, not even by root."""
    moved = stage.folder.path.rename(stage.folder.path.with_name("moved"))
    stage.folder.path.touch()

    def undo() -> None:
        stage.folder.path.unlink()
        moved.rename(stage.folder.path)

    return undo


def remove_it(stage: Stage) -> Callable[[], None]:
    shutil.rmtree(stage.folder.path)
    return lambda: None


@pytest.fixture
def small_stage(small_disk: Path, tmp_path: Path, make_stage: MakeStage) -> Stage:
    """Return a stage whose runs are on a disk that can be filled."""
    (tmp_path / "runs").symlink_to(small_disk)
    return make_stage()


async def fall_silent(stage: Stage) -> None:
    """Have the engine hang for long enough to be unready, and come back."""
    warmed, ready = stage.count("warming"), stage.count("ready")
    (stage.fake / "hang").touch()
    await stage.reach("warming", times=warmed + 1)
    (stage.fake / "hang").unlink()
    await stage.reach("ready", times=ready + 1)


@contextmanager
def read_only(disk: Path) -> Iterator[None]:
    """Have nothing on a disk change that is not open already, not even for root."""
    for words in (["--bind", str(disk), str(disk)], ["-o", "remount,bind,ro", str(disk)]):
        subprocess.run(["mount", *words], check=True)
    try:
        yield
    finally:
        unmount_disk(disk)


@pytest.mark.parametrize("spoil", [refuse_writing, put_a_file_there, remove_it])
def test_a_run_that_cannot_be_written_down_goes_on(
    stage: Stage, spoil: Callable[[Stage], Callable[[], None]]
) -> None:
    pids, states = [], list[str]()

    async def act(stage: Stage) -> None:
        await stage.reach("ready")
        gate = await stage.say(GateCounts(pid=1))
        pids.append(stage.pid())
        undo = spoil(stage)
        try:
            await fall_silent(stage)
        finally:
            undo()
        await asyncio.sleep(0.3)
        assert stage.folder.read() == stage.run
        pids.append(stage.pid())
        while len(states) < 3:
            heard = await gate.hear(Readiness)
            assert isinstance(heard, Readiness)
            # Said again if a note came or went.
            if heard.state not in states[-1:]:
                states.append(heard.state)

    stage.serve(act)
    assert pids[0] == pids[1]
    assert stage.run.restarts == 0
    assert states == ["ready", "warming", "ready"]
    told = [event.message for event in stage.events]
    written = [event.message for event in stage.folder.read_events()]
    if spoil is remove_it:  # It is made anew, without what happened before.
        assert written == told[-len(written) :]
        assert any(message.startswith("not ready") for message in written)
        return
    assert written == told
    (trouble,) = [
        number for number, message in enumerate(told) if "the engine keeps running" in message
    ]
    again = told.index("the run's folder is writable again")
    assert trouble < again


def test_what_is_told_may_fail_too(stage: Stage) -> None:

    def refuse(event: object) -> None:
        raise BrokenPipeError

    lonely = event_log.EventLog(stage.folder, stage.run, refuse)
    lonely.move("downloading", "the terminal is gone")
    assert stage.folder.read_events()[-1].message == "the terminal is gone"


def test_unwritten_events_are_kept_up_to_a_number(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_log, "KEPT_EVENTS", 3)
    lonely = event_log.EventLog(stage.folder, stage.run, stage.events.append)
    undo = put_a_file_there(stage)
    for number in range(9):
        lonely.note(f"note {number}")
    undo()
    lonely.save()
    assert [event.message for event in stage.folder.read_events()] == [
        *("note 6", "note 7", "note 8"),
        "the run's folder is writable again",
    ]


def test_an_engine_that_dies_over_an_unwritable_folder_is_replaced(make_stage: MakeStage) -> None:
    stage = make_stage({"at": "say", "with": [], "words": NO_ROOM})
    gates = []

    def find_gate() -> Path:
        return Path(stage.read_environment()["SLIPSTREAM_GATE"])

    async def act(stage: Stage) -> None:
        await stage.reach("ready")
        undo = put_a_file_there(stage)
        try:
            os.kill(stage.pid(), signal.SIGKILL)
            await stage.reach("ready", times=2)
            gates.append(gate := find_gate())
            assert gate.parent.stat().st_mode & 0o077 == 0
            socket = read_record(gate, GateSettings, hint="").socket
            peer = await stage.say(GateCounts(pid=1), socket=socket)
            assert await peer.hear(Readiness) == Readiness(state="ready")
        finally:
            undo()
        await asyncio.sleep(0.3)
        os.kill(stage.pid(), signal.SIGKILL)
        await stage.reach("ready", times=3)
        assert find_gate() == stage.folder.gate

    stage.serve(act)
    assert gates[0] != stage.folder.gate
    assert not gates[0].exists()
    assert stage.run.state == "stopped"
    assert f"the gate's settings and the ledger are in {gates[0].parent}" in stage.messages()


async def replace_engine(stage: Stage) -> None:
    started = stage.count_starts()
    os.kill(stage.pid(), signal.SIGKILL)
    while stage.count_starts() == started:
        await asyncio.sleep(0.01)
    while stage.run.state != "ready":
        await asyncio.sleep(0.01)


def test_status_says_what_is_true_while_the_disk_is_read_only(
    small_stage: Stage,
    small_disk: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "state" / "slipstream").mkdir(parents=True)
    (tmp_path / "state" / "slipstream" / "runs").symlink_to(small_disk)

    async def ask() -> dict[str, Any]:
        """Ask from another thread, as from another terminal: the supervisor has to answer."""
        capsys.readouterr()
        assert await asyncio.to_thread(run, ("status", "one", "--json"), os.environ) == 0
        status: dict[str, Any] = json.loads(capsys.readouterr().out)
        return status

    async def act(stage: Stage) -> None:
        stage.event_log.update(supervisor=read_process(os.getpid()))
        await stage.reach("ready")
        with read_only(small_disk):
            await replace_engine(stage)
            status = await ask()
            assert status["restarts"] == stage.run.restarts == 1
            assert stage.folder.read().restarts == 0
            assert stage.run.engine is not None
            assert status["engine_pid"] == stage.run.engine.pid
            assert status["message"] == stage.events[-1].message
        async with asyncio.timeout(30):
            while stage.folder.read() != stage.run:
                await asyncio.sleep(0.05)
        assert (await ask())["restarts"] == 1

    small_stage.serve(act)


def test_a_gate_whose_file_could_not_be_written_gets_its_rules_later_and_in_shared_memory(
    make_stage: MakeStage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate_following, "LOOK_EVERY_SECONDS", 0.02)
    rules = tmp_path / "gate.toml"
    rules.write_text("retry_after_seconds = 1\n")
    stage = make_stage(terms=Terms(gate_file=rules))

    async def follow(seconds: int) -> None:
        wanted = f'"retry_after_seconds": {seconds}'
        async with asyncio.timeout(20):
            while wanted not in Path(stage.read_environment()["SLIPSTREAM_GATE"]).read_text():
                await asyncio.sleep(0.02)

    async def act(stage: Stage) -> None:
        await stage.reach("ready")
        await follow(1)
        undo = put_a_file_there(stage)
        try:
            rules.write_text("retry_after_seconds = 22\n")
            await asyncio.sleep(0.3)
            undo()
            await follow(22)
            undo = put_a_file_there(stage)
            os.kill(stage.pid(), signal.SIGKILL)
            await stage.reach("ready", times=2)
            rules.write_text("retry_after_seconds = 333\n")
            await follow(333)
        finally:
            undo()

    stage.serve(act)
    assert stage.run.restarts == 1


def test_a_full_disk_costs_no_engine_and_the_run_says_how_it_stands(
    small_stage: Stage, small_disk: Path
) -> None:
    seen = []

    async def act(stage: Stage) -> None:
        await stage.reach("ready")
        fill(small_disk)
        first = stage.pid()
        await fall_silent(stage)
        assert stage.pid() == first
        assert stage.folder.read().state == "ready"
        os.kill(first, signal.SIGKILL)
        await stage.reach("ready", times=3)
        seen.append(stage.folder.read())
        assert stage.read_environment()["SLIPSTREAM_GATE"] == str(stage.folder.gate)
        assert (await asyncio.to_thread(read_live, stage.folder)) is not None
        (small_disk / "filler").unlink()
        await asyncio.sleep(0.3)

    small_stage.serve(act)
    assert (seen[0].state, seen[0].restarts) == ("ready", 1)
    assert [event.message for event in small_stage.folder.read_events()] == [
        event.message for event in small_stage.events
    ]
    assert "disk_full: there is no space left to write" in small_stage.messages()


def test_a_new_run_on_a_full_disk_is_refused_and_leaves_nothing(
    small_stage: Stage, small_disk: Path
) -> None:
    fill(small_disk)
    other = RunFolder(small_disk / "two")
    with pytest.raises(InvalidInputError, match=r"^disk_full: ") as caught:
        other.begin(small_stage.run)
    assert caught.value.hint == f"df -h {other.path.parent}"
    assert not other.path.exists()


def test_a_busy_engine_whose_gate_is_silent_is_not_taken_for_dead(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "STUCK_AFTER_SECONDS", 1.2)

    async def act(stage: Stage) -> None:
        await stage.reach("ready")
        gate = await stage.say(GateCounts(pid=1, last_token=1.0, in_flight=2, total=2))
        (stage.fake / "busy").touch()
        await asyncio.sleep(3)
        gate.send(GateCounts(pid=1))
        (stage.fake / "busy").unlink()

    stage.serve(act)
    assert stage.run.restarts == 0
    assert stage.run.state == "stopped"


def test_a_command_goes_on_when_its_log_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = "import os\nfor n in range(200): print('x' * 999, flush=True)\nos._exit(7)"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with run_group([sys.executable, "-c", "pass"], os.environ, tmp_path / "log") as process:
        assert process.wait(timeout=20) == 0
    monkeypatch.setattr(Path, "write_bytes", lambda *_: 0)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        with run_group([sys.executable, "-c", program], os.environ, tmp_path / "log") as process:
            assert process.wait(timeout=20) == 7
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_log_is_kept_in_parts_of_a_bounded_size_and_no_line_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_process, "LOG_BYTES", 100_000)
    lines = "for n in range(60000): print(f'line {n:05}', flush=n % 500 == 0)"
    with run_group([sys.executable, "-c", lines], os.environ, tmp_path / "log") as process:
        assert process.wait(timeout=20) == 0
    files = sorted(tmp_path.iterdir(), reverse=True)
    assert [file.name for file in files] == ["log.3", "log.2", "log.1", "log"]
    assert all(file.stat().st_size <= 100_000 for file in files)
    kept = "".join(file.read_text() for file in files).splitlines()[1:]
    assert kept == [f"line {number:05}" for number in range(60000 - len(kept), 60000)]
    assert len(kept) > 9000
    assert read_process(process.pid) is None
