"""The two ends of a link that is measured: what a byte takes there and back, and how many fit.

The end that listens does so at one address for a few seconds, and answers only who begins with
the secret that both ends got over SSH.
"""

import hmac
import socket
import statistics
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated

from pydantic import Field

from slipstream.errors import UnreachableError
from slipstream.records import Record

SECRET_BYTES = 32
STREAMS = 4
ROUND_TRIPS = 100
_PING, _SINK = b"p", b"s"
_BLOCK = 1 << 20
_ACCEPT_SECONDS = 2.0


Figure = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class LinkFigures(Record):
    """What was measured from one end."""

    gigabits: Figure
    round_trip_ms: Figure


def serve_link(
    address: str, secret: bytes, announce: Callable[[int], None], *, seconds: float
) -> None:
    """Answer one measurement at an address, and end after it or when the time is over."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    until = time.monotonic() + seconds
    with socket.socket(family) as listener:
        listener.bind((address, 0))
        listener.listen(STREAMS + 1)
        announce(listener.getsockname()[1])
        threads: list[threading.Thread] = []
        served = 0
        while served < 1 + STREAMS and (left := until - time.monotonic()) > 0:
            listener.settimeout(left)
            try:
                connection = listener.accept()[0]
            except TimeoutError:
                break
            if (mode := _admit(connection, secret)) is None:
                connection.close()
                continue
            served += 1
            connection.settimeout(max(0.1, until - time.monotonic()))
            answer = _echo if mode == _PING else _count
            threads.append(threading.Thread(target=answer, args=(connection,), daemon=True))
            threads[-1].start()
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))


def measure_link(
    address: str, port: int, secret: bytes, *, source: str, seconds: float
) -> LinkFigures:
    """Measure the way from an address of this machine to the end that listens."""
    try:
        round_trip = _measure_round_trip(address, port, secret, source)
        return LinkFigures(
            gigabits=_measure_throughput(address, port, secret, source, seconds),
            round_trip_ms=round_trip,
        )
    except OSError as fault:
        raise UnreachableError(
            f"no connection from {source} to {address}:{port}: {fault.strerror or fault}",
            hint=f"ping -I {source} {address}",
        ) from fault


def _measure_round_trip(address: str, port: int, secret: bytes, source: str) -> float:
    with _connect(address, port, secret + _PING, source) as connection:
        times = []
        for _ in range(ROUND_TRIPS):
            begun = time.perf_counter()
            connection.sendall(b"x")
            if not connection.recv(1):
                raise ConnectionResetError("the other end left")
            times.append(time.perf_counter() - begun)
    return statistics.median(times) * 1000


def _measure_throughput(
    address: str, port: int, secret: bytes, source: str, seconds: float
) -> float:
    """Send over a few connections at a time, and believe the receiver's count."""
    counts, faults = [0] * STREAMS, list[OSError]()
    begun = time.perf_counter()

    def send(index: int) -> None:
        try:
            with _connect(address, port, secret + _SINK, source) as connection:
                block, until = memoryview(bytearray(_BLOCK)), begun + seconds
                while time.perf_counter() < until:
                    connection.sendall(block)
                connection.shutdown(socket.SHUT_WR)
                counts[index] = int.from_bytes(connection.recv(8), "big")
        except OSError as fault:
            faults.append(fault)

    threads = [threading.Thread(target=send, args=(index,)) for index in range(STREAMS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise faults[0]
    return sum(counts) * 8 / (time.perf_counter() - begun) / 1e9


def _connect(address: str, port: int, greeting: bytes, source: str) -> socket.socket:
    connection = socket.create_connection((address, port), 5, (source, 0))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(greeting)
    connection.settimeout(10)
    return connection


def _admit(connection: socket.socket, secret: bytes) -> bytes | None:
    """Read the secret and what is to be measured; None for a stranger."""
    connection.settimeout(_ACCEPT_SECONDS)
    greeting = b""
    with suppress(OSError):
        while len(greeting) < len(secret) + 1 and (
            part := connection.recv(len(secret) + 1 - len(greeting))
        ):
            greeting += part
    mode = greeting[-1:]
    known = hmac.compare_digest(greeting[:-1], secret) and mode in (_PING, _SINK)
    return mode if known else None


def _echo(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with suppress(OSError), connection:
        while byte := connection.recv(1):
            connection.sendall(byte)


def _count(connection: socket.socket) -> None:
    buffer, count = bytearray(_BLOCK), 0
    with suppress(OSError), connection:
        while got := connection.recv_into(buffer):
            count += got
        connection.sendall(count.to_bytes(8, "big"))
