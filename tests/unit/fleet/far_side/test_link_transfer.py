"""A link is measured between two ends that share a secret; strangers get nothing."""

import queue
import socket
import threading

import pytest

from slipstream.errors import UnreachableError
from slipstream.fleet.far_side.link_transfer import measure_link, serve_link

SECRET = b"s" * 32


def begin() -> tuple[int, threading.Thread]:
    ports: queue.Queue[int] = queue.Queue()
    thread = threading.Thread(
        target=serve_link, args=("127.0.0.1", SECRET, ports.put), kwargs={"seconds": 20}
    )
    thread.start()
    return ports.get(timeout=10), thread


def test_both_ends_measure_and_the_one_that_listens_ends() -> None:
    port, thread = begin()
    figures = measure_link("127.0.0.1", port, SECRET, source="127.0.0.1", seconds=0.05)
    thread.join(10)
    assert not thread.is_alive()
    assert figures.gigabits > 0
    assert figures.round_trip_ms > 0


def test_a_stranger_is_sent_away_and_spends_no_place() -> None:
    port, thread = begin()
    for _ in range(6):
        with socket.create_connection(("127.0.0.1", port), 5) as stranger:
            stranger.sendall(b"x" * 33)
            stranger.settimeout(5)
            assert stranger.recv(1) == b""
    figures = measure_link("127.0.0.1", port, SECRET, source="127.0.0.1", seconds=0.05)
    thread.join(10)
    assert figures.gigabits > 0


def test_nobody_at_the_other_end_is_an_error() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with pytest.raises(UnreachableError, match=r"no connection from 127\.0"):
            measure_link("127.0.0.1", port, SECRET, source="127.0.0.1", seconds=0.05)
