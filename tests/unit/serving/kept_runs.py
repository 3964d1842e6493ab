"""Runs in a folder, and a /proc that says what a test wants said."""

import json
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from signal import SIGKILL, Signals
from typing import Any

from slipstream.hardware import load_host
from slipstream.planning.planner import make_plan
from slipstream.planning.settings.options import make_options
from slipstream.serving.messages import CallerCounts, GateCounts, encode, short_path
from slipstream.serving.run import Event, LiveRun, Process, Run, RunFolder, State
from slipstream.serving.supervision.engine_session import ProcessTools
from tests.unit.planning.pieces import DRAFTER, TARGET

AT = datetime(2026, 11, 15, 6, 17, 12, tzinfo=UTC)
HOST = load_host("gb10")
PLAN = make_plan(HOST, TARGET, DRAFTER, None, make_options())
SUPERVISOR = Process(pid=4711, start_ticks=900)
ENGINE = Process(pid=4720, start_ticks=1000)
RUN = Run(
    id="one",
    began_at=AT,
    plan=PLAN,
    host=HOST,
    versions={"vllm": "0.32.0"},
    argv=tuple(PLAN.argv()),
    supervisor=SUPERVISOR,
    engine=ENGINE,
    url="http://127.0.0.1:8000",
    state="ready",
)


def keep(root: Path, name: str = "one", **changes: Any) -> tuple[RunFolder, Run]:
    """Begin a run with some fields changed."""
    folder, run = RunFolder(root / name), RUN.model_copy(update={"id": name, **changes})
    folder.begin(run)
    return folder, run


def happen(folder: RunFolder, state: State, message: str, *, after_seconds: float = 0) -> Event:
    """Have something happen to a run, so long after it began."""
    event = Event(at=AT + timedelta(seconds=after_seconds), state=state, message=message)
    folder.append(event)
    return event


@contextmanager
def answering(folder: RunFolder, run: Run, **reported: Any) -> Iterator[None]:
    """Have a supervisor answer what is asked about a run."""
    answer = encode(LiveRun(run=run, **reported))

    def serve() -> None:
        while True:
            connection, _ = listening.accept()
            with connection, connection.makefile("rb") as lines:
                if not lines.readline():
                    return
                connection.sendall(answer)

    with socket.socket(socket.AF_UNIX) as listening:
        with short_path(folder.socket) as short:
            listening.bind(short)
        listening.listen()
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            with socket.socket(socket.AF_UNIX) as last, short_path(folder.socket) as short:
                last.connect(short)
            thread.join()
            folder.socket.unlink()


def make_counts(last_token: float | None = None, **callers: int) -> GateCounts:
    """Return what a gate has under way."""
    by_key = {name: CallerCounts(in_flight=number, total=9) for name, number in callers.items()}
    return GateCounts(
        pid=4730, last_token=last_token, in_flight=sum(callers.values()), total=9, by_key=by_key
    )


def access(name: str, **changes: Any) -> bytes:
    """Write a line of an access log."""
    line = {
        "schema_version": 1,
        "at": AT.isoformat(),
        "id": name,
        "client_id": None,
        "trace_id": None,
        "key": "ann",
        "client": "127.0.0.1",
        "route": "POST /v1/chat/completions",
        "status": 200,
        "ended": "complete",
        "refused": None,
        "field": None,
        "prompt_tokens": 412,
        "completion_tokens": 96,
        "chunks": None,
        "seconds": 1.84,
        "first_seconds": None,
        "body_bytes": 100,
        "answer_bytes": 2000,
    }
    return json.dumps(line | changes).encode() + b"\n"


@dataclass(slots=True)
class FakeProc:
    """The processes of a machine; time passes only while somebody waits."""

    path: Path
    now: float = 0.0
    sent: list[tuple[int, Signals]] = field(default_factory=list)

    def add(
        self, process: Process, *, session: int = 1, state: str = "S", command: str = "python"
    ) -> None:
        """Have a process run, with a name that is hard to read."""
        folder = self.path / str(process.pid)
        (folder / "fd").mkdir(parents=True, exist_ok=True)
        fields = [state, 1, session, session, *[0] * 15, process.start_ticks, 0]
        (folder / "stat").write_text(f"{process.pid} (a) S (b) {' '.join(map(str, fields))}\n")
        (folder / "cmdline").write_text(command.replace(" ", "\0") + "\0")

    def add_engine(self, *pids: int) -> None:
        """Have the engine of `RUN` run, with workers."""
        self.add(ENGINE, session=ENGINE.pid)
        for pid in pids:
            self.add(Process(pid=pid, start_ticks=1001), session=ENGINE.pid)

    def remove(self, pid: int) -> None:
        """Have a process be gone."""
        shutil.rmtree(self.path / str(pid), ignore_errors=True)

    def hold(self, pid: int, *inodes: int) -> None:
        """Add sockets, and a file beside them, to a process."""
        (self.path / str(pid) / "fd" / "0").symlink_to("/dev/null")
        for number, inode in enumerate(inodes, start=3):
            (self.path / str(pid) / "fd" / str(number)).symlink_to(f"socket:[{inode}]")

    def tools(self, *deadly: Signals) -> ProcessTools:
        """Return the means to end processes, which these signals do."""

        def send(pid: int, number: Signals) -> None:
            self.sent.append((pid, number))
            if number in (deadly or (SIGKILL,)):
                self.remove(pid)

        return ProcessTools(proc=self.path, clock=lambda: self.now, wait=self.wait, send=send)

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds
