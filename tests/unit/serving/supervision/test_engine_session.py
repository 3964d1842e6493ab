"""An engine is all of its session: found without its leader, and ended to the last process."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from slipstream.errors import EngineError
from slipstream.serving.run import Process, read_process
from slipstream.serving.supervision.engine_session import (
    GRACE_SECONDS,
    ProcessTools,
    end_session,
    list_session,
    measure_session,
)
from tests.unit.serving.kept_runs import ENGINE, FakeProc

TERM, KILL = signal.SIGTERM, signal.SIGKILL
WORKER = Process(pid=4700, start_ticks=1001)
# A leader and a child, both of which ignore being asked to end.
STUBBORN = r"""
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.fork()
os.write(1, b"up\n")
signal.pause()
"""


def test_a_session_is_found_leader_first_and_without_strangers(proc: FakeProc) -> None:
    proc.add_engine(WORKER.pid)
    proc.add(Process(pid=1, start_ticks=2))
    assert list_session(ENGINE, proc.path) == (ENGINE, WORKER)


def test_workers_are_found_after_their_leader(proc: FakeProc) -> None:
    proc.add_engine(WORKER.pid)
    proc.remove(ENGINE.pid)
    assert list_session(ENGINE, proc.path) == (WORKER,)
    proc.add(WORKER, session=ENGINE.pid, state="Z")
    assert list_session(ENGINE, proc.path) == ()


def test_a_leader_that_became_a_supervisor_is_not_the_engine(proc: FakeProc) -> None:
    proc.add(ENGINE, session=ENGINE.pid, command="python -m slipstream serve runs/one --detach")
    assert list_session(ENGINE, proc.path) == ()


@pytest.mark.parametrize(
    "stranger",
    [
        pytest.param(ENGINE.model_copy(update={"start_ticks": 5000}), id="the id is another's"),
        pytest.param(WORKER.model_copy(update={"start_ticks": 7}), id="older than its leader"),
    ],
)
def test_an_id_that_was_given_out_again_is_not_the_engine(
    proc: FakeProc, stranger: Process
) -> None:
    proc.add(stranger, session=ENGINE.pid)
    assert list_session(ENGINE, proc.path) == ()
    end_session(ENGINE, proc.tools())
    assert proc.sent == []


def test_the_memory_of_a_session_is_the_sum_of_its_shares(proc: FakeProc) -> None:
    assert measure_session(ENGINE, proc.path) is None
    proc.add_engine(WORKER.pid, 4730)
    assert measure_session(ENGINE, proc.path) is None
    for pid, share in ((ENGINE.pid, 300), (WORKER.pid, 40)):
        text = f"55d0-7ffe ---p 0 00:00 0 [rollup]\nRss: 999 kB\nPss: {share} kB\n"
        (proc.path / str(pid) / "smaps_rollup").write_text(text)
    assert measure_session(ENGINE, proc.path) == 340 * 1024


def test_processes_that_obey_are_not_killed(proc: FakeProc) -> None:
    proc.add_engine(WORKER.pid)
    end_session(ENGINE, proc.tools(TERM))
    assert proc.sent == [(ENGINE.pid, TERM), (WORKER.pid, TERM)]
    assert proc.now == 0


def test_those_that_do_not_obey_are_killed_after_the_grace(proc: FakeProc) -> None:
    proc.add_engine()
    end_session(ENGINE, proc.tools(KILL))
    assert proc.sent == [(ENGINE.pid, TERM), (ENGINE.pid, KILL)]
    assert proc.now == pytest.approx(GRACE_SECONDS)


def test_what_cannot_be_killed_is_named(proc: FakeProc) -> None:
    proc.add_engine(WORKER.pid)
    with pytest.raises(EngineError, match=f"even when killed: {ENGINE.pid} {WORKER.pid}$"):
        end_session(ENGINE, proc.tools(signal.SIGHUP))


def test_real_processes_that_ignore_the_request_are_ended() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        assert child.stdout is not None
        assert [child.stdout.readline(), child.stdout.readline()] == [b"up\n", b"up\n"]
        leader = read_process(child.pid)
        assert leader is not None
        assert len(list_session(leader)) == 2
        assert measure_session(leader) is not None
        began = time.monotonic()
        end_session(leader, ProcessTools(clock=lambda: began + 5 * (time.monotonic() - began)))
        assert list_session(leader) == ()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, KILL)
        child.communicate()
    assert child.returncode == -KILL
