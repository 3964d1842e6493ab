"""A request that does not end, in bytes or in time, ends its connection, and only that one."""

import asyncio
import socket
import time
from contextlib import AbstractContextManager
from http.client import HTTPResponse
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn

from slipstream.serving.supervision.causes.diagnosis import diagnose
from slipstream.vllm_plugin.gate import connections
from slipstream.vllm_plugin.gate.answers import App, Receive, Scope, Send
from slipstream.vllm_plugin.gate.connections import bound_connections
from tests.unit.vllm_plugin.gate.pieces import Engine, make_gate
from tests.unit.vllm_plugin.gate.test_sockets import (
    connect,
    read_to_end,
    request,
    run,
    send_raw,
    status_of,
)

pytest.importorskip("httptools")


def make_server(gate: App, parser: str = "httptools") -> uvicorn.Server:
    """Make a server as vLLM does: the app's state has the server, and the app has a life."""
    state = SimpleNamespace()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await gate({**scope, "app": SimpleNamespace(state=state)}, receive, send)

    config = uvicorn.Config(app, port=0, log_level="critical", lifespan="on", http=parser)
    config.load()
    state.server = server = uvicorn.Server(config)
    return server


def serve_as_vllm(gate: App) -> AbstractContextManager[int]:
    return run(make_server(gate))


class Living(Engine):
    """An engine that answers the server's start and end, too."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            return await super().__call__(scope, receive, send)
        for happened in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{happened}.complete"})


def enliven(engine: App) -> App:
    """Let another engine answer the server's start and end."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await (engine if scope["type"] == "http" else Living())(scope, receive, send)

    return app


def make_living_gate(folder: Path, engine: Engine, **limits: float) -> Any:
    return make_gate(folder, engine, limits={"head_bytes": 4096, **limits})


ENDLESS = [
    b"GET /v1/models HTTP/1.1\r\nHost: e\r\n" + b"X-A: " + b"a" * 9000,
    b"GET /v1/models HTTP/1.1\r\nHost: e\r\n" + b"X-A: a\r\n" * 9000,
    b"GET /" + b"a" * 9000,
]
LONG_HEADER = b"GET /livez HTTP/1.1\r\na: " + b"b" * 5000 + b"\r\n\r\n"
WHOLE = [
    b"GET /livez HTTP/1.1\r\n" + b"a: b\r\n" * 101 + b"\r\n",
    LONG_HEADER,
    b"GET /livez?" + b"a" * 5000 + b" HTTP/1.1\r\n\r\n",
]


@pytest.mark.parametrize("head", [*ENDLESS, *WHOLE], ids=lambda head: str(head[-30:]))
def test_a_large_or_endless_head_ends_its_connection(tmp_path: Path, head: bytes) -> None:
    engine = Living()
    with serve_as_vllm(make_living_gate(tmp_path, engine)) as port:
        assert status_of(send_raw(port, head)) == 431
        with connect(port) as connection:
            connection.sendall(head[:500])
            connection.sendall(head[500:])
            assert status_of(read_to_end(connection)) == 431
        assert status_of(send_raw(port, request("/v1/models"))) == 200
    assert engine.paths == ["/v1/models"]


def test_what_is_still_on_its_way_does_not_take_the_answer_away(tmp_path: Path) -> None:
    more_than_one_read = b"a" * 600_000
    with serve_as_vllm(make_living_gate(tmp_path, Living())) as port, connect(port) as connection:
        connection.sendall(ENDLESS[0] + more_than_one_read)
        assert status_of(read_to_end(connection)) == 431


def send_until_cut_off(connection: socket.socket, piece: bytes) -> None:
    while True:
        connection.sendall(piece)
        time.sleep(0.01)


@pytest.mark.parametrize(("piece", "lingers"), [(b"a", 1.0), (b"a" * 100_000, 60.0)])
def test_one_who_never_stops_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: bytes, lingers: float
) -> None:
    monkeypatch.setattr(connections, "LINGER_SECONDS", lingers)
    with serve_as_vllm(make_living_gate(tmp_path, Living())) as port, connect(port) as connection:
        connection.sendall(ENDLESS[0])
        began = time.monotonic()
        with pytest.raises(ConnectionError):
            send_until_cut_off(connection, piece)
        assert time.monotonic() - began < 20


@pytest.mark.parametrize("start", [b"", b"GET /v1/mod", b"GET /v1/models HTTP/1.1\r\nHost: e\r\n"])
def test_a_head_that_does_not_come_ends_its_connection(tmp_path: Path, start: bytes) -> None:
    engine = Living()
    gate = make_living_gate(tmp_path, engine, head_seconds=0.3)
    with serve_as_vllm(gate) as port, connect(port) as slow:
        slow.sendall(start)
        began = time.monotonic()
        assert status_of(send_raw(port, request("/v1/models"))) == 200
        assert status_of(read_to_end(slow)) == 408
        assert 0.2 < time.monotonic() - began < 30
    assert engine.paths == ["/v1/models"]


def test_the_second_request_of_a_connection_is_held_to_it_too(tmp_path: Path) -> None:
    gate = make_living_gate(tmp_path, Living(), head_seconds=0.3)
    with serve_as_vllm(gate) as port, connect(port) as connection:
        connection.sendall(b"GET /livez HTTP/1.1\r\nHost: e\r\n\r\n")
        assert status_of(connection.recv(65536)) == 200
        connection.sendall(b"GET /livez HT")
        assert b"HTTP/1.1 408" in read_to_end(connection)


def test_a_slow_answer_and_a_large_body_are_no_head(tmp_path: Path) -> None:
    gate = make_living_gate(tmp_path, Living(), head_seconds=0.2)
    body = b'{"model": "' + b"m" * 100_000 + b'"}'
    head = f"POST /v1/completions HTTP/1.1\r\nHost: e\r\nContent-Length: {len(body)}\r\n"
    with serve_as_vllm(gate) as port, connect(port) as connection:
        connection.sendall(f"{head}Connection: close\r\n\r\n".encode() + body[:-1])
        time.sleep(0.5)
        connection.sendall(body[-1:])
        assert status_of(read_to_end(connection)) == 200


ALIVE = b"GET /livez HTTP/1.1\r\nHost: e\r\n"
UNFINISHED = {
    "a length": ALIVE + b"Content-Length: 10\r\n\r\na",
    "chunks": ALIVE + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n",
    "trailers": ALIVE + b"Transfer-Encoding: chunked\r\n\r\n0\r\na: b\r\n",
    "empty lines": ALIVE + b"\r\n",
}


@pytest.mark.parametrize("what", UNFINISHED)
def test_an_answered_connection_with_something_unfinished_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(connections, "LINGER_SECONDS", 0.2)
    gate = make_living_gate(tmp_path, Living(), head_seconds=0.2)
    with serve_as_vllm(gate) as port, connect(port) as connection:
        connection.sendall(UNFINISHED[what])
        answer = HTTPResponse(connection)
        answer.begin()
        assert (answer.status, bool(answer.read())) == (200, True)
        connection.sendall(b"\r\n")
        assert read_to_end(connection)[:12] in (b"", b"HTTP/1.1 408")
        with pytest.raises(ConnectionError):
            send_until_cut_off(connection, b"\r\n")


def test_two_requests_at_once_are_answered_and_a_third_is_not(tmp_path: Path) -> None:
    engine, last = Living(), request("/v1/models")
    asked = last.replace(b"Connection: close\r\n", b"")
    with serve_as_vllm(make_living_gate(tmp_path, engine)) as port:
        assert send_raw(port, asked + last).count(b"HTTP/1.1 200") == 2
        with connect(port) as connection:
            connection.sendall(asked * 5)
            assert read_to_end(connection).count(b"HTTP/1.1 200") == 2
    assert len(engine.paths) == 4


@pytest.mark.parametrize("junk", [b"\x00\x01\r\n\r\n", LONG_HEADER])
def test_what_comes_behind_a_request_does_not_get_into_its_answer(
    tmp_path: Path, junk: bytes
) -> None:
    engine = Living(chunks=(b"one", b"two"), before_each=lambda: asyncio.sleep(0.1))
    body = b'{"prompt": "a"}'
    head = f"POST /v1/completions HTTP/1.1\r\nHost: e\r\nContent-Length: {len(body)}\r\n\r\n"
    with serve_as_vllm(make_living_gate(tmp_path, engine)) as port:
        given = send_raw(port, head.encode() + body + junk)
    assert given.count(b"HTTP/1.1") == 1
    assert given.endswith(b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n")


def test_the_request_behind_a_refused_one_is_whole(tmp_path: Path) -> None:
    engine = Living()
    head = request("/v1/completions", method="POST")[:-2] + b"Content-Length: 2\r\n\r\n"
    refused = head.replace(b"Connection: close\r\n", b"") + b"[]"
    with serve_as_vllm(make_living_gate(tmp_path, engine)) as port:
        given = send_raw(port, refused + head + b"{}")
    assert (status_of(given), given.count(b"HTTP/1.1 200")) == (400, 1)
    assert engine.bodies == [b"{}"]


def test_a_broken_body_is_answered_at_once(tmp_path: Path) -> None:
    engine = Living()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: e\r\nTransfer-Encoding: chunked\r\n\r\n"
    with serve_as_vllm(make_living_gate(tmp_path, engine)) as port:
        assert status_of(send_raw(port, head + b"zz\r\n")) == 400
    assert engine.scopes == []


def test_a_trailer_is_no_header(tmp_path: Path) -> None:
    engine = Living()
    head = request("/v1/completions", method="POST")[:-2] + b"Transfer-Encoding: chunked\r\n\r\n"
    with serve_as_vllm(make_living_gate(tmp_path, engine)) as port:
        answer = send_raw(port, head + b"2\r\n{}\r\n0\r\nx-late: a\r\n\r\n")
    assert status_of(answer) == 200
    assert b"x-late" not in engine.headers


def test_an_upgrade_is_refused(tmp_path: Path) -> None:
    engine, upgrade = Living(), b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    with serve_as_vllm(make_living_gate(tmp_path, engine)) as port:
        assert status_of(send_raw(port, b"GET /v1/realtime HTTP/1.1\r\n" + upgrade)) == 403
    assert engine.scopes == []


def test_a_server_whose_connections_cannot_be_bounded_does_not_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Living()
    gate = make_living_gate(tmp_path, engine)
    with pytest.raises(SystemExit) as caught:
        make_server(gate, parser="h11").run()
    assert caught.value.code != 0
    assert engine.scopes == []
    (line,) = [record.message for record in caplog.records if "slipstream" in record.name]
    assert [finding.signature for finding in diagnose(line)] == ["gate-not-started"]


def test_a_server_whose_bodies_cannot_be_checked_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Living()
    gate = make_living_gate(tmp_path, engine)
    monkeypatch.delattr(type(gate), "_read_engine")
    config = make_server(gate).config
    config.lifespan = "auto"  # As vLLM has it.
    with pytest.raises(SystemExit):
        uvicorn.Server(config).run()
    assert engine.scopes == []
    (line,) = [record.message for record in caplog.records if "slipstream" in record.name]
    assert [finding.signature for finding in diagnose(line)] == ["gate-not-started"]


def test_only_the_usual_parser_can_be_bounded(tmp_path: Path) -> None:
    limits = make_living_gate(tmp_path, Living()).settings.limits
    assert not bound_connections({"type": "lifespan"}, limits)
    other = SimpleNamespace(state=SimpleNamespace(server=SimpleNamespace(config=None)))
    assert not bound_connections({"type": "lifespan", "app": other}, limits)
