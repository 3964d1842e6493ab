"""`RunStatus`: a run from the outside, by its folder, its processes and its supervisor's answer.

What changes by the second (open requests, the core's report) is asked for over the run's socket and
not written into run.json: it costs no disk, is true on a full one, and ends with its supervisor.
"""

import shlex
from collections.abc import Iterable
from itertools import takewhile
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from pydantic import AwareDatetime

from slipstream.errors import InvalidInputError
from slipstream.records import Record
from slipstream.serving.access.tls import TlsCertificate
from slipstream.serving.learning import LearningState
from slipstream.serving.messages import LiveQuestion, ask
from slipstream.serving.run import (
    ENGINE_NOTE,
    TRANSITIONS,
    Event,
    LiveRun,
    Run,
    RunFolder,
    State,
    is_alive,
    list_runs,
)
from slipstream.serving.supervision.causes.ladder import Rung
from slipstream.serving.supervision.engine_session import list_session, measure_session
from slipstream.serving.swaps import ServedDrafter, Swap, SwapTrial
from slipstream.steering.guardian import Drift
from slipstream.steering.state import SteeringState

SHOWN_ENDED = 5
ANSWER_SECONDS = 2.0
_PROC = Path("/proc")
# Of a run as they are.
_SHOWN = (
    *("id", "began_at", "drafters", "last_swap", "trial", "learning"),
    *("restarts", "rungs", "measurements"),
)

ShownState = State | Literal["supervisor gone"]


class RunStatus(Record):
    """A run at one moment; what is unknown or has ended is None."""

    schema_version: Literal[1] = 1
    id: str
    folder: str
    state: ShownState
    since: AwareDatetime
    began_at: AwareDatetime
    message: str | None
    url: str | None
    plan_file: str | None = None
    target: str
    drafter: str | None
    drafters: tuple[ServedDrafter, ...] = ()
    last_swap: Swap | None = None
    trial: SwapTrial | None = None
    learning: LearningState | None = None
    supervisor_pid: int
    engine_pid: int | None
    engine_bytes: int | None
    restarts: int
    rungs: tuple[Rung, ...]
    # Of the plan, and of what is not as planned now.
    notes: tuple[str, ...]
    run_notes: tuple[str, ...] = ()
    measurements: dict[str, float]
    drifts: tuple[Drift, ...] = ()
    gated: bool = True
    in_flight: int | None
    waiting: int = 0
    last_token_seconds_ago: float | None
    # The report of each core.
    steering: tuple[SteeringState, ...] = ()
    # Whether the draft length is fixed only because nobody measured steering on this machine.
    awaits_tuning: bool = False
    next_command: str


class StatusList(Record):
    schema_version: Literal[1] = 1
    root: str
    runs: tuple[RunStatus, ...]


def list_statuses(root: Path, monotonic: float, proc: Path = _PROC) -> StatusList:
    runs = list_runs(root)
    live = [pair for pair in runs if is_alive(pair[1].supervisor, proc)]
    ended = [pair for pair in runs if pair not in live][:SHOWN_ENDED]
    statuses = tuple(read_status(folder, run, monotonic, proc) for folder, run in (*live, *ended))
    return StatusList(root=str(root), runs=statuses)


def read_live(folder: RunFolder) -> LiveRun | None:
    """Ask a run's supervisor how it is doing; None if there is none, or it does not answer."""
    try:
        for answer in ask(folder.socket, LiveQuestion(), (LiveRun,), seconds=ANSWER_SECONDS):
            return answer if isinstance(answer, LiveRun) else None
    except (OSError, ValueError):
        return None
    return None


def read_latest(folder: RunFolder) -> Run:
    """Return the run as its supervisor knows it, or else as it was last written."""
    live = read_live(folder)
    return folder.read() if live is None else live.run


def read_status(
    folder: RunFolder,
    run: Run,
    monotonic: float,
    proc: Path = _PROC,
    live: LiveRun | None = None,
) -> RunStatus:
    """Return the status of a run; `monotonic` is the clock that its gate uses."""
    live = live or read_live(folder)
    run, events = (run if live is None else live.run), folder.read_events()
    events += () if live is None else live.unwritten
    state = find_shown_state(run, proc)
    engine = () if run.engine is None else list_session(run.engine, proc)
    counts = live.counts if live is not None and engine else None
    last_token = counts.last_token if counts else None
    return RunStatus(
        **{name: getattr(run, name) for name in _SHOWN},
        folder=str(folder.path),
        state=state,
        since=_find_since(run, events, state),
        message=events[-1].message if events else None,
        url=run.url if engine else None,
        plan_file=str(run.terms.plan_file) if run.terms.plan_file else None,
        target=run.plan.target,
        drafter=run.plan.drafter,
        awaits_tuning=run.terms.steered and run.plan.awaits_tuning,
        supervisor_pid=run.supervisor.pid,
        engine_pid=engine[0].pid if engine else None,
        engine_bytes=measure_session(run.engine, proc) if run.engine else None,
        notes=run.plan.notes,
        run_notes=tuple(run.notes.values()) if TRANSITIONS[run.state] else (),
        drifts=run.drifts if engine else (),
        gated=run.terms.gated,
        in_flight=counts.in_flight if counts else None,
        waiting=counts.waiting if counts else 0,
        last_token_seconds_ago=None if last_token is None else max(0.0, monotonic - last_token),
        steering=live.steering if live is not None and engine else (),
        next_command=_find_next(folder, run, state, lives=bool(engine)),
    )


def find_shown_state(run: Run, proc: Path = _PROC) -> ShownState:
    """Return a run's state, unless its supervisor was killed before it could say the last one."""
    ended = not TRANSITIONS[run.state]
    return run.state if ended or is_alive(run.supervisor, proc) else "supervisor gone"


def _find_since(run: Run, events: tuple[Event, ...], state: ShownState) -> AwareDatetime:
    """Return when the state was entered; of a supervisor that is gone, the last it said."""
    if state == "supervisor gone":
        return events[-1].at if events else run.began_at
    last: Iterable[Event] = takewhile(lambda event: event.state == state, reversed(events))
    return min((event.at for event in last), default=run.began_at)


def _find_next(folder: RunFolder, run: Run, state: ShownState, *, lives: bool) -> str:
    if state == "ready" and run.url is not None:
        return shlex.join(_ask_for_models(run))
    keeps_ending = ENGINE_NOTE in run.notes and state == "starting"
    if state == "failed" or keeps_ending or (state == "supervisor gone" and not lives):
        return f"slipstream doctor {run.id}"
    if state == "supervisor gone":
        return f"slipstream stop {run.id}"
    if state == "stopped":
        return f"slipstream serve {shlex.quote(str(folder.path))}"
    return f"slipstream logs -f {run.id}"


def _ask_for_models(run: Run) -> list[str]:
    socket = run.plan.settings.uds
    path = ["--unix-socket", socket.value] if socket else []
    key = ["-H", "Authorization: Bearer KEY"] if run.terms.needs_key else []
    trust, base = _trust(run)
    return ["curl", *path, *trust, *key, f"{base}/v1/models"]


def _trust(run: Run) -> tuple[list[str], str]:
    """Return curl's words for a certificate, and the URL under a name that it is for."""
    url, certificate = run.url or "", TlsCertificate.of(run.plan)
    if certificate is None:
        return [], url
    words = ["--cacert", str(certificate.file.absolute())]
    if certificate.authority is not None:
        words += ["--cert", str(certificate.file.absolute())]
        words += ["--key", str(certificate.key.absolute())] if certificate.key else []
    parts = urlsplit(url)
    try:
        names = certificate.read_names()
    except InvalidInputError:
        return words, url
    if not names or parts.hostname in names or "*" in names[0]:
        return words, url
    there = parts.netloc if parts.port else f"{parts.netloc}:"
    port = f":{parts.port}" if parts.port else ""
    return [*words, "--connect-to", f"::{there}"], f"https://{names[0]}{port}"
