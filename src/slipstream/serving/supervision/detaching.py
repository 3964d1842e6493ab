"""A supervisor without a terminal, and the command that returns once it is ready."""

import os
import time
from collections.abc import Callable
from pathlib import Path

from slipstream.errors import EngineError, ExitCode
from slipstream.serving.following import follow_events
from slipstream.serving.kept_logs import read_end
from slipstream.serving.run import Event, RunFolder, is_alive

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


def follow_to_ready(folder: RunFolder, tell: Callable[[Event], None]) -> ExitCode:
    """Report the events of a detached run until it is ready, and raise as it fails."""
    launcher = os.getpid()

    def is_decided() -> bool:
        run = folder.read()
        is_gone = run.supervisor.pid != launcher and not is_alive(run.supervisor)
        return run.state in _DECIDED or is_gone

    for event in follow_events(folder, is_decided, time.sleep):
        tell(event)
    run = folder.read()
    if run.state == "ready":
        return ExitCode.DONE
    said = read_end(folder.supervisor_log, SAID_BYTES)
    raise EngineError(
        f"the run {run.id} did not get ready: {run.state}",
        details=tuple(said.splitlines()[-6:]),
        hint=f"slipstream doctor {run.id}",
    )
