"""`Run`: an engine under supervision, from its plan to its end; one folder per run.

The supervisor alone writes the folder and everyone else reads it. A run is live as long as
its supervisor is, whatever run.json says: a killed one leaves its last word behind.
"""

import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Literal

from pydantic import AwareDatetime, Field, NonNegativeInt

from slipstream.atomic_files import DISK_FULL, write_even_if_full
from slipstream.engines.vllm_log import PHASES, Phase
from slipstream.errors import InvalidInputError
from slipstream.hardware import Host
from slipstream.planning.plan import LaunchPlan
from slipstream.records import Record, read_line, read_record
from slipstream.serving.access.gate_file import GateRecording, GateRules
from slipstream.serving.kept_logs import LogPlace
from slipstream.serving.learning import LearningState, LearningTerms
from slipstream.serving.messages import SOCKET, GateCounts
from slipstream.serving.supervision.causes.ladder import Rung
from slipstream.serving.swaps import ServedDrafter, Swap, SwapTrial
from slipstream.steering.guardian import Drift, GuardianRules
from slipstream.steering.state import SteeringState
from slipstream.units import show_bytes
from slipstream.user_folders import find_local

# For a run that begins: its logs take more than that within a day.
LEAST_FREE_BYTES = 16 << 20
EVENTS_BYTES = 1 << 20

_Rising = Literal["planned", "downloading", "starting", "warming", "ready"]
_Ending = Literal["draining", "stopping", "stopped", "failed"]
State = Literal[_Rising, _Ending]
# An engine that crashed or hung is replaced: that leads back to starting. A ready one that
# falls silent has to prove itself again, which is warming.
TRANSITIONS: dict[State, tuple[State, ...]] = {
    "planned": ("downloading", "starting", "stopping", "stopped", "failed"),
    "downloading": ("starting", "stopping", "failed"),
    "starting": ("starting", "warming", "stopping", "failed"),
    "warming": ("ready", "starting", "draining", "stopping", "failed"),
    "ready": ("warming", "starting", "draining", "stopping", "failed"),
    "draining": ("stopping", "failed"),
    "stopping": ("stopped", "failed"),
    "stopped": (),
    "failed": (),
}
# The subject of a run's note that its engine keeps ending.
ENGINE_NOTE = "engine"
_PROC = Path("/proc")
_READING_AGAIN_SECONDS = (0.01, 0.05)


class Process(Record):
    """A process by its id and its start in ticks since boot, since ids are reused."""

    pid: int
    start_ticks: int


class Event(Record):
    schema_version: Literal[1] = 1
    at: AwareDatetime
    state: State
    phase: Phase | None = None
    message: str
    figures: dict[str, float] = Field(default_factory=dict)


class Terms(Record):
    """How a plan is served, beyond what the plan itself says."""

    # The saved plan that it was started from.
    plan_file: Path | None = None
    keys_file: Path | None = None
    # Once there were keys, nobody gets in without one, whatever becomes of their file.
    keys_required: bool = False
    gated: bool = True
    gate_file: Path | None = None
    # As they were when they could last be read.
    gate_rules: GateRules | None = None
    drain_seconds: NonNegativeInt = 30
    # Whether the draft length follows the load; otherwise it stays as planned.
    steered: bool = True
    recording: GateRecording | None = None
    detached: bool = False
    guardian: GuardianRules = Field(default_factory=GuardianRules)
    # None keeps no text and trains nothing.
    learning: LearningTerms | None = None

    @property
    def needed_keys(self) -> Path | None:
        return self.keys_file if self.needs_key else None

    @property
    def needs_key(self) -> bool:
        keys = self.keys_file
        return self.gated and (self.keys_required or (keys is not None and keys.exists()))


class Run(Record):
    """The current state of a run, complete enough to serve it again; the plan is the latest one."""

    schema_version: Literal[2] = 2
    id: str
    began_at: AwareDatetime
    plan: LaunchPlan
    host: Host
    versions: dict[str, str]
    terms: Terms = Field(default_factory=Terms)
    argv: tuple[str, ...]
    # Of what its steps depend on; runs with the same one learn the same.
    plan_digest: str = ""
    supervisor: Process
    engine: Process | None = None
    url: str | None = None
    state: State = "planned"
    rungs: tuple[Rung, ...] = ()
    restarts: int = 0
    exit_code: int | None = None
    # How far the engine's log was when it was last in good health, None if it never was ready.
    healthy_log: LogPlace | None = None
    # When supervisors that were killed were succeeded, down to this run.
    takeovers: tuple[AwareDatetime, ...] = ()
    phase_seconds: dict[Phase, float] = Field(default_factory=dict)
    measurements: dict[str, float] = Field(default_factory=dict)
    # The drafters in the order in which they served; empty until the first was replaced.
    drafters: tuple[ServedDrafter, ...] = ()
    last_swap: Swap | None = None
    # Of the last drafter that was to prove itself on requests.
    trial: SwapTrial | None = None
    # What the learning job reported last.
    learning: LearningState | None = None
    # What has become worse while it served, and still is.
    drifts: tuple[Drift, ...] = ()
    # What is not as planned now, by subject: a patch, the guardian, an engine that keeps ending.
    notes: dict[str, str] = Field(default_factory=dict)

    def move(self, state: State) -> "Run":
        """Return the run in its next state; a transition that the table does not have is a bug."""
        if state not in TRANSITIONS[self.state]:
            raise ValueError(f"a run cannot change from {self.state} to {state}")
        return self.model_copy(update={"state": state})


class LiveRun(Record):
    """A run as its supervisor knows it, with what could not be written and what was reported."""

    run: Run
    unwritten: tuple[Event, ...] = ()
    # Of the gate and of the engine's cores, as far as they are connected.
    counts: GateCounts | None = None
    steering: tuple[SteeringState, ...] = ()


class _File:
    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, folder: "RunFolder", _: type["RunFolder"]) -> Path:
        return folder.path / self._name


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The files of a run, readable by its user only."""

    path: Path

    record = _File("run.json")
    # Where the supervisor listens (serving/messages.py).
    socket = _File(SOCKET)
    # One event per line; earlier ones are moved aside.
    events = _File("events.jsonl")
    earlier_events = _File("events.jsonl.1")
    engine_log = _File("engine.log")
    # If it was detached from its terminal.
    supervisor_log = _File("supervisor.log")
    # One request per line, as the gate and as the engine's core saw it; older parts lie beside.
    access_log = _File("access.jsonl")
    ledger = _File("ledger.jsonl")
    # Where the core sends text to be kept, and what the processes that learn from it say.
    kept_socket = _File("kept.sock")
    learning_log = _File("learning.log")
    # The last steps of the engine, and of the one before it.
    flight = _File("flight.bin")
    earlier_flight = _File("flight-1.bin")
    # The gate's settings, and keys from the environment.
    gate = _File("gate.json")
    keys = _File("keys.json")

    def list_older_access_logs(self) -> list[Path]:
        """List the full ones, the oldest first."""
        numbers = [path.stem.removeprefix("access-") for path in self.path.glob("access-*.jsonl")]
        kept = sorted((int(number) for number in numbers if number.isdecimal()), reverse=True)
        return [self.path / f"access-{number}.jsonl" for number in kept]

    def list_ledgers(self) -> list[Path]:
        files = (self.path / "ledger-1.jsonl", self.ledger)
        return [file for file in files if file.exists()]

    def begin(self, run: Run) -> None:
        """Create the folder for this run alone; if the disk is full, nothing of it is left."""
        with _writing(self.path):
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.path.mkdir(mode=0o700)
        try:
            self._require_room()
            self.write(run)
        except InvalidInputError:
            shutil.rmtree(self.path, ignore_errors=True)
            raise

    def read(self) -> Run:
        """Return the record; one that is being written on a full disk is complete soon after."""
        hint = f"remove {self.path}, and serve again"
        for pause in _READING_AGAIN_SECONDS:
            with suppress(InvalidInputError):
                return read_record(self.record, Run, hint=hint)
            time.sleep(pause)
        return read_record(self.record, Run, hint=hint)

    def write(self, run: Run) -> None:
        with _writing(self.record):
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_even_if_full(self.record, run.to_json().encode())

    def append(self, event: Event) -> None:
        """Add an event, on a line of its own even after one that was cut off."""
        with _writing(self.events):
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self.events.open("ab+") as file:
                file.seek(max(0, file.tell() - 1))
                torn = file.read(1) not in (b"", b"\n")
                file.write(b"\n" * torn + event.model_dump_json().encode() + b"\n")
                full = file.tell() > EVENTS_BYTES
            if full:
                self.events.replace(self.earlier_events)

    def read_events(self) -> tuple[Event, ...]:
        """Return all events, without lines that a full disk or a crash cut off."""
        lines: list[bytes] = []
        for file in (self.earlier_events, self.events):
            with suppress(FileNotFoundError):
                lines += file.read_bytes().splitlines()
        return tuple(event for line in lines if (event := self.read_event(line)) is not None)

    def read_event(self, line: bytes) -> Event | None:
        """Return the event of a line, None if it was cut off."""
        return read_line(line, Event, str(self.events), hint=f"remove {self.events}")

    def _require_room(self) -> None:
        free = shutil.disk_usage(self.path).free
        if free < LEAST_FREE_BYTES:
            raise InvalidInputError(
                f"disk_full: {show_bytes(free)} are free for {self.path}, but a run needs "
                f"{show_bytes(LEAST_FREE_BYTES)}",
                hint=f"df -h {self.path.parent}",
            )


def find_runs_root(environment: Mapping[str, str]) -> Path:
    home = Path(environment.get("HOME") or Path.home())
    state = environment.get("XDG_STATE_HOME") or home / ".local" / "state"
    return Path(state).expanduser() / "slipstream" / "runs"


def name_run(plan: LaunchPlan, now: datetime, pid: int) -> str:
    """Return the id of a run: its target, time and supervisor."""
    return f"{Path(plan.target).name}-{now:%Y%m%d-%H%M%S}-{pid}"


def list_runs(root: Path) -> list[tuple[RunFolder, Run]]:
    """Return all runs that this version can read, the newest first."""
    found = []
    for record in root.glob("*/run.json"):
        with suppress(InvalidInputError):
            found.append((RunFolder(record.parent), RunFolder(record.parent).read()))
    return sorted(found, key=lambda pair: pair[1].began_at, reverse=True)


def find_run(name: str, root: Path) -> RunFolder | None:
    """Return the run whose folder or id this is, if any; what is a path here is no id."""
    local = find_local(name)
    found = RunFolder(local if local.exists() else find_local(f"{root}/{name}"))
    return found if found.record.is_file() else None


def find_live(root: Path, proc: Path = _PROC) -> list[tuple[RunFolder, Run]]:
    """Return the runs whose supervisor lives."""
    return [(folder, run) for folder, run in list_runs(root) if is_alive(run.supervisor, proc)]


def expected_phases(root: Path, plan: LaunchPlan) -> dict[Phase, float]:
    """Return the median of each phase over earlier runs of the same command line."""
    argv = plan.argv()
    earlier = [run.phase_seconds for _, run in list_runs(root) if run.plan.argv() == argv]
    samples = {phase: [took[phase] for took in earlier if phase in took] for phase in PHASES}
    return {phase: median(seconds) for phase, seconds in samples.items() if seconds}


def was_ready_before(root: Path, run: Run) -> bool:
    """Return whether an earlier run of the same plan and versions was ready on this machine."""
    same = [one for _, one in list_runs(root) if one.plan_digest == run.plan_digest != ""]
    return any("ready_seconds" in one.measurements for one in same if one.id != run.id)


def read_process(pid: int, proc: Path = _PROC) -> Process | None:
    """Return a running process, None if it has ended."""
    try:  # The name before the last bracket may hold anything; the start is field 22.
        fields = (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
        return None if fields[0] in "ZX" else Process(pid=pid, start_ticks=int(fields[19]))
    except (OSError, IndexError):
        return None


def is_alive(process: Process, proc: Path = _PROC) -> bool:
    """Return whether the process runs, and not another one under its id."""
    return read_process(process.pid, proc) == process


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turn errors of the disk, above all a full one, into an `InvalidInputError`."""
    try:
        yield
    except OSError as fault:
        if fault.errno in DISK_FULL:
            message, hint = f"disk_full: there is no space left to write {path}", "df -h"
        else:
            message, hint = f"cannot write {path}: {fault.strerror or fault}", "ls -ld"
        raise InvalidInputError(message, hint=f"{hint} {path.parent}") from fault
