"""The supervisor of a rank that follows: it runs what the head orders, and decides nothing.

Such a rank has no port. Its life is judged by its process and by the head, whose state it shows
as its own: the group is one thing.
"""

import asyncio
import subprocess
import time
from typing import cast

from slipstream.errors import EngineError
from slipstream.planning.group import Group
from slipstream.planning.plan import LaunchPlan
from slipstream.serving.group.link import SILENT_AFTER_SECONDS, HeadOrder, RankReport
from slipstream.serving.kept_logs import find_place
from slipstream.serving.run import State
from slipstream.serving.supervision.causes.diagnosis import Cause
from slipstream.serving.supervision.causes.ladder import Death, Rung, take_rungs
from slipstream.serving.supervision.engine_life import EngineLife
from slipstream.serving.supervision.event_log import EventLog
from slipstream.serving.supervision.generation import Asker
from slipstream.serving.supervision.peers import (
    LOOK_EVERY_SECONDS,
    SHOWN_CHARACTERS,
    UNWATCHED,
    Peers,
    make_link,
)
from slipstream.serving.supervision.supervisor import Supervisor


class Dismissal(Death):
    """The head's order to end, which is no fault of this rank."""


class Head(Peers):
    """The rank that leads, as the others hear it."""

    def __init__(self, event_log: EventLog, group: Group) -> None:
        self._event_log, self._group = event_log, group
        # As it was served first, from its local copies, with the rungs behind it.
        self._first: tuple[LaunchPlan, tuple[Rung, ...]] | None = None
        self._link = make_link(event_log, group, self._describe_state)
        # The generation that runs, or ran last, and the session of the head that ordered it.
        self._session: str | None = None
        self._running: int | None = None
        self._end = RankReport()
        self._leaves = False
        # The head's session, and the generation after which it ordered an end.
        self._idle_after: tuple[str | None, int] | None = None

    async def open(self) -> None:
        await self._link.open()

    async def close(self) -> None:
        """Report that this rank leaves."""
        self._leaves = True
        await self._link.close()

    async def assemble(self, stop: asyncio.Event) -> None:
        """Wait for the order of a generation, and take the rungs that come with it."""
        head = self._group.describe(0)
        self._event_log.move("starting", f"waiting for {head} to start the engines")
        while not stop.is_set():
            session, order = self._hear()
            if order is not None and order.given_up:
                raise EngineError(
                    f"{head} has given up: {order.message}",
                    hint=f"on {self._group.members[0].name}: slipstream doctor",
                )
            if order is not None and not order.runs:
                self._idle_after = (session, order.generation)
            # One that runs already has lost a rank, which a supervisor that is new cannot replace.
            elif order is not None and self._idle_after == (session, order.generation - 1):
                self._idle_after = None
                self._take_rungs(order.rungs)
                self._session, self._running = session, order.generation
                self._link.send()
                return
            await asyncio.sleep(LOOK_EVERY_SECONDS)

    def _take_rungs(self, rungs: tuple[Rung, ...]) -> None:
        run = self._event_log.run
        self._first = plan, taken = self._first or (run.plan, run.rungs)
        if rungs[: len(taken)] != taken:
            raise EngineError(
                f"this rank has stepped down ({', '.join(taken)}), but the head has not",
                hint="serve the plan of this rank again: slipstream fleet up",
            )
        self._event_log.update(plan=take_rungs(plan, rungs, len(taken)), rungs=rungs)

    async def watch(self) -> None:
        """End when the head is silent, or no longer wants this generation."""
        name = self._group.describe(0)

        async def look() -> None:
            session, order = self._hear()
            if order is None:
                raise Dismissal(
                    "rank-lost", f"no report from {name} for {SILENT_AFTER_SECONDS:.0f} s"
                )
            if session != self._session:
                raise Dismissal("rank-lost", f"{name} was restarted")
            if not order.runs or order.generation != self._running:
                raise Dismissal("rank-lost", f"{name} ends this start: {order.message}")

        await self._event_log.keep_looking(UNWATCHED, look, LOOK_EVERY_SECONDS)

    def report(self, cause: Cause | None, message: str) -> None:
        text = message[:SHOWN_CHARACTERS]
        self._end = RankReport(ended=self._running, cause=cause, message=text)
        self._running = None
        self._link.send()

    @property
    def state(self) -> State | None:
        """Return the state of the head's run, None if it is silent."""
        order = self._hear()[1]
        return order.state if order else None

    def _describe_state(self) -> RankReport:
        session, _ = self._hear()
        last = self._end if session == self._session else RankReport()
        head, idle_after = self._idle_after or (None, None)
        now = {
            "head": session,
            "idle_after": idle_after if head == session else None,
            "running": self._running,
            "leaves": self._leaves,
        }
        return last.model_copy(update=now)

    def _hear(self) -> tuple[str | None, HeadOrder | None]:
        beat = self._link.hear(0)
        return (beat.session, cast(HeadOrder, beat.body)) if beat is not None else (None, None)


class FollowerLife(EngineLife):
    """An engine without a port: it is as ready as the head says."""

    @property
    def _head(self) -> Head:
        return cast(Head, self._peers)

    async def _is_up(self) -> bool:
        return self._head.state in ("warming", "ready")

    async def _warm(self) -> None:
        seconds = time.monotonic() - self._began
        self.event_log.move("warming", f"the head listens after {seconds:.0f} s", elapsed=seconds)

    async def _prove(self) -> None:
        while self._head.state != "ready":
            await asyncio.sleep(LOOK_EVERY_SECONDS)
        self.ready_at = time.monotonic()
        self._mark(find_place(self.event_log.folder.engine_log))
        self.event_log.update(healthy_log=self.healthy_log)
        self.event_log.move("ready", "ready: the head has generated text")

    async def _look(self) -> None:
        """Show the head's state, and remember how far the log was in good health."""
        self.event_log.save()
        state = self._head.state
        if state == "ready":
            self._mark(find_place(self.event_log.folder.engine_log))
        if state != self.event_log.run.state and (state == "warming" or state == "ready"):
            self.event_log.move(state, f"the head is {state}")


class Follower(Supervisor):
    """Keeps the engine of a rank as the head of its group orders."""

    def _make_peers(self) -> Peers:
        group = self._event_log.run.plan.group
        assert group is not None
        self._head = Head(self._event_log, group)
        return self._head

    def _make_life(self, process: subprocess.Popen[bytes], asker: Asker) -> EngineLife:
        return FollowerLife(self._event_log, process, asker, self._socket, self._head)

    def _remember(self, death: Death, life: EngineLife, elsewhere: Cause | None) -> Cause:
        """Look for a cause in our log unless the head has ended the engine."""
        if isinstance(death, Dismissal):
            return "rank-lost"
        return super()._remember(death, life, elsewhere)

    async def _drain(self, life: EngineLife, living: "asyncio.Task[None]") -> None:
        self._event_log.move("stopping", "the head starts again when this rank is back")

    async def _find_way_on(self, death: Death) -> None:
        self._event_log.update(restarts=self._event_log.run.restarts + 1)
