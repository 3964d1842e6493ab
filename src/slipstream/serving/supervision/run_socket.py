"""The supervisor's end of the run's socket: one listener for the gate, the core and commands.

Nothing here waits for a peer or raises into the supervisor. A peer is known by what it sends: the
gate by its counts, a core by its state, a command by its order or question. Whoever sends what
nobody understands is disconnected; the gate and the core connect again, and are told anew what
holds now. Only this user and root are heard.
"""

import asyncio
import os
import socket
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from slipstream.errors import EngineError
from slipstream.records import Record
from slipstream.serving.learning import LearningOrder, LearningState
from slipstream.serving.messages import (
    MOST_ANSWER_BYTES,
    MOST_BYTES,
    SOCKET,
    DrafterOrder,
    DrafterResult,
    GateCounts,
    LiveQuestion,
    Readiness,
    decode,
    encode,
    read_peer,
    short_path,
)
from slipstream.serving.run import Event, LiveRun
from slipstream.serving.supervision.event_log import EventLog
from slipstream.serving.swaps import Swap, SwapOrder
from slipstream.steering.state import SteeringOrder, SteeringState

_HEARD = (
    *(GateCounts, SteeringState, DrafterResult, SwapOrder, SteeringOrder, LiveQuestion),
    *(LearningOrder, LearningState),
)


class RunSocket:
    """What the engine's processes reported last, and the orders for them and for us."""

    def __init__(self, event_log: EventLog) -> None:
        self._event_log = event_log
        self.counts: GateCounts | None = None
        # Of the user; the guardian's limit gives way to them.
        self.bounds: SteeringOrder | None = None
        # The last order to learn, until it is taken.
        self.learning: LearningOrder | None = None
        self._limit: int | None = None
        self._drafters = 0
        self._readiness: Readiness | None = None
        self._gate: asyncio.StreamWriter | None = None
        self._cores: dict[asyncio.StreamWriter, SteeringState] = {}
        self._orders: asyncio.Queue[SwapOrder] = asyncio.Queue(1)
        self._askers: dict[str, asyncio.StreamWriter] = {}
        self._results: dict[str, asyncio.Future[DrafterResult]] = {}
        self._servers: dict[Path, tuple[int, asyncio.Server]] = {}
        self._peers: set[asyncio.StreamWriter] = set()
        self._trouble: str | None = None
        event_log.listen(self._pass_on)

    async def listen(self, folder: Path) -> None:
        """Listen in a folder, unless we do already; raises an OSError if that cannot be done."""
        path = folder / SOCKET
        known = self._servers.get(path)
        with suppress(OSError):
            if known is not None and path.stat().st_ino == known[0]:
                return
        if known is not None:
            known[1].close()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            with short_path(path) as short:
                listening.bind(short)
                os.chmod(short, 0o600)  # noqa: PTH101 the path is for the system call only
            server = await asyncio.start_unix_server(self._serve, sock=listening, limit=MOST_BYTES)
        except BaseException:
            listening.close()
            raise
        self._servers[path] = (path.stat().st_ino, server)

    async def close(self) -> None:
        for path, (_, server) in self._servers.items():
            server.close()
            with suppress(OSError):
                path.unlink()
        for peer in self._peers:
            peer.close()
        while self._peers:
            await asyncio.sleep(0)

    @property
    def steering(self) -> SteeringState | None:
        """The state of the first core, None if it has not reported lately."""
        return min(self._list_states(), key=lambda state: state.rank, default=None)

    @property
    def order(self) -> SteeringOrder:
        bounds = self.bounds or SteeringOrder(most=self._limit)
        return bounds.model_copy(update={"drafter": self._drafters})

    def tell_gate(self, state: str, *reasons: str) -> None:
        """Report the state to the gate, for /readyz and for admission."""
        run = self._event_log.run
        learnt = run.learning.generation if run.learning else 0
        readiness = Readiness(state=state, reasons=reasons, notes=len(run.notes), generation=learnt)
        if self._gate is not None:
            self._send(self._gate, readiness)
        self._readiness = readiness

    def tell_notes(self) -> None:
        """Report notes and generation to the gate, for /metrics, if they have changed."""
        sent, run = self._readiness, self._event_log.run
        learnt = run.learning.generation if run.learning else 0
        if sent is not None and (sent.notes, sent.generation) != (len(run.notes), learnt):
            self.tell_gate(sent.state, *sent.reasons)

    def limit_drafts(self, most: int | None) -> None:
        if most != self._limit:
            self._limit = most
            self._order_cores()

    def change_drafter(self) -> None:
        """Tell the cores that another drafter drafts from now on."""
        self._drafters += 1
        self._order_cores()

    async def load_drafter(self, order: DrafterOrder) -> DrafterResult:
        if self._gate is None:
            raise EngineError("the gate is not connected", hint="slipstream logs")
        result: asyncio.Future[DrafterResult] = asyncio.get_running_loop().create_future()
        self._results[order.id] = result
        try:
            self._send(self._gate, order)
            return await result
        finally:
            del self._results[order.id]

    async def take_order(self, within_seconds: float) -> SwapOrder | None:
        """Return the next order to swap the drafter; one whose command was ended is none."""
        with suppress(TimeoutError):
            order = await asyncio.wait_for(self._orders.get(), within_seconds)
            if order.id in self._askers:
                return order
        return None

    def answer(self, swap: Swap) -> None:
        """Tell the command that ordered a swap what became of it."""
        if (asker := self._askers.pop(swap.order, None)) is not None:
            self._send(asker, swap)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._peers.add(writer)
        try:
            if read_peer(writer.get_extra_info("socket"))[1] not in (0, os.getuid()):
                return
            while line := await reader.readline():
                self._hear(decode(line, _HEARD), writer)
        except Exception as fault:  # noqa: BLE001 no message ends a supervisor
            self._report(f"a connection was closed: {type(fault).__name__}: {str(fault)[:200]}")
        finally:
            self._forget(writer)
            writer.close()

    def _hear(self, message: Record, writer: asyncio.StreamWriter) -> None:
        match message:
            case GateCounts():
                self.counts = message
                if writer is not self._gate:
                    self._gate = writer
                    self._greet_gate(writer)
            case SteeringState():
                if writer not in self._cores:
                    self._send(writer, self.order)
                self._cores[writer] = message
                subject = f"the steering of core {message.rank} fails"
                fault = (
                    message.fault and f"{subject}, and steps continue without it: {message.fault}"
                )
                self._event_log.set_note(subject, fault)
                if self._gate is not None and message.rank == 0:
                    self._send(self._gate, message)
            case DrafterResult():
                if (waiting := self._results.get(message.order)) and not waiting.done():
                    waiting.set_result(message)
            case SwapOrder():
                self._queue(message, writer)
            case SteeringOrder():
                none = message.least is message.most is None
                self.bounds = None if none else message
                self._order_cores()
                self._send(writer, self.order)
            case LearningOrder():
                self.learning = message
                self._send(writer, message)
            case LearningState():
                self._hear_learning(message)
            case LiveQuestion():
                self._send(writer, self._describe())

    def _hear_learning(self, state: LearningState) -> None:
        before = self._event_log.run.learning
        self._event_log.update(learning=state)
        if before is None or before.message != state.message:
            self._event_log.note(f"learning: {state.message}")

    def _greet_gate(self, gate: asyncio.StreamWriter) -> None:
        for message in (self._readiness, self.steering):
            if message is not None:
                self._send(gate, message)

    def _queue(self, order: SwapOrder, writer: asyncio.StreamWriter) -> None:
        self._askers[order.id] = writer
        try:
            self._orders.put_nowait(order)
        except asyncio.QueueFull:
            self.answer(
                Swap(
                    order=order.id,
                    at=datetime.now(UTC),
                    outcome="refused",
                    message="another swap of this run is waiting",
                    hint=f"slipstream status {self._event_log.run.id}",
                    drafter=order.name,
                    serves=self._event_log.run.plan.drafter or "",
                )
            )

    def _forget(self, writer: asyncio.StreamWriter) -> None:
        self._peers.discard(writer)
        self._cores.pop(writer, None)
        self._askers = {order: one for order, one in self._askers.items() if one is not writer}
        if writer is self._gate:
            self._gate = self.counts = None

    def _describe(self) -> LiveRun:
        return LiveRun(
            run=self._event_log.run,
            unwritten=self._event_log.unwritten,
            counts=self.counts,
            steering=tuple(sorted(self._list_states(), key=lambda state: state.rank)),
        )

    def _list_states(self) -> list[SteeringState]:
        return [state for state in self._cores.values() if state.is_fresh(time.time())]

    def _order_cores(self) -> None:
        for core in self._cores:
            self._send(core, self.order)

    def _pass_on(self, event: Event) -> None:
        """Show an event to the commands that wait for a swap."""
        for asker in self._askers.values():
            self._send(asker, event)

    def _send(self, writer: asyncio.StreamWriter, message: Record) -> None:
        """Send a message; a peer that does not read is disconnected."""
        if writer.transport.get_write_buffer_size() > MOST_ANSWER_BYTES:
            writer.transport.abort()
        elif not writer.is_closing():
            writer.write(encode(message))

    def _report(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            self._event_log.note(trouble)
