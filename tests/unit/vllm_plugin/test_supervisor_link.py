"""vLLM's processes talk to the supervisor when there is one, and serve on when there is none."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from slipstream.records import Record
from slipstream.serving.access.gate_file import GateSettings
from slipstream.serving.messages import (
    MOST_BYTES,
    DrafterOrder,
    DrafterResult,
    GateCounts,
    Readiness,
    decode,
    encode,
)
from slipstream.vllm_plugin import supervisor_link
from slipstream.vllm_plugin.gate.run_link import RunLink
from slipstream.vllm_plugin.supervisor_link import SupervisorLink
from tests.unit.vllm_plugin.gate.test_swaps import Client


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_link, "AGAIN_AFTER_SECONDS", 0.01)


class Supervisor:
    """The other end: what it heard, and a way to say something or to hang up."""

    def __init__(self, path: Path) -> None:
        self.path, self.heard = path, list[Record]()
        self.writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> "Supervisor":
        self.server = await asyncio.start_unix_server(self._serve, self.path)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.server.close()
        for writer in self.writers:
            writer.close()
        self.path.unlink()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        while line := await reader.readline():
            self.heard.append(decode(line, (GateCounts, DrafterResult)))
        writer.close()


@asynccontextmanager
async def following(link: SupervisorLink) -> AsyncIterator[None]:
    task = asyncio.create_task(link.follow())
    yield
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


def test_it_connects_again_whenever_a_supervisor_is_there(tmp_path: Path) -> None:
    path, heard = tmp_path / "run.sock", list[Record]()
    link = SupervisorLink(
        path, (Readiness,), hear=heard.append, greet=lambda: [GateCounts(pid=len(heard))]
    )

    async def act() -> None:
        link.send(GateCounts(pid=9))  # To nobody.
        async with following(link):
            await asyncio.sleep(0.05)
            for number in range(3):
                async with Supervisor(path) as other:
                    await until(lambda: bool(other.heard))
                    assert other.heard == [GateCounts(pid=number)]
                    other.writers[0].write(encode(Readiness(state=str(number))))
                    await until(lambda: len(heard) == number + 1)  # noqa: B023
                    link.send(GateCounts(pid=7))
                    await until(lambda: other.heard[-1] == GateCounts(pid=7))

    asyncio.run(act())
    assert heard == [Readiness(state=str(number)) for number in range(3)]


@pytest.mark.parametrize(
    "garbage", [b"\n", b"{\n", b'{"DrafterOrder": {}}\n', b'{"Readiness": {"state": "boom"}}\n']
)
def test_a_message_that_does_harm_costs_that_message_only(
    tmp_path: Path, garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    heard = list[str]()

    def hear(message: Record) -> None:
        assert isinstance(message, Readiness)
        if message.state == "boom":
            raise ZeroDivisionError
        heard.append(message.state)

    async def act() -> None:
        async with Supervisor(tmp_path / "run.sock") as other:
            link = SupervisorLink(other.path, (Readiness,), hear=hear, greet=list)
            async with following(link):
                await until(lambda: bool(other.writers))
                other.writers[0].write(garbage * 3 + encode(Readiness(state="ready")))
                await until(lambda: heard == ["ready"])
                assert len(other.writers) == 1
                other.writers[0].write(b"x" * 2 * MOST_BYTES)
                await until(lambda: len(other.writers) == 2)

    asyncio.run(act())
    said = [record.getMessage() for record in caplog.records]
    assert sum("a message was dropped" in message for message in said) == 1


def test_a_greeting_that_fails_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    faults = [RuntimeError("dictionary changed size during iteration")]

    def greet() -> list[Record]:
        if faults:
            raise faults.pop()
        return [GateCounts(pid=1)]

    async def act() -> None:
        async with Supervisor(tmp_path / "run.sock") as other:
            link = SupervisorLink(other.path, (), hear=lambda _: None, greet=greet)
            async with following(link):
                await until(lambda: other.heard == [GateCounts(pid=1)])

    asyncio.run(act())
    assert "RuntimeError: dictionary changed size" in caplog.text


def test_a_supervisor_that_does_not_read_holds_nobody_up(tmp_path: Path) -> None:
    async def act() -> None:
        async def ignore(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await hung.wait()
            writer.close()

        hung = asyncio.Event()
        server = await asyncio.start_unix_server(ignore, tmp_path / "run.sock")
        link = SupervisorLink(tmp_path / "run.sock", (), hear=lambda _: None, greet=list)
        async with following(link):
            await until(lambda: link._writer is not None)
            for _ in range(20_000):
                link.send(GateCounts(pid=1))
            assert link._writer is not None
            assert link._writer.transport.get_write_buffer_size() < 2 * MOST_BYTES
            hung.set()
        server.close()

    asyncio.run(act())


@pytest.mark.parametrize(("app", "outcome"), [(None, "refused"), (Client(), "swapped")])
def test_whatever_happens_the_supervisor_gets_a_result(
    monkeypatch: pytest.MonkeyPatch, app: Client | None, outcome: str
) -> None:
    def fail() -> None:
        raise ValueError("no metrics")

    monkeypatch.setattr("slipstream.vllm_plugin.gate.run_link.open_metrics", fail)
    sent, gate = list[Record](), RunLink(GateSettings())
    monkeypatch.setattr(gate, "_send", sent.append)
    gate._engine = SimpleNamespace(state=SimpleNamespace(engine_client=app) if app else None)
    order = DrafterOrder(folder=Path("/new"), previous=Path("/old"), is_return=False)
    asyncio.run(gate._swap(order))
    assert [(one.order, one.outcome) for one in sent if isinstance(one, DrafterResult)] == [
        (order.id, outcome)
    ]


def test_the_gate_tells_a_result_again_to_a_supervisor_that_missed_it(tmp_path: Path) -> None:
    client, path = Client(), tmp_path / "run.sock"
    order = DrafterOrder(folder=Path("/new"), previous=Path("/old"), is_return=False)

    async def act() -> None:
        gate = RunLink(GateSettings(socket=path))
        gate.start({"app": SimpleNamespace(state=SimpleNamespace(engine_client=client))})
        async with Supervisor(path) as first:
            await until(lambda: bool(first.heard))
            assert isinstance(first.heard[0], GateCounts)
            first.writers[0].write(encode(order))
            await until(lambda: isinstance(first.heard[-1], DrafterResult))
        async with Supervisor(path) as second:
            await until(lambda: len(second.heard) == 2)
            assert second.heard[1] == first.heard[-1]
        gate.close()
        await asyncio.sleep(0)

    asyncio.run(act())
    assert client.loaded == ["/new"]
