"""The gate's part in the run's messages: it hears how the engine is, and reports its requests.

On the supervisor's order it replaces the drafter, through the engine client of this process; no
request leads there. Without a supervisor nothing is heard or sent.
"""

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from slipstream.records import Record
from slipstream.serving.access.gate_file import GateSettings
from slipstream.serving.messages import DrafterOrder, DrafterResult, Readiness
from slipstream.steering.state import SteeringState
from slipstream.vllm_plugin.gate.answers.accounting import Accounting
from slipstream.vllm_plugin.gate.answers.metrics import open_metrics
from slipstream.vllm_plugin.supervisor_link import SupervisorLink

ERROR_CHARACTERS = 500
UNKNOWN = Readiness(state="unknown", reasons=("no message from the supervisor",))

_log = logging.getLogger(__name__)


class RunLink:
    """What the supervisor said last, and the counts that it is sent."""

    def __init__(self, settings: GateSettings) -> None:
        self.readiness = UNKNOWN
        self.accounting = Accounting(self._send)
        self._state: SteeringState | None = None
        self._result: DrafterResult | None = None
        self._engine: Any = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._link: SupervisorLink | None = None
        if settings.socket is not None:
            kinds = (Readiness, SteeringState, DrafterOrder)
            self._link = SupervisorLink(settings.socket, kinds, hear=self.hear, greet=self._greet)

    @property
    def steering(self) -> SteeringState | None:
        """The last report of the engine's core, None if it is old."""
        state = self._state
        return state if state is not None and state.is_fresh(time.time()) else None

    def start(self, scope: Any) -> None:
        """Connect to the supervisor, for as long as the server runs."""
        if self._link is not None:
            self._engine = scope["app"]
            self._begin(self._link.follow())

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    def hear(self, message: Record) -> None:
        if isinstance(message, Readiness):
            self.readiness = message
            open_metrics().notes.set(message.notes)
            open_metrics().generation.set(message.generation)
        elif isinstance(message, SteeringState):
            self._state = message
        elif isinstance(message, DrafterOrder):
            self._begin(self._swap(message))

    async def _swap(self, order: DrafterOrder) -> None:
        try:
            self._result = await carry_out(self._engine.state.engine_client, order)
        except Exception as fault:  # noqa: BLE001 the supervisor waits for a result
            self._result = DrafterResult(order=order.id, outcome="refused", error=_shorten(fault))
        self._send(self._result)

    def _greet(self) -> Iterator[Record]:
        """Yield what a supervisor may have missed while there was no connection."""
        yield self.accounting.describe()
        if self._result is not None:
            yield self._result

    def _send(self, message: Record) -> None:
        if self._link is not None:
            self._link.send(message)

    def _begin(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def carry_out(engine: Any, order: DrafterOrder) -> DrafterResult:
    """Load the drafter in all ranks, or have the one before in all of them."""
    result = await _load(engine, order)
    done = "swapped_back" if order.is_return else "swapped"
    with suppress(Exception):  # What is counted does not change what is loaded.
        open_metrics().swaps.labels(done if result.outcome == "swapped" else "refused").inc()
    _log.warning("slipstream swap %s: %s", result.outcome, result.error or order.folder)
    return result


async def _load(engine: Any, order: DrafterOrder) -> DrafterResult:
    try:
        await _update(engine, order.folder, check_only=True)
    except Exception as fault:  # noqa: BLE001 vLLM hands on whatever a worker raised
        return DrafterResult(order=order.id, outcome="refused", error=_shorten(fault))
    try:
        seconds = await _update(engine, order.folder)
    except Exception as fault:  # noqa: BLE001
        try:
            await _update(engine, order.previous)
        except Exception as second:  # noqa: BLE001
            error = f"{_shorten(fault)}; nor was the previous drafter loaded: {_shorten(second)}"
            return DrafterResult(order=order.id, outcome="broken", error=error)
        return DrafterResult(order=order.id, outcome="failed", error=_shorten(fault))
    return DrafterResult(order=order.id, outcome="swapped", seconds=seconds)


async def _update(engine: Any, folder: Path, *, check_only: bool = False) -> float:
    """Make one update, and return the seconds that its main call took.

    A rank that failed has ended it; the others must be told.
    """
    await engine.start_draft_weight_update()
    info = {"folder": str(folder), "check_only": check_only}
    began = time.monotonic()
    try:
        await engine.update_weights(SimpleNamespace(update_info=info))
    except BaseException:
        with suppress(Exception):
            await engine.finish_weight_update()
        raise
    seconds = time.monotonic() - began
    await engine.finish_weight_update()
    return seconds


def _shorten(fault: Exception) -> str:
    return (str(fault) or type(fault).__name__)[:ERROR_CHARACTERS]
