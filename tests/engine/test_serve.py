"""The real engine under `slipstream serve`: it starts, is hurt, comes back and stops in order.

One detached service goes through all of it, in the order of the file.
"""

import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from slipstream.planning.settings import Choice
from slipstream.serving.plugin_settings import list_parts
from slipstream.serving.weights.obtaining import obtain
from tests.engine.service import (
    OTHER_NAME,
    Outcome,
    Service,
    ask_in_crowd,
    count_alive,
    find_secret,
    read_lines,
)

pytestmark = pytest.mark.engine

CLIENTS, REQUESTS = 10, 20
FATAL_WORDS = (
    "Illegal instruction",
    "Bus error",
    "[Errno 28] No space left on device",
    "CUDA error: an illegal memory access was encountered",
    "out of memory",
)
PHASES = ["boot", "engine", "weights", "drafter", "cache", "server"]
# A fault that this engine does not have, put before the real one; without drafts it stays away.
CRASH = """
import os, sys
line = " ".join(sys.orig_argv)
if "api_server" in line and "--speculative-config" in line:
    sys.stdout.write("torch.AcceleratorError: CUDA error: an illegal memory access was encountered")
    sys.stdout.flush()
    os._exit(1)
"""


@pytest.fixture(scope="module")
def service(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    served = Service(tmp_path_factory.mktemp("service"), target)
    yield served
    served.end()


def test_a_cold_start_tells_every_phase_and_ends_in_a_proof(service: Service) -> None:
    began = time.monotonic()
    events = read_lines(service.serve().stdout)
    seconds = time.monotonic() - began
    # That it listens is told if its log says so before its port answers.
    told = [event["phase"] for event in events if event["phase"] not in (None, "", "listening")]
    assert list(dict.fromkeys(told)) == PHASES
    states = list(dict.fromkeys(event["state"] for event in events))
    assert states == ["downloading", "starting", "warming", "ready"]
    figures = events[-1]["figures"]
    assert figures["tokens_per_step"] > 1
    assert service.is_ready()
    folder, run = service.newest
    assert (run.plan.context, run.plan.settings.eager) == (
        1000,
        Choice(True, "user", "set after --"),
    )
    models = httpx.get(f"{service.url}/v1/models").json()["data"]
    assert [model["id"] for model in models] == [service.target.name, OTHER_NAME]
    assert run.phase_seconds.keys() == set(PHASES)
    # Every part of ours that is planned has reported from inside the engine.
    assert (len(list_parts(run.plan)), run.notes) == (6, {})
    # The engine takes every kind of request that it is warmed up with.
    messages = " ".join(event["message"] for event in events)
    assert "a log probability answer took" in messages
    assert "answers fail" not in messages
    sys.stdout.write(f"\nready in {seconds:.1f} s; {events[-1]['message']}; {run.phase_seconds}")
    assert b"Bearer" not in folder.record.read_bytes()


def test_status_says_ready_and_logs_hold_the_engines_words(service: Service) -> None:
    told = json.loads(service.command("status", "--json").stdout)
    assert told["runs"][0]["state"] == "ready"
    assert "Application startup complete" in service.command("logs").stdout


@pytest.mark.parametrize("victim", ["core", "supervisor"])
def test_a_killed_process_costs_only_what_was_in_flight(service: Service, victim: str) -> None:
    service.wait_for(service.is_ready)
    processes = service.find_processes()
    supervisor = service.newest[1].supervisor.pid
    pid = supervisor if victim == "supervisor" else processes[victim]
    took: dict[str, float] = {}

    def kill(outcome: Outcome) -> None:
        service.wait_for(lambda: outcome.answered >= CLIENTS * REQUESTS // 4)
        if victim == "core":  # What clients have the log say is not why it dies.
            assert [ask_for(service, model) for model in FATAL_WORDS] == [404] * len(FATAL_WORDS)
        os.kill(pid, signal.SIGKILL)
        took["down"] = service.wait_for(lambda: not service.is_ready())
        took["gone"] = service.wait_for(lambda: count_alive(list(processes.values())) == 0, 60)
        took["ready"] = service.wait_for(service.is_ready)

    if victim == "supervisor":  # The warden is the next supervisor.
        processes.pop("warden")
    outcome = ask_in_crowd(service, CLIENTS, REQUESTS, meanwhile=kill)
    sys.stdout.write(f"\nkill -9 of the {victim}: {outcome}, {took}")
    assert outcome.answered == CLIENTS * REQUESTS
    assert outcome.cut_off <= CLIENTS
    assert took["gone"] <= 10
    if victim == "core":
        folder, run = service.newest
        assert (run.restarts, run.rungs) == (1, ())
        assert "Illegal instruction" in (folder.path / "engine-1.log").read_text()
        assert not any("AVX2" in event.message for event in folder.read_events())


def ask_for(service: Service, model: str) -> int:
    body = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    return httpx.post(f"{service.url}/v1/chat/completions", json=body, timeout=60).status_code


def test_a_frozen_engine_is_unready_in_time_and_replaced(service: Service) -> None:
    service.wait_for(service.is_ready)
    before = service.newest[1]
    processes = service.find_processes()
    os.kill(processes["core"], signal.SIGSTOP)
    unready = service.wait_for(lambda: not service.is_ready(), 60)
    replaced = service.wait_for(lambda: service.newest[1].restarts > before.restarts)
    left = count_alive(list(processes.values()))
    ready = service.wait_for(service.is_ready)
    sys.stdout.write(
        f"\nSIGSTOP of the core: unready in {unready:.1f} s, replaced {replaced:.1f} s later, "
        f"ready {ready:.1f} s after that, {left} processes left"
    )
    assert unready <= 30
    assert left == 0


def test_a_stop_lets_open_streams_end_and_no_new_request_in(service: Service) -> None:
    service.wait_for(service.is_ready)
    processes = service.find_processes()
    endings: list[str] = []
    begun = threading.Barrier(6)
    body = {"prompt": "Once", "max_tokens": 48, "stream": True, "ignore_eos": True}

    def stream() -> None:
        with httpx.stream("POST", f"{service.url}/v1/completions", json=body, timeout=120) as told:
            lines = told.iter_lines()
            next(lines)
            begun.wait(timeout=120)
            endings.append([line for line in lines if line][-1])

    threads = [threading.Thread(target=stream) for _ in range(5)]
    for thread in threads:
        thread.start()
    begun.wait(timeout=120)
    stopping = threading.Thread(target=service.command, args=("stop",))
    stopping.start()
    service.wait_for(lambda: service.newest[1].state == "draining", 30)
    time.sleep(0.5)
    late = httpx.post(f"{service.url}/v1/completions", json=body, timeout=5)
    for thread in (*threads, stopping):
        thread.join()
    sys.stdout.write(f"\nstop: {endings}, a late request got {late.status_code}")
    assert endings == ["data: [DONE]"] * 5
    assert late.status_code == httpx.codes.SERVICE_UNAVAILABLE
    assert int(late.headers["retry-after"]) > 0
    assert count_alive(list(processes.values())) == 0
    assert service.newest[1].state == "stopped"


@pytest.mark.weekly
def test_an_engine_that_crashes_with_drafts_ends_up_serving_plain(
    target: Path, tmp_path: Path
) -> None:
    (tmp_path / "fault").mkdir()
    (tmp_path / "fault" / "sitecustomize.py").write_text(CRASH)
    paths = [str(tmp_path / "fault"), *filter(None, [os.environ.get("PYTHONPATH")])]
    service = Service(tmp_path, target, environment={"PYTHONPATH": os.pathsep.join(paths)})
    try:
        key = service.command("keys", "new").stdout.strip()
        began = time.monotonic()
        service.serve()
        run = service.newest[1]
        sys.stdout.write(
            f"\nserving plain {time.monotonic() - began:.1f} s and {run.restarts} restarts later"
        )
        assert run.rungs == ("short-drafts", "no-speculation")
        assert run.plan.drafter is None
        told = service.command("status", run.id).stdout
        assert "no-speculation, after illegal memory accesses" in told
        body = {"prompt": "Once", "max_tokens": 4}
        path = f"{service.url}/v1/completions"
        assert httpx.post(path, json=body).status_code == httpx.codes.UNAUTHORIZED
        known = {"authorization": f"Bearer {key}"}
        answer = httpx.post(path, json=body, timeout=60, headers=known).json()
        assert answer["usage"]["completion_tokens"] == 4
        assert find_secret(key, service) == []
    finally:
        service.end()


@pytest.mark.parametrize("damage", ["flipped", "truncated", "oversized"])
def test_damaged_weights_are_refused_before_the_engine_starts(
    target: Path, tmp_path: Path, damage: str
) -> None:
    copy = tmp_path / "model"
    shutil.copytree(target, copy)
    cache = tmp_path / "cache"
    told: list[str] = []
    environment = {"SLIPSTREAM_CACHE": str(cache)}
    obtain(str(copy), revision=None, environment=environment, report=told.append)
    shard = copy / "model.safetensors"
    with shard.open("r+b") as file:
        size = shard.stat().st_size
        if damage == "truncated":
            file.truncate(size - 1)
        elif damage == "oversized":
            file.truncate(size + 4096)
        else:
            file.seek(size // 2)
            byte = file.read(1)[0]
            file.seek(size // 2)
            file.write(bytes([byte ^ 1]))
    service = Service(tmp_path, copy, environment=environment)
    began = time.monotonic()
    words = ("--no-speculation", "--port", str(service.port))
    refused = service.command("serve", str(copy), *words, check=False)
    seconds = time.monotonic() - began
    sys.stdout.write(f"\n{damage}: refused in {seconds:.1f} s: {refused.stderr.splitlines()[-4:]}")
    assert refused.returncode == 1
    assert "model.safetensors" in refused.stderr
    assert list(tmp_path.rglob("engine.log")) == []
