"""A run is seen from its folder, its processes and its engine's metrics, each as far as it goes."""

import os
import threading
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from slipstream.planning.settings import Choice
from slipstream.serving.live_view import (
    SHOWN_EVENTS,
    TAIL_BYTES,
    EngineFigures,
    LiveView,
    parse_engine_figures,
    read_engine_figures,
    read_live_view,
)
from slipstream.serving.run import Process, RunFolder, read_process
from tests.unit.serving.kept_runs import (
    AT,
    PLAN,
    RUN,
    SUPERVISOR,
    FakeProc,
    access,
    answering,
    happen,
    keep,
    make_counts,
)
from tests.unit.steering.states import make_state

METRICS = """\
vllm:generation_tokens_total{model_name="m"} 1000.0
vllm:num_requests_running{model_name="m"} 2.0
vllm:spec_decode_num_drafts_total{model_name="m"} 10.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{position="1"} 4.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 9.0
vllm:prefix_cache_queries_total{engine="0"} 40.0
vllm:prefix_cache_hits_total{engine="0"} 10.0
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 0.5
"""


@pytest.fixture(autouse=True)
def supervise(proc: FakeProc) -> None:
    proc.add(SUPERVISOR)


def look(folder: RunFolder, proc: FakeProc, engine: EngineFigures | None = None) -> LiveView:
    return read_live_view(folder, folder.read(), engine, now=AT, monotonic=100, proc=proc.path)


def test_a_run_that_says_nothing_yet_is_seen(tmp_path: Path, proc: FakeProc) -> None:
    folder, _ = keep(tmp_path, engine=None, url=None, state="starting")
    view = look(folder, proc)
    assert (view.steering, view.engine, view.traffic, view.counts) == (None, None, None, None)
    assert (view.processes, view.events) == ((), ())
    assert view.measure_throughput(None) is None
    assert LiveView.model_validate_json(view.to_json()) == view


def test_a_report_counts_while_the_engine_lives(tmp_path: Path, proc: FakeProc) -> None:
    folder, run = keep(tmp_path)
    with answering(folder, run, steering=(make_state(),), counts=make_counts(ann=2, bob=1)):
        assert look(folder, proc).steering is None
        proc.add_engine()
        view = look(folder, proc)
    assert view.steering == make_state()
    assert (view.in_flight, view.status.steering) == (3, ())
    assert view.measure_throughput(None) == 55.2
    assert LiveView.model_validate_json(view.to_json()) == view
    assert look(folder, proc).steering is None


def test_the_last_minutes_of_the_access_log_are_summed_up(tmp_path: Path, proc: FakeProc) -> None:
    folder, _ = keep(tmp_path)
    times = [AT - timedelta(seconds=seconds) for seconds in (900, 200, 100, 50, 10)]
    firsts = [9.0, 0.1, 0.3, None, 0.2]
    refused = [None, None, None, "bad_request", None]
    lines = [
        access(f"a{at}", at=time.isoformat(), first_seconds=first, refused=why)
        for at, (time, first, why) in enumerate(zip(times, firsts, refused, strict=True))
    ]
    other = access("z", schema_version=2)
    folder.access_log.write_bytes(lines[0] + other + b"".join(lines[1:]) + b'{"cut')
    traffic = look(folder, proc).traffic
    assert traffic is not None
    assert (traffic.seconds, traffic.requests, traffic.refused) == (300, 4, 1)
    assert traffic.first_token is not None
    assert (traffic.first_token.p50, traffic.first_token.p99) == (0.2, 0.3)


def test_of_a_long_access_log_only_the_end_is_read(tmp_path: Path, proc: FakeProc) -> None:
    folder, _ = keep(tmp_path)
    line = access("a")
    folder.access_log.write_bytes(line * (TAIL_BYTES // len(line) * 3))
    traffic = look(folder, proc).traffic
    assert traffic is not None
    assert traffic.requests == TAIL_BYTES // len(line)


def test_an_earlier_view_lends_what_takes_long_to_look_at(tmp_path: Path, proc: FakeProc) -> None:
    folder, run = keep(tmp_path)
    proc.add_engine(4730)
    first, nothing = look(folder, proc), FakeProc(tmp_path / "nothing")
    reported = {"counts": make_counts(ann=2, bob=1), "steering": (make_state(draft_length=3),)}
    with answering(folder, run, **reported):
        view = read_live_view(
            folder, run, None, now=AT, monotonic=101, last=first, proc=nothing.path
        )
    assert (view.status, view.processes) == (first.status, first.processes)
    assert (view.in_flight, view.waiting) == (3, 0)
    assert view.steering is not None
    assert view.steering.draft_length == 3


def test_every_process_has_its_role_and_memory(tmp_path: Path, proc: FakeProc) -> None:
    folder, _ = keep(tmp_path)
    proc.add_engine()
    for pid, command in ((4730, "VLLM::EngineCore"), (4731, "python -m vllm.entrypoints.x")):
        process = Process(pid=pid, start_ticks=1001)
        proc.add(process, session=4720, command=command)
        (proc.path / str(pid) / "smaps_rollup").write_text(f"Rss: 9 kB\nPss: {pid} kB\n")
    found = [(one.role, one.bytes) for one in look(folder, proc).processes]
    assert found == [("other", None), ("core", 4730 * 1024), ("API server", 4731 * 1024)]


def test_the_last_events_are_shown(tmp_path: Path, proc: FakeProc) -> None:
    folder, _ = keep(tmp_path)
    events = [happen(folder, "ready", f"event {number}") for number in range(20)]
    with folder.events.open("ab") as file:
        file.write(b'{"cut off')
    shown = look(folder, proc).events
    assert shown == tuple(events[-SHOWN_EVENTS + 1 :])


def test_without_a_report_the_engines_counter_tells_the_throughput(
    tmp_path: Path, proc: FakeProc
) -> None:
    folder, run = keep(tmp_path)
    proc.add_engine(4730)
    figures = parse_engine_figures(METRICS)
    assert (figures.running, figures.kv_usage) == (2, 0.5)
    assert (figures.drafts, figures.accepted, figures.cache_hit_share) == (10, (9, 4), 0.25)
    view = look(folder, proc, figures)
    more = parse_engine_figures(METRICS.replace("1000", "1300"))
    later = view.model_copy(update={"at": AT + timedelta(seconds=2), "engine": more})
    assert view.measure_throughput(None) is None
    assert later.measure_throughput(view) == 150
    assert view.measure_throughput(later) is None
    with answering(folder, run, counts=make_counts(ann=0)):
        assert look(folder, proc).measure_throughput(None) == 0


class Handler(BaseHTTPRequestHandler):
    """Shows metrics to whoever brings no key or the right one."""

    def do_GET(self) -> None:
        allowed = self.headers.get("Authorization") in (None, "Bearer right")
        self.send_response(200 if allowed and self.path == "/metrics" else 401)
        self.end_headers()
        self.wfile.write(METRICS.encode() if allowed else b"")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def port() -> Iterator[int]:
    """Serve metrics from this process, which stands for the engine or for a stranger."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_only_the_runs_own_engine_is_asked(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    address = {
        "host": Choice("127.0.0.1", "user", "requested"),
        "port": Choice(port, "user", "requested"),
    }
    run = RUN.model_copy(update={"plan": PLAN.change(**address)})
    assert read_engine_figures(run, None) is None  # That engine is no process here.
    this_process = read_process(os.getpid())
    monkeypatch.setattr("slipstream.serving.live_view.list_session", lambda *_: (this_process,))
    assert read_engine_figures(run, None) == parse_engine_figures(METRICS)
    assert read_engine_figures(run, "right") is not None
    assert read_engine_figures(run, "wrong") is None
    assert read_engine_figures(run.model_copy(update={"engine": None}), None) is None
