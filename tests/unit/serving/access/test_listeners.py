"""A port that other machines reach is found, with the process behind it."""

import os
import socket
from ipaddress import ip_address
from pathlib import Path

import pytest

from slipstream.serving.access.listeners import (
    Listener,
    list_engines,
    list_held_sockets,
    list_open_listeners,
    parse_sockets,
)
from slipstream.serving.run import Process
from tests.unit.serving.kept_runs import FakeProc

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n"
LINE = "   0: {} 00000000:0000 {} 00000000:00000000 00:00000000 00000000  0  0 {} 1 0 100 0\n"
LOOPBACK_6 = "0000000000000000FFFF00000100007F"


@pytest.mark.parametrize(
    ("told", "address"),
    [
        ("00000000", "0.0.0.0"),
        ("0100007F", "127.0.0.1"),
        ("0A01A8C0", "192.168.1.10"),
        ("0" * 32, "::"),
        ("00000000000000000000000001000000", "::1"),
        (LOOPBACK_6, "::ffff:127.0.0.1"),
    ],
)
def test_the_kernels_addresses_are_read(told: str, address: str) -> None:
    text = HEAD + LINE.format(f"{told}:1F40", "0A", 7) + LINE.format(f"{told}:1F41", "01", 8)
    assert list(parse_sockets(text)) == [(7, ip_address(address), 8000)]


def test_only_what_others_reach_is_listed(tmp_path: Path) -> None:
    proc = FakeProc(tmp_path)
    (tmp_path / "net").mkdir()
    open_and_closed = LINE.format("00000000:1F40", "0A", 7) + LINE.format("0100007F:1F41", "0A", 8)
    (tmp_path / "net" / "tcp").write_text(HEAD + open_and_closed)
    closed = LINE.format(f"{LOOPBACK_6}:1F42", "0A", 9)
    (tmp_path / "net" / "tcp6").write_text(HEAD + closed)
    for pid in (20, 21):
        proc.add(Process(pid=pid, start_ticks=1))
    proc.hold(20, 7, 8, 9)
    proc.hold(21, 8)
    assert list_open_listeners([20, 21, 22], tmp_path) == (Listener(20, "0.0.0.0", 8000),)


def test_a_file_closed_meanwhile_hides_no_listener(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proc = FakeProc(tmp_path)
    proc.add(Process(pid=20, start_ticks=1))
    proc.hold(20, 7)
    closed = tmp_path / "20" / "fd" / "closed"
    monkeypatch.setattr(Path, "iterdir", lambda folder: iter([closed, *folder.glob("*")]))
    assert list_held_sockets([20], tmp_path) == {7}


def test_a_real_listener_of_ours_is_found() -> None:
    proc = Path("/proc")
    with socket.socket() as near, socket.socket() as far:
        near.bind(("127.0.0.1", 0))
        far.bind(("0.0.0.0", 0))
        for one in (near, far):
            one.listen()
        found = {listener.port for listener in list_open_listeners([os.getpid()], proc)}
        assert far.getsockname()[1] in found
        assert near.getsockname()[1] not in found


def test_engines_are_known_by_what_they_call_themselves(tmp_path: Path) -> None:
    proc = FakeProc(tmp_path)
    commands = {
        1: "python -m vllm.entrypoints.openai.api_server --port 8000",
        2: "/venv/bin/vllm serve model",
        3: "VLLM::EngineCore",
        4: "vim /home/ann/vllm.md",
        5: "python -m http.server --directory vllm-logs",
    }
    for pid, command in commands.items():
        proc.add(Process(pid=pid, start_ticks=1), command=command)
    assert sorted(list_engines(os.getuid(), tmp_path)) == [1, 2, 3]
    assert list(list_engines(os.getuid() + 1, tmp_path)) == []
