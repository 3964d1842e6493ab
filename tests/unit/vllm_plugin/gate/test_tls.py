"""The gate's bounds hold under TLS, where a connection cannot be closed in one direction."""

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from slipstream.vllm_plugin.gate import connections
from slipstream.vllm_plugin.gate.answers import App
from tests.unit.serving.access.certificates import Pair, make_pair
from tests.unit.vllm_plugin.gate.test_connections import Living, make_living_gate, make_server

pytest.importorskip("httptools")


@contextmanager
def serve(gate: App, pair: Pair) -> Iterator[int]:
    server = make_server(gate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.file, pair.key)
    server.config.ssl_certfile, server.config.ssl = pair.file, context
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield int(listener.getsockname()[1])
        finally:
            server.should_exit = True
            thread.join()


def ask(port: int, pair: Pair, *pieces: bytes, pause: float = 0) -> bytes:
    """Send pieces over TLS, and return all that comes until the server closes."""
    context = ssl.create_default_context(cafile=str(pair.file))
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


MODELS = b"GET /v1/models HTTP/1.1\r\nHost: e\r\nConnection: close\r\n\r\n"


def test_a_request_is_answered(tmp_path: Path) -> None:
    pair, engine = make_pair(tmp_path / "tls"), Living()
    with serve(make_living_gate(tmp_path, engine), pair) as port:
        answer = ask(port, pair, MODELS)
    assert answer.startswith(b"HTTP/1.1 200")
    assert engine.scopes[0]["scheme"] == "https"


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
