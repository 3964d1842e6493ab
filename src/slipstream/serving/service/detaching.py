"""A supervisor from the outside: detached from its terminal, and asked to stop.

The supervisor drains at the first SIGTERM and stops at once at the second. Two that come
together count as one, so the second waits until the first was seen; and a run that is ending
already gets none, or asking twice for patience would be asking for haste.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from slipstream.errors import EngineError, ExitCode, SlipstreamError
from slipstream.serving.following import follow_events
from slipstream.serving.kept_logs import read_end
from slipstream.serving.run import TRANSITIONS, Event, RunFolder, is_alive
from slipstream.serving.supervision.engine_session import ProcessTools, end_session
from slipstream.serving.supervision.event_log import EventLog
from slipstream.serving.supervision.supervisor import SIGNALS

SAID_BYTES = 1 << 14
_DECIDED = ("ready", "stopped", "failed")


def detach(log: Path) -> bool:
    """Fork: return True in the process that stays, False in the one without a terminal."""
    if child := os.fork():
        os.waitpid(child, 0)
        return True
    os.setsid()
    if os.fork():
        os._exit(0)
    silent = os.open(os.devnull, os.O_RDWR)
    try:
        kept = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError:  # The run says so itself, where it can.
        kept = silent
    for descriptor, target in ((silent, 0), (silent, 1), (kept, 2)):
        os.dup2(descriptor, target)
    return False


def follow_to_ready(folder: RunFolder, on_event: Callable[[Event], None]) -> ExitCode:
    """Report the events of a detached run until it is ready, and raise as it fails."""
    launcher = os.getpid()

    def is_decided() -> bool:
        run = folder.read()
        is_gone = run.supervisor.pid != launcher and not is_alive(run.supervisor)
        return run.state in _DECIDED or is_gone

    for event in follow_events(folder, is_decided, time.sleep):
        on_event(event)
    run = folder.read()
    if run.state == "ready":
        return ExitCode.DONE
    last_lines = read_end(folder.supervisor_log, SAID_BYTES)
    raise EngineError(
        f"the run {run.id} did not become ready: {run.state}",
        details=tuple(last_lines.splitlines()[-6:]),
        hint=f"slipstream doctor {run.id}",
    )


@contextmanager
def stopping_early(event_log: EventLog) -> Iterator[None]:
    """Stop the run at a signal, until the supervisor takes the signals over.

    Files may be on their way in threads that nothing can interrupt, and no child is there to be
    ended: so the process writes its last state and leaves, without waiting for them.
    """

    def stop(*_: object) -> NoReturn:
        with suppress(SlipstreamError, ValueError):
            event_log.move("stopping", "stopped before an engine was started")
            event_log.move("stopped", "all of its processes have ended")
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(ExitCode.DONE)

    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # as nohup leaves it
            signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def stop_run(
    folder: RunFolder, *, immediately: bool, on_event: Callable[[Event], None], tools: ProcessTools
) -> None:
    """Stop a run and wait until none of its processes is left, passing its events to `tell`."""
    requested = set[str]()

    def is_gone() -> bool:
        run = folder.read()
        if not is_alive(run.supervisor, tools.proc):
            return True
        due = "haste" if run.state in ("draining", "stopping") else "end"
        if due not in requested and (immediately if due == "haste" else TRANSITIONS[run.state]):
            requested.add(due)
            with suppress(ProcessLookupError):
                tools.send(run.supervisor.pid, signal.SIGTERM)
        return False

    for event in follow_events(folder, is_gone, tools.wait, only_new=True):
        on_event(event)
    if (engine := folder.read().engine) is not None:
        end_session(engine, tools)
