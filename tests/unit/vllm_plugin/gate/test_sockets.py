"""The gate behind a real server: raw bytes in, as a hostile or unlucky client sends them."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from slipstream.vllm_plugin.gate.answers import App, Receive, Scope, Send
from tests.unit.vllm_plugin.gate.pieces import CHAT, HELLO, Engine, make_gate, read_all
from tests.unit.vllm_plugin.gate.test_routes import TRICKS

REQUEST_BODY = json.dumps(HELLO).encode()


def serve(app: App, **options: Any) -> AbstractContextManager[int]:
    """Serve an app that has no life on a free port until the block is left."""
    options = {"ws": "none", **options}
    config = uvicorn.Config(app, port=0, log_level="critical", lifespan="off", **options)
    return run(uvicorn.Server(config))


@contextmanager
def run(server: uvicorn.Server) -> Iterator[int]:
    """Run a server until the block ends, and return its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield int(listener.getsockname()[1])
        finally:
            server.should_exit = True
            thread.join()


def send_raw(port: int, content: bytes) -> bytes:
    """Send bytes and return all that comes back until the server closes."""
    with connect(port) as connection:
        connection.sendall(content)
        return read_to_end(connection)


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=10)


def read_to_end(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(65536), b""))


def request(target: str, *, host: str = "engine", method: str = "GET") -> bytes:
    head = f"{method} {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    return head.encode("latin-1")


def status_of(answer: bytes) -> int:
    return int(answer.split()[1])


@pytest.mark.parametrize("parser", ["httptools", "h11"])
def test_no_way_of_writing_a_path_gets_past(tmp_path: Path, engine: Engine, parser: str) -> None:
    pytest.importorskip(parser)
    targets = [trick for trick in TRICKS if trick.startswith("/") and " " not in trick]
    targets += ["/invocations", "http://evil.example/invocations", "/invocations?/v1/models"]
    targets += ["/invocations#/v1/models", "//evil.example/v1/models", "/metrics/", "/health%20"]
    with serve(make_gate(tmp_path, engine), http=parser) as port:
        statuses = {target: status_of(send_raw(port, request(target))) for target in targets}
        confused = request("/invocations", host="engine/v1/models?")
        assert status_of(send_raw(port, confused)) in (400, 404)
        assert engine.scopes == []
        proper = ["/v1/models", "/v1/models?limit=/invocations"]
        assert [status_of(send_raw(port, request(target))) for target in proper] == [200, 200]
    assert set(statuses.values()) <= {400, 404}
    assert engine.paths == ["/v1/models"] * 2


def test_a_root_path_does_not_open_another_route(tmp_path: Path, engine: Engine) -> None:
    with serve(make_gate(tmp_path, engine), root_path="/v1") as port:
        statuses = [
            status_of(send_raw(port, request(target)))
            for target in ("/v1/models", "/invocations", "/v1/v1/models", "/models")
        ]
    assert statuses == [404, 404, 404, 200]
    assert engine.paths == ["/v1/models"]


def start_post(length: int, *extra: str) -> bytes:
    lines = [f"POST {CHAT} HTTP/1.1", "Host: engine", f"Content-Length: {length}", *extra]
    return "\r\n".join([*lines, "", ""]).encode()


def test_a_body_that_does_not_come_is_given_up_and_others_are_served(tmp_path: Path) -> None:
    engine = Engine()
    gate = make_gate(tmp_path, engine, limits={"body_seconds": 1.0})
    with serve(gate) as port:
        slow = [connect(port) for _ in range(20)]
        started = time.monotonic()
        for connection in slow:
            connection.sendall(start_post(100) + b'{"mod')
        answer = httpx.post(f"http://127.0.0.1:{port}{CHAT}", json=HELLO)
        assert (answer.status_code, time.monotonic() - started < 10) == (200, True)
        for connection in slow:
            given = read_to_end(connection)
            assert status_of(given) == 408
            assert b"the body did not arrive within 1 s" in given
            connection.close()
        assert 1.0 <= time.monotonic() - started < 30
    assert len(engine.bodies) == 1


def test_a_body_that_is_too_large_is_not_even_read(tmp_path: Path, engine: Engine) -> None:
    with serve(make_gate(tmp_path, engine)) as port:
        started = time.monotonic()
        answer = send_raw(port, start_post(10**12))
        assert (status_of(answer), time.monotonic() - started < 10) == (413, True)
        whole = httpx.post(f"http://127.0.0.1:{port}{CHAT}", content=b"x" * 10_000_000)
        assert whole.status_code == 413
        chunks = b"10000\r\n" + b"x" * 65536 + b"\r\n"
        head = f"POST {CHAT} HTTP/1.1\r\nHost: e\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        assert status_of(send_raw(port, head + chunks * 33)) == 413
    assert engine.scopes == []


class Stream:
    """An engine that gives tokens until its client leaves, as vLLM does."""

    def __init__(self) -> None:
        self.given = 0
        self.left = threading.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await read_all(receive)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        leaving = asyncio.ensure_future(receive())
        while not leaving.done():
            await send({"type": "http.response.body", "body": b"token ", "more_body": True})
            self.given += 1
            await asyncio.sleep(0.01)
        self.left.set()


def test_a_kept_connection_serves_a_refusal_and_then_a_request(tmp_path: Path) -> None:
    engine = Engine()
    with (
        serve(make_gate(tmp_path, engine)) as port,
        httpx.Client(base_url=f"http://127.0.0.1:{port}") as client,
    ):
        statuses = [
            client.post(CHAT, json=HELLO | {"n": 1000}).status_code,
            client.post("/invocations", json=HELLO).status_code,
            client.post(CHAT, json=HELLO).status_code,
            client.get("/nothing").status_code,
            client.get("/v1/models").status_code,
        ]
    assert statuses == [400, 404, 200, 404, 200]
    assert engine.paths == [CHAT, "/v1/models"]
