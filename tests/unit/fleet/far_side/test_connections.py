"""A link is measured between two ends that share a secret; ports are tried."""

import queue
import socket
import threading

import pytest

from slipstream.errors import UnreachableError
from slipstream.fleet.far_side.connections import (
    Listening,
    MeasureLink,
    ReachRequest,
    ServeLink,
    Target,
    measure_link,
    serve_link,
    try_targets,
)

SECRET = "ab" * 32


def begin() -> tuple[int, threading.Thread]:
    said: queue.Queue[Listening] = queue.Queue()
    request = ServeLink(address="127.0.0.1", secret=SECRET, seconds=20)
    thread = threading.Thread(target=serve_link, args=(request, said.put))
    thread.start()
    return said.get(timeout=10).port, thread


def name_way(port: int) -> MeasureLink:
    return MeasureLink(
        source="127.0.0.1", address="127.0.0.1", port=port, secret=SECRET, seconds=0.05
    )


def test_a_stranger_is_sent_away_both_ends_measure_and_the_one_that_listens_ends() -> None:
    port, thread = begin()
    for _ in range(6):
        with socket.create_connection(("127.0.0.1", port), 5) as stranger:
            stranger.sendall(b"x" * 32)
            stranger.settimeout(5)
            assert stranger.recv(1) == b""
    figures = measure_link(name_way(port))
    thread.join(10)
    assert not thread.is_alive()
    assert figures.gigabits > 0
    assert figures.round_trip_ms > 0


def test_nobody_at_the_other_end_is_an_error_and_a_port_that_refuses() -> None:
    with socket.create_server(("127.0.0.1", 0)) as open_one, socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        ports = [one.getsockname()[1] for one in (open_one, unused)]
        with pytest.raises(UnreachableError, match=r"no connection from 127\.0"):
            measure_link(name_way(ports[1]))
        targets = tuple(Target(address="127.0.0.1", port=port) for port in ports)
        reached = try_targets(ReachRequest(targets=targets)).reached
    assert reached == ("open", "refused")
