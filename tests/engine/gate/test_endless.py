"""Clients without an end: the API server's memory stays, and neighbours do not feel them."""

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from select import select

import pytest

from tests.engine.gate.gated_server import Gated
from tests.engine.gate.neighbour import Neighbour
from tests.engine.gate.percentiles import MOST_TIMES, Comparison, compare_neighbour
from tests.engine.gate.wire import connect

pytestmark = pytest.mark.engine

TURNS = 2
TURN_SECONDS = 4
MOST_GROWTH_MIB = 48
# The attacker computes on the machine that it attacks, which others would not.
PAUSE_SECONDS = 0.25
ALIVE = b"GET /livez HTTP/1.1\r\nHost: e\r\n"
CHUNKED = ALIVE + b"Transfer-Encoding: chunked\r\n\r\n"
ENDLESS = {
    "requests": (ALIVE + b"\r\n") * 30_000,
    "trailers": CHUNKED + b"0\r\n" + b"a: b\r\n" * 200_000,
    "small chunks": CHUNKED + b"1\r\na\r\n" * 200_000,
}
UNFINISHED = {
    "a length": ALIVE + b"Content-Length: 10\r\n\r\na",
    "chunks": CHUNKED + b"1\r\na\r\n",
    "empty lines": ALIVE + b"\r\n\r\n",
}


def read_memory_mib(gated: Gated) -> float:
    status = Path(f"/proc/{gated.read_counts().pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def send_and_read(port: int, content: bytes) -> None:
    """Send all that the server takes and read all that it gives, at the same time."""
    waiting = memoryview(content)
    with connect(port) as connection, suppress(ConnectionError):
        while waiting:
            readable, writable, _ = select([connection], [connection], [], 10)
            if writable:
                waiting = waiting[connection.send(waiting[: 1 << 16]) :]
            if readable and not connection.recv(1 << 20):
                return


def measure(neighbour: Neighbour, attack: Callable[[], None]) -> Comparison:
    quiet, hostile = [], []
    for _ in range(TURNS):
        quiet.append(neighbour.watch(TURN_SECONDS))
        hostile.append(neighbour.watch(TURN_SECONDS, attack))
    return Comparison(neighbour.during(quiet), neighbour.during(hostile))


@pytest.mark.weekly
@pytest.mark.parametrize("what", ENDLESS)
def test_what_has_no_end_takes_no_memory_and_no_time(
    gated: Gated, neighbour: Neighbour, what: str
) -> None:
    def attack() -> None:
        send_and_read(gated.port, ENDLESS[what])
        time.sleep(PAUSE_SECONDS)

    attack()
    before = read_memory_mib(gated)
    times = compare_neighbour(f"beside {what}", lambda: measure(neighbour, attack))
    after = read_memory_mib(gated)
    sys.stdout.write(f"{what}: API server {before:.0f} -> {after:.0f} MiB\n")
    assert after - before < MOST_GROWTH_MIB
    assert times < MOST_TIMES


@pytest.mark.parametrize("what", UNFINISHED)
def test_an_answered_connection_does_not_stay_for_ever(gated: Gated, what: str) -> None:
    with connect(gated.port) as connection:
        connection.sendall(UNFINISHED[what])
        given = b"".join(iter(lambda: connection.recv(65536), b""))
    assert given.startswith(b"HTTP/1.1 200")
