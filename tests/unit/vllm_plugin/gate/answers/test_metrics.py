"""The gate's metrics stand beside vLLM's, and no client can make their labels grow."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

import httpx
import pytest
from prometheus_client import REGISTRY, make_asgi_app
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from slipstream.serving.access.keys import make_key
from slipstream.vllm_plugin.gate.answers import App, Receive, Scope, Send, metrics
from slipstream.vllm_plugin.gate.answers.metrics import MOST_KEYS, Metrics, open_metrics
from tests.unit.vllm_plugin.gate.answers.test_visits import EVENTS, Streaming
from tests.unit.vllm_plugin.gate.pieces import (
    CHAT,
    HELLO,
    Engine,
    call,
    make_gate,
    make_scope,
    read_all,
    wait_until,
)
from tests.unit.vllm_plugin.gate.test_connections import Living, enliven, serve_as_vllm
from tests.unit.vllm_plugin.gate.test_sockets import connect, start_post

PREFIX = "slipstream_gate_"
PROBE = sha256(b"probe").hexdigest()
# Two API processes, whose values are added up as vLLM does it.
SEVERAL = """
import asyncio, os, sys
from pathlib import Path
from tests.unit.vllm_plugin.gate.pieces import *
folder = Path(sys.argv[1]); folder.mkdir()
body = {"type": "http.request", "body": json.dumps(HELLO).encode(), "more_body": False}
scope = make_scope(CHAT.encode(), method="POST")
asyncio.run(call(make_gate(folder, Engine()), scope, body))
from prometheus_client import CollectorRegistry, generate_latest, multiprocess
registry = CollectorRegistry()
multiprocess.MultiProcessCollector(registry)
print(generate_latest(registry).decode())
"""


def serve_metrics(engine: App) -> App:
    """Put an engine behind /metrics as vLLM mounts it."""
    shown = make_asgi_app(registry=REGISTRY)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        wanted = scope["type"] == "http" and scope["path"] == "/metrics"
        await (shown if wanted else engine)(scope, receive, send)

    return app


def parse(text: str) -> list[Sample]:
    families = text_string_to_metric_families(text)
    return [sample for family in families for sample in family.samples]


def read_samples(port: int) -> dict[tuple[str, ...], float]:
    """Read the gate's metrics, by name and labels."""
    headers = {"Authorization": "Bearer probe"}
    text = httpx.get(f"http://127.0.0.1:{port}/metrics", headers=headers).text
    return {
        (one.name.removeprefix(PREFIX), *one.labels.values()): one.value
        for one in parse(text)
        if one.name.startswith(PREFIX) and not one.name.endswith(("_created", "_bucket"))
    }


def test_requests_refusals_and_times_are_counted(tmp_path: Path) -> None:
    keys = tmp_path / "keys" / "keys.json"
    made = make_key(keys, "alice", now=datetime.now(UTC), expires=None)
    key = {"Authorization": f"Bearer {made.secret}"}
    engine = serve_metrics(Living(chunks=(b"{}",)))
    gate = make_gate(tmp_path, engine, keys_file=keys, probe_sha256=PROBE)
    with serve_as_vllm(gate) as port, httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
        before = read_samples(port)
        for _ in range(3):
            assert client.post(CHAT, json=HELLO, headers=key).status_code == 200
        client.post(CHAT, json=HELLO | {"n": 1000}, headers=key)
        client.post(CHAT, json=HELLO)
        client.get("/odd")
        client.get("/livez")
        after = read_samples(port)
        assert after[("connections",)] == 2
    change = {
        name: value - before.get(name, 0)
        for name, value in after.items()
        if value != before.get(name, 0) and "seconds" not in name[0]
    }
    change.pop(("connections",), None)
    body_bytes = change.pop(("request_body_bytes_sum",))
    chat, alice = f"POST {CHAT}", made.key.id
    assert change == {
        ("requests_total", alice, chat, "2xx"): 3,
        ("requests_total", alice, chat, "4xx"): 1,
        ("requests_total", "none", chat, "4xx"): 1,
        ("requests_total", "none", "other", "4xx"): 1,
        ("requests_total", "none", "GET /livez", "2xx"): 1,
        ("requests_total", "supervisor", "GET /metrics", "2xx"): 1,
        ("refusals_total", alice, "bad_request"): 1,
        ("refusals_total", "none", "no_valid_key"): 1,
        ("refusals_total", "none", "no_such_route"): 1,
        ("request_body_bytes_count",): 4,
    }
    assert body_bytes > 4 * len(json.dumps(HELLO, separators=(",", ":"))) - 1
    counted = after[("request_seconds_count", chat)] - before.get(
        ("request_seconds_count", chat), 0
    )
    assert counted == 3


def test_a_streams_first_token_is_timed(tmp_path: Path) -> None:
    engine = enliven(serve_metrics(Streaming(*EVENTS)))
    name = ("first_token_seconds_count", f"POST {CHAT}")
    with serve_as_vllm(make_gate(tmp_path, engine)) as port:
        before = read_samples(port)
        httpx.post(f"http://127.0.0.1:{port}{CHAT}", json=HELLO)
        after = read_samples(port)
    assert after[name] - before.get(name, 0) == 1


def test_what_is_under_way_is_shown_and_forgotten(tmp_path: Path) -> None:
    async def wait_for_leaving(scope: Scope, receive: Receive, send: Send) -> None:
        await read_all(receive)
        await receive()

    engine = enliven(serve_metrics(wait_for_leaving))
    with serve_as_vllm(make_gate(tmp_path, engine)) as port:
        before = read_samples(port)
        held = [connect(port) for _ in range(5)]
        body = json.dumps(HELLO).encode()
        for connection in held[:3]:
            connection.sendall(start_post(len(body)) + body)
        for connection in held[3:]:
            connection.sendall(start_post(100) + b"{")
        time.sleep(0.2)
        during = read_samples(port)
        for connection in held:
            connection.close()
        wait_until(
            lambda: read_samples(port)[("requests_waiting",)] == before[("requests_waiting",)]
        )
    # The request for /metrics is one that the engine has.
    assert during[("requests_in_flight",)] - before[("requests_in_flight",)] == 3
    assert during[("requests_waiting",)] - before[("requests_waiting",)] == 2
    assert during[("connections",)] == 6


def test_ten_thousand_odd_routes_make_no_new_labels(tmp_path: Path) -> None:
    gate = make_gate(tmp_path, Engine())

    async def ask_all() -> None:
        for number in range(10_000):
            path = f'/{number}/"x\\\n{{evil="{number}"}} \x1b[31m'.encode("latin-1")
            method = ("GET", "POST", f"M{number}")[number % 3]
            headers = [(b"x-request-id", str(number).encode()), (b"x-api-key", b"%d" % number)]
            await call(gate, make_scope(path, method=method, headers=headers))

    def count() -> Counter[str]:
        samples = [one for family in REGISTRY.collect() for one in family.samples]
        return Counter(one.name for one in samples if one.name.startswith(PREFIX))

    asyncio.run(call(gate, make_scope(b"/odd")))
    before = count()
    asyncio.run(ask_all())
    assert count() == before


def test_a_hundred_keys_have_a_label_and_the_others_share_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shared: Metrics = open_metrics()
    monkeypatch.setattr(shared, "_keys", set())
    for number in range(1000):
        shared.count_refusal("bad_request", f"many-{number}")
    labels = {
        one.labels["key"]
        for family in REGISTRY.collect()
        for one in family.samples
        if one.name == f"{PREFIX}refusals_total"
    }
    many = {label for label in labels if label.startswith("many-")}
    assert (len(many), metrics.OTHER in labels) == (MOST_KEYS, True)


def test_lines_that_were_dropped_are_counted(tmp_path: Path) -> None:
    name = ("access_log_dropped_lines_total",)
    gate = make_gate(tmp_path, serve_metrics(Living()), access_log="/dev/full")
    with serve_as_vllm(gate) as port:
        before = read_samples(port)[name]
        assert httpx.post(f"http://127.0.0.1:{port}{CHAT}", json=HELLO).status_code == 200
        wait_until(lambda: read_samples(port)[name] == before + 1)


def test_several_api_processes_are_added_up(tmp_path: Path) -> None:
    (tmp_path / "values").mkdir()
    environment = {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path / "values")}
    shown = ""
    for name in ("one", "two"):
        shown = subprocess.run(
            [sys.executable, "-c", SEVERAL, str(tmp_path / name)],
            env={**os.environ, **environment},
            cwd=Path(__file__).parents[5],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    totals = {one.name: one.value for one in parse(shown) if not one.name.endswith("_bucket")}
    assert totals[f"{PREFIX}requests_total"] == 2
    assert totals[f"{PREFIX}request_seconds_count"] == 2
    assert totals[f"{PREFIX}requests_in_flight"] == 0
