"""Connections that a machine tries for its fleet: which ports are open to it, what a link carries.

The end of a link that listens does so at one address for a few seconds, and answers only who begins
with the secret that both ends got over SSH.
"""

import errno
import hmac
import socket
import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Annotated, Literal

from pydantic import Field

from slipstream.errors import UnreachableError
from slipstream.fleet.record import IpAddress, Port
from slipstream.records import Record

SECRET_BYTES = 32
STREAMS = 4
ROUND_TRIPS = 20
_BLOCK = 1 << 20
_ACCEPT_SECONDS = 2.0
CONNECT_SECONDS = 1.5
MOST_TARGETS = 512
Secret = Annotated[str, Field(pattern=rf"^[0-9a-f]{{{2 * SECRET_BYTES}}}$")]
Figure = Annotated[float, Field(ge=0, allow_inf_nan=False)]
# A port that refuses is reachable, with nobody behind it now; a rule of a firewall may refuse, too.
Reach = Literal["open", "refused", "closed"]


class ServeLink(Record):
    """Asks a machine to listen at an address for one measurement."""

    address: IpAddress
    secret: Secret
    seconds: float


class Listening(Record):
    port: Port


class MeasureLink(Record):
    """Asks a machine to measure the way from an address of its own to the end that listens."""

    source: IpAddress
    address: IpAddress
    port: Port
    secret: Secret
    seconds: float = 1.0


class LinkFigures(Record):
    gigabits: Figure
    round_trip_ms: Figure


class Target(Record):
    address: IpAddress
    port: Port


class ReachRequest(Record):
    targets: Annotated[tuple[Target, ...], Field(max_length=MOST_TARGETS)]


class ReachList(Record):
    """What became of each try, in the order of the targets."""

    schema_version: Literal[2] = 2
    reached: Annotated[tuple[Reach, ...], Field(max_length=MOST_TARGETS)]


def try_targets(request: ReachRequest) -> ReachList:
    """Try to connect to every target from this machine, and say nothing to whoever answers."""
    with ThreadPoolExecutor(max_workers=32) as pool:
        return ReachList(reached=tuple(pool.map(_try, request.targets)))


def _try(target: Target) -> Reach:
    try:
        with socket.create_connection((target.address, target.port), CONNECT_SECONDS):
            return "open"
    except OSError as fault:
        return "refused" if fault.errno == errno.ECONNREFUSED else "closed"


def serve_link(request: ServeLink, announce: Callable[[Listening], None]) -> None:
    """Answer one measurement at an address, and end after it or when the time is over."""
    family = socket.AF_INET6 if ":" in request.address else socket.AF_INET
    until = time.monotonic() + request.seconds
    with socket.socket(family) as listener:
        listener.bind((request.address, 0))
        listener.listen(STREAMS + ROUND_TRIPS)
        announce(Listening(port=listener.getsockname()[1]))
        threads: list[threading.Thread] = []
        while len(threads) < STREAMS and (left := until - time.monotonic()) > 0:
            listener.settimeout(left)
            try:
                connection = listener.accept()[0]
            except TimeoutError:
                break
            if not _is_known(connection, bytes.fromhex(request.secret)):
                connection.close()
                continue
            connection.settimeout(max(0.1, until - time.monotonic()))
            threads.append(threading.Thread(target=_count, args=(connection,), daemon=True))
            threads[-1].start()
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))


def measure_link(request: MeasureLink) -> LinkFigures:
    """Measure the way from an address of this machine to the end that listens."""
    try:
        round_trip = _measure_round_trip(request)
        return LinkFigures(gigabits=_measure_throughput(request), round_trip_ms=round_trip)
    except OSError as fault:
        raise UnreachableError(
            f"no connection from {request.source} to {request.address}:{request.port}: "
            f"{fault.strerror or fault}",
            hint=f"ping -I {request.source} {request.address}",
        ) from fault


def _measure_round_trip(request: MeasureLink) -> float:
    """Return what it takes to connect: one message there and one back, in milliseconds."""
    times = []
    for _ in range(ROUND_TRIPS):
        begun = time.perf_counter()
        _connect(request).close()
        times.append(time.perf_counter() - begun)
    return statistics.median(times) * 1000


def _measure_throughput(request: MeasureLink) -> float:
    """Send over a few connections at a time, and believe the receiver's count."""
    begun = time.perf_counter()

    def send(_: int) -> int:
        with _connect(request) as connection:
            connection.sendall(bytes.fromhex(request.secret))
            block, until = memoryview(bytearray(_BLOCK)), begun + request.seconds
            while time.perf_counter() < until:
                connection.sendall(block)
            connection.shutdown(socket.SHUT_WR)
            return int.from_bytes(connection.recv(8), "big")

    with ThreadPoolExecutor(STREAMS) as pool:
        counts = list(pool.map(send, range(STREAMS)))
    return sum(counts) * 8 / (time.perf_counter() - begun) / 1e9


def _connect(request: MeasureLink) -> socket.socket:
    place, source = (request.address, request.port), (request.source, 0)
    connection = socket.create_connection(place, 5, source)
    connection.settimeout(10)
    return connection


def _is_known(connection: socket.socket, secret: bytes) -> bool:
    connection.settimeout(_ACCEPT_SECONDS)
    greeting = b""
    with suppress(OSError):
        while part := connection.recv(len(secret) - len(greeting)):
            greeting += part
    return hmac.compare_digest(greeting, secret)


def _count(connection: socket.socket) -> None:
    buffer, count = bytearray(_BLOCK), 0
    with suppress(OSError), connection:
        while got := connection.recv_into(buffer):
            count += got
        connection.sendall(count.to_bytes(8, "big"))
