"""The gate's bounds hold under TLS, where a connection cannot be closed in one direction."""

import socket
import ssl
import time
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from slipstream.vllm_plugin.gate import connections
from slipstream.vllm_plugin.gate.answers import App
from tests.unit.serving.access.certificates import Pair, make_pair
from tests.unit.vllm_plugin.gate.test_connections import Living, make_living_gate, make_server
from tests.unit.vllm_plugin.gate.test_sockets import run

pytest.importorskip("httptools")


def serve(
    gate: App, pair: Pair, *, loop: str = "auto", authority: Pair | None = None
) -> AbstractContextManager[int]:
    server = make_server(gate)
    server.config.loop = loop
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.file, pair.key)
    if authority is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(authority.file)
    server.config.ssl_certfile, server.config.ssl = pair.file, context
    return run(server)


def ask(
    port: int, pair: Pair, *pieces: bytes, pause: float = 0, shown: Pair | None = None
) -> bytes:
    """Send pieces over TLS, and return all that comes until the server closes."""
    context = ssl.create_default_context(cafile=str(pair.file))
    if shown is not None:
        context.load_cert_chain(shown.file, shown.key)
    with (
        socket.create_connection(("127.0.0.1", port), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname="llm.example.org") as connection,
    ):
        answer = b""
        try:
            for piece in pieces:
                connection.sendall(piece)
                time.sleep(pause)
            while piece := connection.recv(4096):
                answer += piece
        except (ssl.SSLError, ConnectionError):
            pass
        return answer


@pytest.fixture(params=["asyncio", "uvloop"])
def loop(request: pytest.FixtureRequest) -> str:
    if request.param == "uvloop":
        pytest.importorskip("uvloop")
    return str(request.param)


MODELS = b"GET /v1/models HTTP/1.1\r\nHost: e\r\nConnection: close\r\n\r\n"


def test_a_request_is_answered(tmp_path: Path) -> None:
    pair, engine = make_pair(tmp_path / "tls"), Living()
    with serve(make_living_gate(tmp_path, engine), pair) as port:
        answer = ask(port, pair, MODELS)
        ends = REGISTRY.get_sample_value("slipstream_gate_certificate_end_seconds")
    assert answer.startswith(b"HTTP/1.1 200")
    assert engine.scopes[0]["scheme"] == "https"
    assert ends is not None
    assert ends > time.time()


def test_where_clients_need_a_certificate_no_request_comes_without_one(
    tmp_path: Path, loop: str
) -> None:
    authority = make_pair(tmp_path / "authority", "authority", is_authority=True)
    pair, engine = make_pair(tmp_path / "tls", issuer=authority), Living()
    stranger = make_pair(tmp_path / "stranger")
    gate = make_living_gate(tmp_path, engine)
    with serve(gate, pair, loop=loop, authority=authority) as port:
        assert ask(port, authority, MODELS) == b""
        assert ask(port, authority, MODELS, shown=stranger) == b""
        assert engine.scopes == []
        assert ask(port, authority, MODELS, shown=pair).startswith(b"HTTP/1.1 200")


def test_a_head_without_end_is_refused_with_an_answer(tmp_path: Path) -> None:
    pair, engine = make_pair(tmp_path / "tls"), Living()
    with serve(make_living_gate(tmp_path, engine), pair) as port:
        answer = ask(port, pair, MODELS[:-2] + b"X-A: " + b"a" * 9000)
        assert answer.startswith(b"HTTP/1.1 431")
        assert ask(port, pair, MODELS).startswith(b"HTTP/1.1 200")
    assert len(engine.scopes) == 1


def test_a_slow_head_is_refused_and_its_connection_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "LINGER_SECONDS", 0.2)
    pair = make_pair(tmp_path / "tls")
    with serve(make_living_gate(tmp_path, Living(), head_seconds=0.3), pair) as port:
        began = time.monotonic()
        answer = ask(port, pair, MODELS[:20])
        took = time.monotonic() - began
    assert answer.startswith(b"HTTP/1.1 408")
    assert 0.3 <= took < 5


HELLO = bytes.fromhex("16030100c8010000c4")


@pytest.mark.parametrize("start", [b"", HELLO])
def test_a_handshake_without_an_end_is_ended(tmp_path: Path, loop: str, start: bytes) -> None:
    """asyncio waits for 60 s."""
    pair = make_pair(tmp_path / "tls")
    gate = make_living_gate(tmp_path, Living(), head_seconds=0.3)
    with (
        serve(gate, pair, loop=loop) as port,
        socket.create_connection(("127.0.0.1", port), timeout=30) as connection,
    ):
        began = time.monotonic()
        connection.sendall(start)
        with suppress(ConnectionError):
            assert connection.recv(1) == b""
        assert time.monotonic() - began >= 0.2
        assert ask(port, pair, MODELS).startswith(b"HTTP/1.1 200")


def test_handshakes_under_way_have_places_like_other_connections(tmp_path: Path, loop: str) -> None:
    pair, most = make_pair(tmp_path / "tls"), 8
    gate = make_living_gate(tmp_path, Living(), head_seconds=600, connections=most)
    with serve(gate, pair, loop=loop) as port, ExitStack() as opened:
        idle = [
            opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
            for _ in range(5 * most)
        ]
        assert ask(port, pair, MODELS).startswith(b"HTTP/1.1 200")
        closed = 0
        for connection in idle[: 4 * most]:
            with suppress(ConnectionError):
                assert connection.recv(1) == b""
            closed += 1
        assert closed == 4 * most


def test_whoever_does_not_speak_tls_or_leaves_early_disturbs_nobody(
    tmp_path: Path, loop: str
) -> None:
    pair, engine = make_pair(tmp_path / "tls"), Living()
    with serve(make_living_gate(tmp_path, engine), pair, loop=loop) as port:
        for start in (MODELS, HELLO, b""):
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.sendall(start)
        assert ask(port, pair, MODELS).startswith(b"HTTP/1.1 200")
    assert len(engine.scopes) == 1


def test_a_request_that_comes_with_the_end_of_the_handshake_is_answered(
    tmp_path: Path, loop: str
) -> None:
    pair = make_pair(tmp_path / "tls")
    context = ssl.create_default_context(cafile=str(pair.file))
    received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(received, sent, server_hostname="llm.example.org")
    answer = b""
    with (
        serve(make_living_gate(tmp_path, Living()), pair, loop=loop) as port,
        socket.create_connection(("127.0.0.1", port), timeout=30) as connection,
    ):
        while True:
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                connection.sendall(sent.read())
                received.write(connection.recv(65536))
        client.write(MODELS)
        connection.sendall(sent.read())
        while b"\r\n" not in answer:
            received.write(connection.recv(65536))
            with suppress(ssl.SSLWantReadError):
                answer += client.read(65536)
    assert answer.startswith(b"HTTP/1.1 200")
