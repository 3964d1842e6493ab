"""A message is what was sent or nothing, whatever comes, and however long the socket's path is."""

import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.serving.messages import (
    DrafterOrder,
    DrafterResult,
    GateCounts,
    LiveQuestion,
    Readiness,
    ask,
    decode,
    encode,
    short_path,
)
from slipstream.serving.run import LiveRun
from slipstream.steering.state import SteeringOrder, SteeringState
from tests.unit.serving.kept_runs import RUN
from tests.unit.steering.states import make_state


def is_refused(line: bytes) -> bool:
    try:
        decode(line, KINDS)
    except ValueError:
        return True
    return False


KINDS = (DrafterOrder, DrafterResult, GateCounts, LiveQuestion, LiveRun, Readiness, SteeringState)


@pytest.mark.parametrize(
    "message",
    [
        Readiness(state="warming", reasons=("line\nbreak", "\u2028")),
        DrafterOrder(folder=Path("/new"), previous=Path("/old"), is_return=True),
        DrafterResult(order="1", outcome="swapped", seconds=0.2),
        LiveRun(run=RUN, steering=(make_state(),), counts=GateCounts(pid=1, in_flight=2)),
        make_state(),
        LiveQuestion(),
    ],
)
def test_a_message_is_one_line_and_read_as_it_was_sent(message: Readiness) -> None:
    line = encode(message)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert decode(line, KINDS) == message


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"{",
        b"null",
        b"[]",
        b"{}",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"Readiness":' + b"[" * 100_000,
        b'{"Readiness": {}}',
        b'{"Readiness": {"state": "ready", "more": 1}}',
        b'{"Readiness": {"state": "ready"}, "LiveQuestion": {}}',
        b'{"SwapOrder": {"name": "n", "folder": "/"}}',
        encode(make_state()).replace(b"0.061", b"NaN"),
        encode(make_state()).replace(b'"tokens":23111', b'"tokens":-1'),
        encode(make_state()).replace(b'"prose"', b'"my prompt"'),
        encode(SteeringOrder(most=3)),
    ],
)
def test_what_is_no_message_is_a_value_error(line: bytes) -> None:
    assert is_refused(line)


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_else(line: bytes) -> None:
    assert is_refused(line)


def test_a_socket_is_reached_however_long_its_path_is(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 100) / ("y" * 100)
    folder.mkdir(parents=True)
    open_files = len(list(Path("/proc/self/fd").iterdir()))
    with socket.socket(socket.AF_UNIX) as listening:
        with short_path(folder / "run.sock") as short:
            listening.bind(short)
        listening.listen()
        waiting = ask(folder / "run.sock", LiveQuestion(), (Readiness,), seconds=0.1)
        with pytest.raises(TimeoutError):
            next(waiting)
    assert (folder / "run.sock").is_socket()
    with pytest.raises(ConnectionRefusedError):
        next(ask(folder / "run.sock", LiveQuestion(), (Readiness,), seconds=0.1))
    with pytest.raises(FileNotFoundError):
        next(ask(tmp_path / "none" / "run.sock", LiveQuestion(), (Readiness,), seconds=0.1))
    assert len(list(Path("/proc/self/fd").iterdir())) == open_files
