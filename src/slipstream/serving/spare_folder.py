"""The folder in shared memory that replaces a run's own while that cannot be written.

It is named after the supervisor, which run.json names even when it can no longer be changed.
Anybody may write to shared memory: a folder counts only if its owner is the run's.
"""

import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from stat import S_ISDIR

from slipstream.serving.run import Process, Run, RunFolder

SHARED_MEMORY = "/dev/shm"


def make_spare_folder(
    supervisor: Process, environment: Mapping[str, str]
) -> tempfile.TemporaryDirectory[str]:
    """Create a folder that lasts as long as the supervisor."""
    memory = (one for one in _list_memory(environment) if os.access(one, os.W_OK))
    return tempfile.TemporaryDirectory(prefix=_name(supervisor), dir=next(memory, None))


def find_engine_folder(folder: RunFolder, run: Run) -> RunFolder:
    """Return the folder with the engine's log and the gate's files: the spare one, if there is."""
    for place in (*_list_memory(os.environ), tempfile.gettempdir()):
        for found in Path(place).glob(f"{_name(run.supervisor)}*"):
            status = found.lstat()
            if S_ISDIR(status.st_mode) and status.st_uid == folder.path.stat().st_uid:
                return RunFolder(found)
    return folder


def read_latest(folder: RunFolder, run: Run) -> Run:
    """Return the run as its supervisor last wrote it, be it into the spare folder."""
    spare = find_engine_folder(folder, run)
    return spare.read() if spare.record.exists() else run


def _name(supervisor: Process) -> str:
    return f"slipstream-{supervisor.pid}-{supervisor.start_ticks}-"


def _list_memory(environment: Mapping[str, str]) -> Iterator[str]:
    """List the folders in memory, the user's own first."""
    if runtime := environment.get("XDG_RUNTIME_DIR"):
        yield runtime
    yield SHARED_MEMORY
