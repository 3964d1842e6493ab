"""The processes of an engine, found by the session of its leader.

They can outlive the leader. Its id is not given out again before the last of them is gone,
so a stranger under that id means that all of them are. A leader whose supervisor was killed
can become the next supervisor: it is of the engine no more.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from slipstream.errors import EngineError
from slipstream.hardware import read_text
from slipstream.serving.run import Process

GRACE_SECONDS = 5.0
LOOK_EVERY_SECONDS = 0.2
_PROC = Path("/proc")
_SUCCESSOR = "\0slipstream\0serve\0"


@dataclass(frozen=True, slots=True)
class ProcessTools:
    """Access to /proc, signals and the clock, for finding and ending processes."""

    proc: Path = _PROC
    clock: Callable[[], float] = time.monotonic
    wait: Callable[[float], None] = time.sleep
    send: Callable[[int, signal.Signals], None] = os.kill


def list_session(leader: Process, proc: Path = _PROC) -> tuple[Process, ...]:
    """Return the processes of a leader's session that run, the leader first if it does."""
    found = sorted(_find_members(leader.pid, proc), key=lambda one: (one != leader, one.pid))
    others = [
        one
        for one in found
        if one.start_ticks < leader.start_ticks or (one.pid == leader.pid and one != leader)
    ]
    return () if others else tuple(found)


def measure_session(leader: Process, proc: Path = _PROC) -> int | None:
    """Add up the memory of a session; what processes share is counted once."""
    shares = [read_share(one.pid, proc) for one in list_session(leader, proc)]
    known = [share for share in shares if share is not None]
    return sum(known) if known else None


def read_share(pid: int, proc: Path) -> int | None:
    """Return the memory of a process; shared memory is divided among its users."""
    for line in (read_text(proc / str(pid) / "smaps_rollup") or "").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return None


def end_session(leader: Process, tools: ProcessTools) -> None:
    """End what is left of a session, with SIGTERM and then SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for one in list_session(leader, tools.proc):
            with suppress(ProcessLookupError):
                tools.send(one.pid, number)
        until = tools.clock() + GRACE_SECONDS
        while left := list_session(leader, tools.proc):
            if tools.clock() >= until:
                break
            tools.wait(LOOK_EVERY_SECONDS)
        if not left:
            return
    pids = [str(one.pid) for one in left]
    raise EngineError(
        f"the engine's processes do not end, even when killed: {' '.join(pids)}",
        hint=f"ps -o pid,stat,wchan:30,args -p {','.join(pids)}",
    )


def _find_members(session: int, proc: Path) -> Iterator[Process]:
    for stat in proc.glob("[0-9]*/stat"):
        fields = (read_text(stat) or "").rpartition(")")[2].split()
        if len(fields) <= 19 or fields[0] in "ZX" or int(fields[3]) != session:
            continue
        if _SUCCESSOR not in (read_text(stat.with_name("cmdline")) or ""):
            yield Process(pid=int(stat.parent.name), start_ticks=int(fields[19]))
