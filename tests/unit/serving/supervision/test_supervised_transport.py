"""A supervised engine is reached over TLS, knows no secrets, and systemd hears how it stands."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.unit.serving.access.certificates import make_pair
from tests.unit.serving.supervision.fake_engine import MakeStage, Stage, until
from tests.unit.serving.supervision.test_supervisor import until_ready

pytestmark = pytest.mark.usefixtures("hurried")

SECRETS = {
    "HF_TOKEN": "hf_1",
    "HUGGING_FACE_HUB_TOKEN": "hf_1",
    "HF_TOKEN_PATH": "/run/secrets/hf",
    "AWS_SECRET_ACCESS_KEY": "aws",
    "AWS_SESSION_TOKEN": "aws",
    "S3_SECRET_ACCESS_KEY": "s3",
    "GOOGLE_APPLICATION_CREDENTIALS": "/run/secrets/google",
    "OPENAI_API_KEY": "sk-1",
    "ANTHROPIC_API_KEY": "sk-2",
    "SLIPSTREAM_API_KEY": "sk-3",
    "VLLM_API_KEY": "sk-4",
    "GITHUB_TOKEN": "ghp_1",
    "DATABASE_PASSWORD": "p",
    "SSH_AUTH_SOCK": "/run/agent",
}
KEPT = {
    "HF_HOME": "/models",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_CACHE_ROOT": "/cache",
    "CUDA_VISIBLE_DEVICES": "0",
    "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4317",
    "KEYBOARD": "x",
}


def test_an_engine_with_a_certificate_becomes_ready(make_stage: MakeStage, tmp_path: Path) -> None:
    pair = make_pair(tmp_path / "tls")
    stage = make_stage(words=pair.flags)
    stage.serve(until_ready)
    assert str(stage.run.url).startswith("https://127.0.0.1:")
    assert f"ready at {stage.run.url}" in stage.messages()
    assert stage.run.state == "stopped"


def test_an_engine_that_is_offline_has_no_secrets(stage: Stage) -> None:
    stage.environment |= SECRETS | KEPT
    stage.serve(until_ready)
    given = json.loads((stage.fake / "environment").read_text())
    assert sorted(given.keys() & SECRETS.keys()) == []
    assert {name: given.get(name) for name in KEPT} == KEPT
    assert given["HF_HUB_OFFLINE"] == "1"


class Manager:
    """systemd's end of the socket; nothing is taken from it before `listens`."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address)
        self.heard: list[str] = []
        self.listens, self.is_over = threading.Event(), False
        self.thread = threading.Thread(target=self.hear)
        self.thread.start()

    def hear(self) -> None:
        self.listens.wait()
        self.socket.settimeout(0.05)
        while not self.is_over:
            with suppress(TimeoutError):
                self.heard += self.socket.recv(65536).decode().splitlines()

    def count(self, line: str) -> int:
        return self.heard.count(line)

    def close(self) -> None:
        self.is_over = True
        self.listens.set()
        self.thread.join()
        self.socket.close()


@pytest.fixture(params=["path", "abstract"])
def systemd(request: pytest.FixtureRequest, tmp_path: Path, stage: Stage) -> Iterator[Manager]:
    """Have the stage's supervisor started by systemd, with a timeout of 0.2 s."""
    name = str(tmp_path / "notify")
    at = name if request.param == "path" else f"\0{name}"
    stage.environment |= {"NOTIFY_SOCKET": at.replace("\0", "@"), "WATCHDOG_USEC": "200000"}
    manager = Manager(at)
    yield manager
    manager.close()


async def hears(systemd: Manager, line: str) -> None:
    await until(lambda: systemd.count(line), lambda: systemd.heard)


def test_systemd_hears_when_it_is_ready_that_it_lives_and_that_it_stops(
    stage: Stage, systemd: Manager
) -> None:
    systemd.listens.set()
    counted: list[int] = []

    async def watch(stage: Stage) -> None:
        await stage.reach("ready")
        await hears(systemd, "READY=1")
        before = systemd.count("WATCHDOG=1")
        await asyncio.sleep(1)
        counted.append(systemd.count("WATCHDOG=1") - before)
        assert not systemd.count("STOPPING=1")

    stage.serve(watch)
    systemd.close()
    heard = systemd.heard
    assert counted[0] >= 5, "a timeout of 0.2 s passed without a beat"
    assert heard.count("READY=1") == 1
    ready = heard.index("READY=1")
    assert any(line.startswith("EXTEND_TIMEOUT_USEC=") for line in heard[:ready])
    assert not any(line.startswith("EXTEND_TIMEOUT_USEC=") for line in heard[ready:])
    assert heard.index("STOPPING=1") > ready
    assert any(line.startswith("STATUS=ready: ready at http://") for line in heard)
    given = json.loads((stage.fake / "environment").read_text())
    assert given.keys().isdisjoint({"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"})


def test_a_manager_that_was_busy_hears_of_it_later(stage: Stage, systemd: Manager) -> None:

    async def listen(stage: Stage) -> None:
        await stage.reach("ready")
        systemd.listens.set()
        await hears(systemd, "READY=1")

    stage.serve(listen)
    assert systemd.count("READY=1") == 1


def test_a_supervisor_that_hangs_is_silent(stage: Stage, systemd: Manager) -> None:
    systemd.listens.set()

    async def hang(stage: Stage) -> None:
        await stage.reach("ready")
        await asyncio.sleep(0.1)
        before = systemd.count("WATCHDOG=1")
        time.sleep(0.5)  # as a loop does that is stuck
        assert systemd.count("WATCHDOG=1") <= before + 1

    stage.serve(hang)


def test_a_manager_that_is_gone_or_meant_for_others_changes_nothing(
    stage: Stage, tmp_path: Path
) -> None:
    stage.environment |= {
        "NOTIFY_SOCKET": str(tmp_path / "gone"),
        "WATCHDOG_USEC": "1",
        "WATCHDOG_PID": "1",
    }
    stage.serve(until_ready)
    assert stage.run.state == "stopped"
