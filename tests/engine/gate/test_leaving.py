"""Clients that leave within their answer, and clients that are slow at either end."""

import json
import selectors
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.engine.gate.gated_server import LONGEST_ANSWER, Gated, wait_until
from tests.engine.gate.hostile import CHAT, HELLO, TEXT
from tests.engine.gate.neighbour import Neighbour, Window
from tests.engine.gate.percentiles import MOST_TIMES, Comparison, compare_neighbour
from tests.engine.gate.wire import connect, make_request

pytestmark = pytest.mark.engine

WAVES = 10
WAVE = 20
OVER_WITHIN_SECONDS = 2
SLOW = 25
CLOSED_WITHIN_SECONDS = 30
QUIET_SECONDS = 9


def make_stream(gated: Gated, path: str, **fields: object) -> bytes:
    content = json.dumps({"model": "target", "stream": True, **fields}).encode()
    return make_request(path, method="POST", key=gated.attacker, body=content)


def count_of(gated: Gated) -> tuple[int, int]:
    """Return what the gate and the engine say is under way."""
    running = gated.read_metric("vllm:num_requests_running")
    waiting = gated.read_metric("vllm:num_requests_waiting")
    return gated.read_counts().in_flight, int(running + waiting)


def count_inside(gated: Gated) -> int:
    """Return what the engine has and what waits for a seat in it."""
    counts = gated.read_counts()
    return counts.in_flight + counts.waiting


def leave_at_the_first_token(gated: Gated) -> None:
    """Open a wave of long streams and drop each one as soon as it gives something."""
    sent = make_stream(gated, CHAT, messages=[HELLO], max_tokens=LONGEST_ANSWER, ignore_eos=True)
    with selectors.DefaultSelector() as waiting:
        for _ in range(WAVE):
            connection = connect(gated.port)
            connection.sendall(sent)
            waiting.register(connection, selectors.EVENT_READ)
        while waiting.get_map():
            for key, _ in waiting.select():
                assert isinstance(key.fileobj, socket.socket)
                if b"data:" in key.fileobj.recv(65536):
                    waiting.unregister(key.fileobj)
                    key.fileobj.close()


def test_two_hundred_clients_leave_and_nothing_stays(gated: Gated) -> None:
    wait_until(lambda: count_of(gated) == (0, 0), within_seconds=10)
    before = gated.read_counts().total
    times = []
    for _ in range(WAVES):
        leave_at_the_first_token(gated)
        times.append(wait_until(lambda: count_of(gated) == (0, 0), within_seconds=10))
    assert gated.read_counts().total - before == WAVES * WAVE
    sys.stdout.write(
        f"\n{WAVES} waves of {WAVE} that left: nothing under way after"
        f" {', '.join(f'{seconds:.2f}' for seconds in times)} s\n"
    )
    assert max(times) < OVER_WITHIN_SECONDS


@contextmanager
def slow_readers(gated: Gated) -> Iterator[list[socket.socket]]:
    """Hold answers of 60 kB that are hardly read; the kernel keeps them, up to some megabytes."""
    prompt = list(range(1000, 1100))
    sent = make_stream(gated, TEXT, prompt=prompt, max_tokens=4, echo=True, logprobs=20)
    readers = []
    for _ in range(SLOW):
        reader = socket.socket()
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        reader.connect(("127.0.0.1", gated.port))
        reader.sendall(sent)
        readers.append(reader)
    try:
        yield readers
    finally:
        for reader in readers:
            reader.close()


class SlowSenders:
    """Clients that send a little every second, until the server has enough of them."""

    def __init__(self, port: int, opening: bytes, more: bytes) -> None:
        self.closed_after: list[float] = []
        self.answers: set[bytes] = set()
        self._more = more
        self._senders = [connect(port) for _ in range(SLOW)]
        for sender in self._senders:
            sender.sendall(opening)
        self._started = time.monotonic()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    @property
    def are_waiting(self) -> bool:
        """Return whether any is not closed yet."""
        return self._thread.is_alive()

    def _run(self) -> None:
        waiting = selectors.DefaultSelector()
        for sender in self._senders:
            waiting.register(sender, selectors.EVENT_READ)
        while waiting.get_map() and time.monotonic() - self._started < 60:
            for key, _ in waiting.select(timeout=1):
                assert isinstance(key.fileobj, socket.socket)
                waiting.unregister(key.fileobj)
                self.answers.add(key.fileobj.recv(65536).split(b"\r\n")[0])
                self.closed_after.append(time.monotonic() - self._started)
                key.fileobj.close()
            for key in list(waiting.get_map().values()):
                assert isinstance(key.fileobj, socket.socket)
                key.fileobj.sendall(self._more)
        waiting.close()


def start_slow_senders(gated: Gated) -> list[SlowSenders]:
    head = f"POST {CHAT} HTTP/1.1\r\nHost: engine\r\nContent-Length: 1000\r\n".encode()
    key = f"Authorization: Bearer {gated.attacker}\r\n\r\n".encode()
    return [
        SlowSenders(gated.port, head + key + b"{", b" "),
        SlowSenders(gated.port, head, b"X-A: a\r\n"),
    ]


def be_slow(gated: Gated) -> Window:
    """Let clients be slow until the server has closed all that it does not have to wait for."""
    with slow_readers(gated) as readers:
        wait_until(lambda: count_inside(gated) >= SLOW, within_seconds=10)
        wait_until(lambda: count_inside(gated) <= 1, within_seconds=60)
        bodies, heads = senders = start_slow_senders(gated)
        started = time.monotonic()
        while any(group.are_waiting for group in senders):
            for reader in readers:
                reader.recv(64)
            time.sleep(0.5)
        ended = time.monotonic()
        assert [len(reader.recv(64)) for reader in readers] == [64] * SLOW
    for group in senders:
        assert len(group.closed_after) == SLOW
        assert group.answers == {b"HTTP/1.1 408 Request Timeout"}
        assert max(group.closed_after) < CLOSED_WITHIN_SECONDS
    sys.stdout.write(
        f"\n{SLOW} slow bodies closed after {max(bodies.closed_after):.1f} s,"
        f" {SLOW} slow heads after {max(heads.closed_after):.1f} s, {SLOW} slow readers served"
    )
    return started, ended


@pytest.mark.weekly
def test_slow_clients_are_not_felt_next_door(gated: Gated, neighbour: Neighbour) -> None:
    def measure() -> Comparison:
        before, slow = neighbour.watch(QUIET_SECONDS), be_slow(gated)
        quiet = [before, neighbour.watch(QUIET_SECONDS)]
        return Comparison(neighbour.during(quiet), neighbour.during([slow]))

    neighbour.watch(1)
    assert compare_neighbour("beside slow clients", measure) < MOST_TIMES
