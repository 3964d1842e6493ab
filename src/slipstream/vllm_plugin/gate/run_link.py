"""The gate's part in the run's messages: it hears how the engine is, and reports its requests.

Without a supervisor, as in a test of the gate alone, nothing is heard or sent.
"""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

from slipstream.records import Record
from slipstream.serving.messages import DrafterOrder, DrafterResult, Readiness
from slipstream.steering.state import SteeringState
from slipstream.vllm_plugin.gate.answers.accounting import Accounting
from slipstream.vllm_plugin.gate.settings import Settings
from slipstream.vllm_plugin.gate.swaps import carry_out
from slipstream.vllm_plugin.supervisor_link import SupervisorLink

UNKNOWN = Readiness(state="unknown", reasons=("no word from the supervisor",))


class RunLink:
    """What the supervisor said last, and the counts that it is sent."""

    def __init__(self, settings: Settings) -> None:
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
        """Hear nothing more."""
        for task in self._tasks:
            task.cancel()

    def hear(self, message: Record) -> None:
        """Take up a message."""
        if isinstance(message, Readiness):
            self.readiness = message
        elif isinstance(message, SteeringState):
            self._state = message
        elif isinstance(message, DrafterOrder):
            self._begin(self._swap(message))

    async def _swap(self, order: DrafterOrder) -> None:
        self._result = await carry_out(self._engine.state.engine_client, order)
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
