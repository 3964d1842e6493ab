"""One socket joins a run's processes: reports come in, orders go out, and nobody is waited for."""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest

from slipstream.errors import EngineError
from slipstream.records import Record
from slipstream.serving.messages import (
    MOST_BYTES,
    DrafterOrder,
    DrafterResult,
    GateCounts,
    LiveQuestion,
    Readiness,
)
from slipstream.serving.run import Event, LiveRun
from slipstream.serving.run_status import read_live
from slipstream.serving.supervision import run_socket
from slipstream.serving.supervision.event_log import EventLog
from slipstream.serving.supervision.run_socket import RunSocket
from slipstream.steering.state import SteeringOrder, SteeringState
from tests.unit.serving.kept_runs import keep
from tests.unit.serving.supervision.fake_engine import Peer, connect, until
from tests.unit.vllm_plugin.steering.reports import make_state


class Listening:
    """A run's socket, and ways to connect to it."""

    def __init__(self, root: Path) -> None:
        self.folder, run = keep(root)
        self.events: list[Event] = []
        self.event_log = EventLog(self.folder, run, self.events.append)
        self.socket = RunSocket(self.event_log)
        self.peers: list[Peer] = []

    def play(self, act: Callable[[], Coroutine[None, None, None]]) -> None:
        async def run() -> None:
            await self.socket.listen(self.folder.path)
            try:
                await asyncio.wait_for(act(), 30)
            finally:
                for peer in self.peers:
                    peer.writer.close()
                await self.socket.close()

        asyncio.run(run())

    async def connect(self, *messages: Record) -> Peer:
        self.peers.append(peer := await connect(self.folder.socket, *messages))
        return peer


@pytest.fixture
def run(tmp_path: Path) -> Listening:
    return Listening(tmp_path)


def test_the_gate_is_told_what_holds_when_it_connects_and_what_changes(run: Listening) -> None:
    async def act() -> None:
        run.socket.tell_gate("warming", "it is slow")
        core = await run.connect(make_state(draft_length=4))
        await core.hear(SteeringOrder)
        gate = await run.connect(GateCounts(pid=1, in_flight=3))
        assert await gate.hear(Readiness) == Readiness(state="warming", reasons=("it is slow",))
        state = await gate.hear(SteeringState)
        assert isinstance(state, SteeringState)
        assert state.draft_length == 4
        run.socket.tell_gate("ready")
        assert await gate.hear(Readiness) == Readiness(state="ready")
        assert run.socket.counts == GateCounts(pid=1, in_flight=3)
        again = await run.connect(GateCounts(pid=2))  # The next engine's, or a reconnect.
        assert await again.hear(Readiness) == Readiness(state="ready")
        gate.writer.close()
        await asyncio.sleep(0.05)
        assert run.socket.counts == GateCounts(pid=2)
        again.writer.close()
        await until(lambda: run.socket.counts is None)

    run.play(act)


def test_cores_get_the_order_at_once_and_a_user_goes_before_the_guardian(run: Listening) -> None:
    async def act() -> None:
        run.socket.limit_drafts(4)
        cores = [await run.connect(make_state(rank=rank)) for rank in (1, 0)]

        async def hear(**order: int) -> None:
            for core in cores:
                assert await core.hear(SteeringOrder) == SteeringOrder.model_validate(order)

        await hear(most=4)
        await until(lambda: run.socket.steering is not None and run.socket.steering.rank == 0)
        run.socket.limit_drafts(4)
        run.socket.limit_drafts(2)
        await hear(most=2)
        user = await run.connect(SteeringOrder(least=1, most=3))
        assert await user.hear(SteeringOrder) == SteeringOrder(least=1, most=3)
        await hear(least=1, most=3)
        run.socket.limit_drafts(1)
        await hear(least=1, most=3)
        run.socket.change_drafter()
        await hear(least=1, most=3, drafter=1)
        user.send(SteeringOrder())
        await hear(most=1, drafter=1)
        assert run.socket.bounds is None

    run.play(act)


def test_a_fault_in_the_steps_of_a_core_is_a_note_as_long_as_it_is_reported(run: Listening) -> None:
    async def act() -> None:
        core = await run.connect(make_state(rank=1, fault="see_step: KeyError: 'a'"))
        other = await run.connect(make_state(rank=0))
        await core.hear(SteeringOrder)
        await other.hear(SteeringOrder)
        name = "the steering of core 1 fails"
        note = f"{name}, and steps continue without it: see_step: KeyError: 'a'"
        assert run.event_log.run.notes == {name: note}
        assert [event.message for event in run.events] == [note]
        core.send(make_state(rank=1))
        await until(lambda: run.event_log.run.notes == {})

    run.play(act)


def test_an_old_report_is_none(run: Listening) -> None:
    async def act() -> None:
        core = await run.connect(make_state(at=1000))
        await core.hear(SteeringOrder)
        assert run.socket.steering is None

    run.play(act)


def test_a_result_is_waited_for_even_over_a_new_connection(run: Listening) -> None:
    order = DrafterOrder(folder=Path("/new"), previous=Path("/old"), is_return=False)
    result = DrafterResult(order=order.id, outcome="swapped", seconds=0.1)

    async def act() -> None:
        with pytest.raises(EngineError):
            await run.socket.load_drafter(order)
        gate = await run.connect(GateCounts(pid=1))
        await until(lambda: run.socket.counts is not None)
        loading = asyncio.create_task(run.socket.load_drafter(order))
        assert await gate.hear(DrafterOrder) == order
        gate.send(DrafterResult(order="another", outcome="failed"))
        gate.writer.close()
        gate = await run.connect(GateCounts(pid=1))
        assert not loading.done()
        gate.send(result)
        assert await loading == result
        gate.send(result)  # Twice changes nothing.

    run.play(act)


def test_a_command_learns_what_is_not_on_the_disk_yet(run: Listening) -> None:
    async def act() -> None:
        gate = await run.connect(GateCounts(pid=1, in_flight=2))
        core = await run.connect(make_state())
        await asyncio.gather(core.hear(SteeringOrder), gate.hear(SteeringState))
        run.folder.record.unlink()
        run.folder.record.mkdir()
        run.event_log.update(restarts=7)
        live = await asyncio.to_thread(read_live, run.folder)
        assert isinstance(live, LiveRun)
        assert live.run == run.event_log.run
        assert live.run.restarts == 7
        assert live.unwritten == tuple(run.events) != ()
        assert (live.counts, len(live.steering)) == (GateCounts(pid=1, in_flight=2), 1)

    run.play(act)
    assert read_live(run.folder) is None


@pytest.mark.parametrize(
    "garbage", [b"GET / HTTP/1.1\r\n\r\n", b"[" * 9999 + b"\n", b"x" * (2 * MOST_BYTES), b"\xff\n"]
)
def test_garbage_ends_its_own_connection_and_is_noted_once(run: Listening, garbage: bytes) -> None:
    async def act() -> None:
        gate = await run.connect(GateCounts(pid=1))
        for _ in range(3):
            stranger = await run.connect()
            stranger.writer.write(garbage)
            assert await stranger.hear(Readiness) is None
        run.socket.tell_gate("ready")
        assert await gate.hear(Readiness) == Readiness(state="ready")

    run.play(act)
    assert [event.message[:24] for event in run.events] == ["a connection was closed:"]


def test_a_peer_that_does_not_read_is_hung_up_on(
    run: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_socket, "MOST_ANSWER_BYTES", 10_000)

    async def act() -> None:
        deaf = await run.connect(GateCounts(pid=1))
        await until(lambda: run.socket.counts is not None)
        for number in range(20_000):
            run.socket.tell_gate("warming", f"{number} {'x' * 100}")
        await until(lambda: run.socket.counts is None)
        deaf.writer.close()

    run.play(act)
    assert run.socket.counts is None


def test_another_user_is_not_heard(run: Listening, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_socket, "read_peer", lambda _: (1, 12345))

    async def act() -> None:
        stranger = await run.connect(LiveQuestion())
        assert await stranger.hear(LiveRun) is None

    run.play(act)


def test_only_its_user_may_connect_and_a_stale_socket_is_replaced(run: Listening) -> None:
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(run.folder.socket))

    async def act() -> None:
        assert run.folder.socket.stat().st_mode & 0o777 == 0o600
        inode = run.folder.socket.stat().st_ino
        await run.socket.listen(run.folder.path)
        assert run.folder.socket.stat().st_ino == inode
        run.folder.socket.unlink()
        await run.socket.listen(run.folder.path)
        assert await (await run.connect(LiveQuestion())).hear(LiveRun) is not None

    run.play(act)
    assert not run.folder.socket.exists()
