"""A connection is ours if the socket that took it is held by the engine's processes."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path

import httpx
import pytest

from slipstream.serving.access.addresses import Address
from slipstream.serving.access.listeners import find_listening, list_held_sockets
from slipstream.serving.access.own_listener import ForeignListenerError, OwnListener

PROC = Path("/proc")
OTHER = """
import socket, sys
server = socket.socket(socket.AF_UNIX if "/" in sys.argv[1] else socket.AF_INET)
server.bind(sys.argv[1] if "/" in sys.argv[1] else (sys.argv[1], 0))
server.listen()
print(server.getsockname()[1], flush=True)
while True:
    connection, _ = server.accept()
    if connection.recv(65536):
        connection.sendall(b"HTTP/1.1 200 OK\\r\\ncontent-length: 0\\r\\n\\r\\n")
    connection.close()
"""


@pytest.fixture(params=["tcp", "socket"])
def other(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Address, int]]:
    """Yield the address of another process's server, and that process."""
    path = str(tmp_path / "s")
    place = "127.0.0.1" if request.param == "tcp" else path
    command = [sys.executable, "-c", OTHER, place]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        told = process.stdout.readline().decode().strip()
        if request.param == "tcp":
            address = Address(f"http://127.0.0.1:{told}", "127.0.0.1", int(told))
        else:
            address = Address("http://localhost", "", 0, path)
        yield address, process.pid
        process.kill()


async def send_key(listener: OwnListener) -> int:
    uds = listener.address.socket
    transport = httpx.AsyncHTTPTransport(uds=uds) if uds else None
    async with httpx.AsyncClient(base_url=listener.address.url, transport=transport) as client:
        extensions = {"trace": listener.watch()}
        answer = await client.get("/", headers={"x-key": "secret"}, extensions=extensions)
        return answer.status_code


def test_what_listens_is_the_engines_or_a_strangers(other: tuple[Address, int]) -> None:
    address, pid = other
    assert OwnListener(address, lambda: [pid]).find_owner() == "engine"
    assert OwnListener(address, lambda: [os.getpid()]).find_owner() == "other"
    assert OwnListener(address, lambda: []).find_owner() == "other"


def test_a_key_goes_to_the_engine(other: tuple[Address, int]) -> None:
    address, pid = other
    assert asyncio.run(send_key(OwnListener(address, lambda: [pid]))) == httpx.codes.OK


def test_a_key_does_not_go_to_a_stranger(other: tuple[Address, int]) -> None:
    address, _ = other
    with pytest.raises(ForeignListenerError, match="this run's engine does not listen at"):
        asyncio.run(send_key(OwnListener(address, lambda: [os.getpid()])))


@pytest.mark.parametrize("other", ["tcp"], indirect=True)
def test_a_listener_that_changed_while_connecting_is_a_stranger(
    other: tuple[Address, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, pid = other
    found = [frozenset({1}), frozenset({2})]
    monkeypatch.setattr(OwnListener, "_find_held", lambda _: found.pop(0))
    with pytest.raises(ForeignListenerError):
        asyncio.run(send_key(OwnListener(address, lambda: [pid])))
    assert found == []


def test_nobody_listens_where_nothing_does(tmp_path: Path) -> None:
    free = socket.socket()
    free.bind(("127.0.0.1", 0))  # Bound and silent, as vLLM's is while it loads.
    port = free.getsockname()[1]
    address = Address(f"http://127.0.0.1:{port}", "127.0.0.1", port)
    assert OwnListener(address, lambda: [os.getpid()]).find_owner() == "nobody"
    with pytest.raises(ForeignListenerError):
        asyncio.run(send_key(OwnListener(address, lambda: [os.getpid()])))
    free.close()
    path = Address("http://localhost", "", 0, str(tmp_path / "none"))
    assert OwnListener(path, lambda: [os.getpid()]).find_owner() == "nobody"


@pytest.mark.parametrize(
    ("listens", "asked", "reached"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("0.0.0.0", "127.0.0.1", True),
        ("127.0.0.2", "127.0.0.1", False),
    ],
)
def test_only_listeners_that_a_connection_can_reach_count(
    listens: str, asked: str, reached: bool
) -> None:
    with socket.socket() as server:
        server.bind((listens, 0))
        server.listen()
        found = find_listening({ip_address(asked)}, server.getsockname()[1], PROC)
        assert bool(found) is reached
        assert found <= list_held_sockets([os.getpid()], PROC)


def test_a_host_name_is_looked_up() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        address = Address(f"http://localhost:{port}", "localhost", port)
        assert OwnListener(address, lambda: [os.getpid()]).find_owner() == "engine"
