"""`LiveView`: a run at one moment, as `slipstream top` shows it.

From the run's supervisor, folder and processes, and from its engine's /metrics where that may be
asked without a key, or with the one in SLIPSTREAM_API_KEY.
"""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal

import httpx
from pydantic import AwareDatetime

from slipstream.engines.prometheus import METRICS, list_accepted, parse_metrics, read_figures
from slipstream.errors import InvalidInputError
from slipstream.hardware import read_text
from slipstream.records import Record
from slipstream.serving.access.addresses import Address
from slipstream.serving.access.own_listener import OwnListener
from slipstream.serving.following import AccessLine, read_access_line
from slipstream.serving.kept_logs import read_end
from slipstream.serving.messages import GateCounts
from slipstream.serving.run import Event, Process, Run, RunFolder
from slipstream.serving.run_status import RunStatus, read_live, read_status
from slipstream.serving.supervision.engine_session import list_session, read_share
from slipstream.steering.drafts import Drafts
from slipstream.steering.ledger import SUPERVISOR_KEY
from slipstream.steering.percentiles import Percentiles, rank
from slipstream.steering.state import SteeringState

TRAFFIC_WINDOW = timedelta(minutes=5)
TAIL_BYTES = 2**16
SHOWN_EVENTS = 8
METRICS_SECONDS = 0.8
_COUNTS = (
    *("output_tokens", "cache_queries", "cache_hits"),
    *("running", "waiting", "drafts", "drafted"),
)
_PROC = Path("/proc")
_ROLES = {"VLLM::EngineCore": "core", "vllm.entrypoints": "API server", "warden.py": "warden"}


class EngineFigures(Drafts):
    """The engine's figures on /metrics: counts since its start, its load now; None is unknown."""

    output_tokens: int | None = None
    cache_queries: int | None = None
    cache_hits: int | None = None
    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None

    @property
    def cache_hit_share(self) -> float | None:
        """Return the share of prompt tokens that the prefix cache had."""
        if not self.cache_queries or self.cache_hits is None:
            return None
        return self.cache_hits / self.cache_queries


class Traffic(Record):
    """Requests of others that ended in the last minutes, as far as the log's end holds them."""

    seconds: float
    requests: int
    refused: int
    first_token: Percentiles | None


class ProcessMemory(Record):
    """A process of the engine; shared memory is divided among its users."""

    pid: int
    role: str
    bytes: int | None


class LiveView(Record):
    """A run, its steps, its traffic and its processes; None is unknown."""

    schema_version: Literal[1] = 1
    at: AwareDatetime
    status: RunStatus
    steering: SteeringState | None
    engine: EngineFigures | None
    traffic: Traffic | None
    counts: GateCounts | None
    processes: tuple[ProcessMemory, ...]
    events: tuple[Event, ...]

    @property
    def in_flight(self) -> int | None:
        """The requests in the engine, None if they are not counted."""
        return self.counts.in_flight if self.counts else None

    @property
    def waiting(self) -> int:
        """The requests that wait for a seat in the engine."""
        return self.counts.waiting if self.counts else 0

    def measure_throughput(self, before: "LiveView | None") -> float | None:
        """Return tokens per second: as the core says, or by the engine's counter in between."""
        if self.steering is not None:
            return self.steering.tokens_per_second
        if self.in_flight == 0:
            return 0.0
        if before is None or before.engine is None or self.engine is None:
            return None
        now, then = self.engine.output_tokens, before.engine.output_tokens
        seconds = (self.at - before.at).total_seconds()
        if now is None or then is None or now < then or seconds <= 0:
            return None
        return (now - then) / seconds


def read_live_view(
    folder: RunFolder,
    run: Run,
    engine: EngineFigures | None,
    *,
    now: datetime,
    monotonic: float,
    last: LiveView | None = None,
    proc: Path = _PROC,
) -> LiveView:
    """Return the view of a run; `engine` is from /metrics, `monotonic` the machine's clock.

    An earlier view lends what takes long to look at: the run's status and its processes.
    """
    live = read_live(folder)
    if last is None:
        status = read_status(folder, run, monotonic, proc, live).model_copy(update={"steering": ()})
        engine_process = (live.run if live else run).engine
        session = () if engine_process is None else list_session(engine_process, proc)
        processes = tuple(_measure(one, proc) for one in session)
    else:
        status, processes = last.status, last.processes
    return LiveView(
        at=now,
        status=status,
        steering=next(iter(live.steering), None) if live and processes else None,
        engine=engine,
        traffic=_read_traffic(folder, now),
        counts=live.counts if live and processes else None,
        processes=processes,
        events=(*_read_last_events(folder), *(live.unwritten if live else ()))[-SHOWN_EVENTS:],
    )


def read_engine_figures(run: Run, key: str | None, proc: Path = _PROC) -> EngineFigures | None:
    """Return the metrics of a run's engine; None if it does not answer, or not to us."""
    if run.engine is None or run.url is None:
        return None
    engine, address = run.engine, Address.of(run.plan)
    listener = OwnListener(address, lambda: [one.pid for one in list_session(engine, proc)], proc)
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}

    async def ask() -> str | None:
        verify = address.certificate.pin() if address.certificate else False
        transport = httpx.AsyncHTTPTransport(uds=address.socket, verify=verify)
        async with httpx.AsyncClient(
            transport=transport, base_url=address.url, timeout=METRICS_SECONDS, trust_env=False
        ) as client:
            trace = {"trace": listener.watch()}
            answer = await client.get("/metrics", headers=headers, extensions=trace)
        return answer.text if answer.status_code == httpx.codes.OK else None

    try:
        text = asyncio.run(ask())
    except (httpx.HTTPError, OSError, InvalidInputError):
        return None
    return None if text is None else parse_engine_figures(text)


def parse_engine_figures(text: str) -> EngineFigures:
    """Parse a page of metrics; of several engines the fullest cache counts."""
    samples = list(parse_metrics(text))
    figures, usage = read_figures(samples), METRICS["kv_usage"]
    return EngineFigures(
        **{name: int(figures[name]) for name in _COUNTS if name in figures},
        accepted=list_accepted(samples),
        kv_usage=max((one.value for one in samples if one.name in usage), default=None),
    )


def _read_traffic(folder: RunFolder, now: datetime) -> Traffic | None:
    accesses = _read_accesses(read_end(folder.access_log, TAIL_BYTES))
    lines = [line for line in accesses if line.key != SUPERVISOR_KEY]
    if not lines:
        return None
    since = max(lines[0].at, now - TRAFFIC_WINDOW)
    recent = [line for line in lines if line.at >= since]
    return Traffic(
        seconds=max(0.0, (now - since).total_seconds()),
        requests=len(recent),
        refused=sum(line.refused is not None for line in recent),
        first_token=rank([line.first_seconds for line in recent]),
    )


def _read_accesses(lines: str) -> Iterator[AccessLine]:
    for line in lines.encode().splitlines():
        with suppress(InvalidInputError):  # Of another version.
            if (access := read_access_line(line)) is not None:
                yield access


def _read_last_events(folder: RunFolder) -> tuple[Event, ...]:
    lines = read_end(folder.events, TAIL_BYTES).encode().splitlines()
    events = map(folder.read_event, lines[-SHOWN_EVENTS:])
    return tuple(event for event in events if event is not None)


def _measure(process: Process, proc: Path) -> ProcessMemory:
    command = (read_text(proc / str(process.pid) / "cmdline") or "").replace("\0", " ")
    role = next((role for word, role in _ROLES.items() if word in command), "other")
    return ProcessMemory(pid=process.pid, role=role, bytes=read_share(process.pid, proc))
