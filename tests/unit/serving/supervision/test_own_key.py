"""The supervisor's key reaches the engine that it started, and nobody else who has its port."""

import asyncio
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from slipstream.errors import EngineError
from slipstream.serving.supervision import engine_life, supervisor
from tests.unit.serving.supervision.fake_engine import MakeStage, Stage, rule

pytestmark = pytest.mark.usefixtures("hurried")

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"


class Stranger:
    """Another program at the engine's port, which is healthy and keeps all that it is sent."""

    def __init__(self, port: int) -> None:
        self.received, self._over, self.listens = b"", threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._listen, args=(port,))
        self._thread.start()

    def _listen(self, port: int) -> None:
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.settimeout(0.05)
            while not self._over.is_set():
                with suppress(OSError):
                    server.bind(("127.0.0.1", port))
                    break
            server.listen()
            self.listens.set()
            while not self._over.is_set():
                with suppress(TimeoutError):
                    connection, _ = server.accept()
                    with connection, suppress(TimeoutError, ConnectionError):
                        connection.settimeout(1)
                        while some := connection.recv(2**16):
                            self.received += some
                            connection.sendall(ANSWER)

    def leave(self) -> None:
        self._over.set()
        self._thread.join()


@contextmanager
def stranger_at(stage: Stage) -> Iterator[Stranger]:
    port = stage.run.plan.settings.port
    assert port is not None
    stranger = Stranger(port.value)
    try:
        yield stranger
    finally:
        stranger.leave()


def read_keys(stage: Stage) -> list[str]:
    return list(dict.fromkeys((stage.fake / "keys").read_text().split("\n")))[:-1]


def test_a_stranger_at_the_port_gets_no_byte_and_ends_the_start(
    make_stage: MakeStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_life, "FOREIGN_SECONDS", 0.5)
    stage = make_stage(rule("stay"))
    seen = list[Stranger]()

    async def listen(stage: Stage) -> None:
        while not stage.count_starts():
            await asyncio.sleep(0.01)
        with stranger_at(stage) as stranger:
            seen.append(stranger)
            await stage.reach("failed")

    with pytest.raises(EngineError, match="another program is listening at") as caught:
        stage.serve(listen)
    assert caught.value.hint.startswith("ss -ltnp 'sport = :")
    assert "--port" in caught.value.hint
    assert seen[0].listens.is_set()
    sys.stdout.write(f"\na stranger at the port received {len(seen[0].received)} bytes")
    assert seen[0].received == b""
    assert (len(stage.starts()), stage.run.state) == (1, "failed")


def test_a_stranger_that_takes_the_port_of_a_dead_engine_gets_no_byte(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "ADDRESS_WAIT_SECONDS", 0.1)
    received = list[bytes]()

    async def take_over(stage: Stage) -> None:
        await stage.reach("ready")
        with stranger_at(stage) as stranger:
            os.kill(stage.pid(), signal.SIGKILL)
            while "waiting until the address is free" not in stage.messages():
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.5)
        received.append(stranger.received)
        await stage.reach("ready", times=2)

    stage.serve(take_over)
    assert received == [b""]
    assert (stage.run.restarts, stage.run.rungs) == (1, ())


def test_a_successor_waits_for_an_address_that_somebody_else_has(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "ADDRESS_WAIT_SECONDS", 0.1)
    stage.event_log.update(takeovers=(stage.run.began_at,))

    async def until_ready(stage: Stage) -> None:
        await asyncio.sleep(0.5)
        stranger.leave()
        await stage.reach("ready")

    with stranger_at(stage) as stranger:
        stranger.listens.wait(10)
        stage.serve(until_ready)
    assert "waiting until the address is free" in stage.messages()
    assert stranger.received == b""


def test_every_engine_has_a_key_of_its_own_and_health_is_asked_without_one(stage: Stage) -> None:
    digests = list[str]()

    async def die(stage: Stage) -> None:
        await stage.reach("ready")
        digests.append(json.loads(stage.folder.gate.read_text())["probe_sha256"])
        os.kill(stage.pid(), signal.SIGKILL)
        await stage.reach("ready", times=2)
        digests.append(json.loads(stage.folder.gate.read_text())["probe_sha256"])

    stage.serve(die)
    assert len(set(digests)) == 2
    assert len(read_keys(stage)) == 2
    assert not (stage.fake / "key-for-health").exists()
    words = stage.folder.path.rglob("*")
    for key in read_keys(stage):
        secret = key.removeprefix("Bearer ").encode()
        assert not any(secret in file.read_bytes() for file in words if file.is_file())
