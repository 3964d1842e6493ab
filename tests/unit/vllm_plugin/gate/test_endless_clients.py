"""Clients without an end, before uvicorn in a process of its own: memory stays, others are served.

What an attack costs is printed: the server's memory before and after, and a neighbour's time.
"""

import hashlib
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPResponse
from pathlib import Path
from statistics import median
from typing import IO, Any, TypeVar

import pytest

from slipstream.serving.access.gate_file import GateLimits, GateSettings
from slipstream.serving.access.listeners import list_held_sockets
from tests.unit.vllm_plugin.gate.pieces import CHAT, wait_until
from tests.unit.vllm_plugin.gate.test_sockets import connect, request, send_raw, status_of

pytest.importorskip("httptools")
pytest.importorskip("uvloop")

T = TypeVar("T")
PROGRAM = Path(__file__).with_name("server_process.py")
MOST_GROWTH_MIB = 24
BODY = b'{"model": "m", "messages": [], "prompt": "a"}'
ALIVE = b"GET /livez HTTP/1.1\r\nHost: e\r\n\r\n"
STREAM = f"POST {CHAT} HTTP/1.1\r\nHost: e\r\nContent-Length: {len(BODY)}\r\n".encode()
IN_CHUNKS = b"POST /v1/completions HTTP/1.1\r\nHost: e\r\nTransfer-Encoding: chunked\r\n\r\n"
ONE_CHUNK = b"%x\r\n%s\r\n" % (len(BODY), BODY)


@dataclass(frozen=True)
class Served:
    """A server, and what can be seen of it from outside."""

    port: int
    process: int
    output: IO[str]

    def read_memory_mib(self, field: str) -> float:
        """Return the memory that the process has (VmRSS), or had at most (VmHWM)."""
        status = Path(f"/proc/{self.process}/status").read_text()
        return int(status.partition(f"{field}:")[2].split()[0]) / 1024

    def count_sockets(self) -> int:
        """Count the sockets that the process holds."""
        return len(list_held_sockets([self.process], Path("/proc")))

    def time_neighbour(self, count: int = 10) -> list[float]:
        """Return the seconds of some ordinary requests, each of which must be answered."""
        return [self._time_request() for _ in range(count)]

    def _time_request(self) -> float:
        """Ask from another address: of the one with the most connections, new ones go, too."""
        began, address = time.monotonic(), ("127.0.0.1", self.port)
        with socket.create_connection(address, 10, source_address=("127.0.0.3", 0)) as asking:
            asking.sendall(request("/v1/models"))
            assert status_of(read_to_cut(asking)) == 200
        return time.monotonic() - began

    def sees_client_leave(self) -> bool:
        """Return whether the engine ends an answer because nobody reads it."""
        readable, _, _ = select.select([self.output], [], [], 20)
        return bool(readable) and self.output.readline() == "left\n"


@contextmanager
def run_server(folder: Path, limits: Mapping[str, float], **own: Any) -> Iterator[Served]:
    settings = GateSettings(limits=GateLimits.model_validate(limits), **own)
    settings.write(folder / "gate.json")
    with subprocess.Popen(
        [sys.executable, str(PROGRAM), str(folder / "gate.json")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            served = Served(int(process.stdout.readline()), process.pid, process.stdout)
            served.time_neighbour()
            yield served
        finally:
            process.stdin.close()
            process.wait(timeout=20)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with run_server(tmp_path, {}) as server:
        yield server


def send_and_read(connection: socket.socket, content: bytes) -> bytes:
    """Send all that the server takes and read all that it gives, at the same time."""
    waiting, given = memoryview(content), b""
    with suppress(ConnectionError):
        while waiting:
            readable, writable, _ = select.select([connection], [connection], [], 10)
            if writable:
                waiting = waiting[connection.send(waiting[: 1 << 16]) :]
            if readable:
                if not (part := connection.recv(1 << 20)):
                    break
                given += part
    return given


def read_to_cut(connection: socket.socket) -> bytes:
    """Return all that comes until the server closes, in whatever way."""
    parts = []
    with suppress(ConnectionError):
        while part := connection.recv(1 << 20):
            parts.append(part)
    return b"".join(parts)


def read_status(connection: socket.socket) -> int:
    """Read one whole answer."""
    answer = HTTPResponse(connection)
    answer.begin()
    answer.read()
    return answer.status


def attack(served: Served, what: str, act: Callable[[], T]) -> T:
    """Print what an attack costs, and hold the server to its memory."""
    alone, before = served.time_neighbour(), served.read_memory_mib("VmRSS")
    with ThreadPoolExecutor() as threads:
        acting = threads.submit(act)
        beside = served.time_neighbour()
        while not acting.done():
            beside += served.time_neighbour(1)
    most = served.read_memory_mib("VmHWM")
    sys.stdout.write(
        f"\n{what}: {before:.0f} -> {most:.0f} MiB, a neighbour's median"
        f" {median(alone) * 1000:.1f} -> {median(beside) * 1000:.1f} ms, longest"
        f" {max(alone) * 1000:.1f} -> {max(beside) * 1000:.1f} ms\n"
    )
    assert most - before < MOST_GROWTH_MIB
    return acting.result()


def test_requests_without_an_end_do_not_queue(served: Served) -> None:
    with connect(served.port) as connection:
        given = attack(
            served,
            "60,000 requests on one connection",
            lambda: send_and_read(connection, ALIVE * 60_000),
        )
        assert given.count(b"HTTP/1.1 200") < 100


UNENDED = {
    "trailers": ONE_CHUNK + b"0\r\n" + b"a: b\r\n" * 400_000,
    "a trailer without an end": ONE_CHUNK + b"0\r\na: " + b"b" * 2_000_000,
    "a chunk's extension without an end": b"2;a=" + b"b" * 2_000_000,
    "chunks of one byte": b"1\r\na\r\n" * 300_000,
}


@pytest.mark.parametrize("what", UNENDED)
def test_what_is_no_body_has_an_end(served: Served, what: str) -> None:
    with connect(served.port) as connection:
        sent = IN_CHUNKS + UNENDED[what]
        given = attack(served, what, lambda: send_and_read(connection, sent))
        assert status_of(given + read_to_cut(connection)) == 431


def test_small_chunks_and_a_few_trailers_are_taken(served: Served) -> None:
    body = BODY[:-1] + b" " * 100_000 + BODY[-1:]
    pieces = [body[start : start + 8] for start in range(0, len(body), 8)]
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    with connect(served.port) as connection:
        for _ in range(2):
            connection.sendall(IN_CHUNKS + chunks + b"0\r\nETag: a\r\n\r\n")
            assert read_status(connection) == 200


def test_silent_connections_make_room(tmp_path: Path) -> None:
    with run_server(tmp_path, {"connections": 32}) as served, ExitStack() as stack:
        streaming = stack.enter_context(connect(served.port))
        streaming.sendall(STREAM + b"\r\n" + BODY)
        assert status_of(streaming.recv(65536)) == 200
        before = served.count_sockets()
        silent = attack(
            served,
            "300 silent connections",
            lambda: [stack.enter_context(connect(served.port)) for _ in range(300)],
        )
        wait_until(lambda: served.count_sockets() - before <= 32)
        assert read_to_cut(silent[0]) == b""
        assert streaming.recv(65536)


def test_the_supervisor_gets_through_a_full_house(tmp_path: Path) -> None:
    key = hashlib.sha256(b"probe").hexdigest()
    with (
        run_server(tmp_path, {"connections": 16}, probe_sha256=key) as served,
        ExitStack() as stack,
    ):
        statuses = []
        for _ in range(20):
            streaming = stack.enter_context(connect(served.port))
            streaming.sendall(STREAM + b"\r\n" + BODY)
            statuses.append(status_of(streaming.recv(65536)))
        assert statuses == [200] * 14 + [503] * 6
        assert status_of(send_raw(served.port, request("/livez"))) == 200
        asking = stack.enter_context(connect(served.port))
        probe = b'{"model": "m", "prompt": "a", "max_tokens": 1}'
        head = STREAM.replace(CHAT.encode(), b"/v1/completions")
        head = head.replace(b"%d" % len(BODY), b"%d" % len(probe))
        asking.sendall(head + b"Authorization: Bearer probe\r\n\r\n" + probe)
        assert status_of(asking.recv(65536)) == 200


def test_who_waits_for_a_refusal_keeps_nobody_out(tmp_path: Path) -> None:
    limits = {"connections": 16}
    with run_server(tmp_path, limits, refusals_per_second=0.1) as served, ExitStack() as stack:
        refused = STREAM.replace(b"Length: %d" % len(BODY), b"Length: 2") + b"\r\n[]"
        with connect(served.port) as connection:
            for _ in range(100):
                connection.sendall(refused)
                assert read_status(connection) == 400
        waiting = [stack.enter_context(connect(served.port)) for _ in range(40)]
        for connection in waiting:
            with suppress(ConnectionError):
                connection.sendall(refused)
        served.time_neighbour()


def test_a_body_is_not_kept_until_it_is_refused(tmp_path: Path) -> None:
    with run_server(tmp_path, {}, refusals_per_second=0.1) as served, ExitStack() as stack:
        head = request("/nothing", method="POST")[:-2] + b"Content-Length: 1000000\r\n\r\n"
        for _ in range(100):
            assert status_of(send_raw(served.port, head)) == 404

        def wait_for_refusals() -> None:
            for _ in range(300):
                stack.enter_context(connect(served.port)).sendall(head + b"a" * 200_000)

        attack(served, "300 bodies of 200 kB that wait for a refusal", wait_for_refusals)


def test_a_client_that_leaves_a_request_waiting_is_noticed(served: Served) -> None:
    with connect(served.port) as connection:
        connection.sendall(STREAM + b"\r\n" + BODY)
        assert status_of(connection.recv(65536)) == 200
        connection.sendall(ALIVE)
        connection.recv(65536)
    assert served.sees_client_leave()


@pytest.mark.parametrize("bytes_at_a_time", [0, 4096])
def test_a_client_that_does_not_read_is_left(tmp_path: Path, bytes_at_a_time: int) -> None:
    """One that reads just enough to be no dead connection holds a seat, too."""
    with run_server(tmp_path, {"stall_seconds": 0.5}) as served:
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with connection:
            connection.connect(("127.0.0.1", served.port))
            connection.sendall(STREAM + b"\r\n" + BODY)

            over = threading.Event()

            def read_slowly() -> None:
                with suppress(OSError):
                    while not over.wait(0.1):
                        connection.recv(bytes_at_a_time)

            reading = threading.Thread(target=read_slowly)
            if bytes_at_a_time:
                reading.start()
            try:
                assert attack(served, "an answer that nobody reads", served.sees_client_leave)
            finally:
                over.set()
                if bytes_at_a_time:
                    reading.join()
