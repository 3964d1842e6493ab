"""The supervisor's watch over a run's ledger: drifts are noted, and acted upon where allowed.

It looks once a second at a bounded number of lines, and never raises into the supervisor: an engine
whose ledger cannot be read serves on without this watch, which is noted once.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence

from slipstream.hardware.host import Accelerator
from slipstream.planning.plan import LaunchPlan
from slipstream.serving.supervision.event_log import EventLog
from slipstream.serving.supervision.run_socket import RunSocket
from slipstream.steering.guardian import DrafterSwap, Drift, Guardian, GuardianStep, Levers
from slipstream.steering.ledger import SUPERVISOR_KEY, LedgerLine, LedgerReader
from slipstream.steering.ledger_watch import LedgerWatch

LOOK_EVERY_SECONDS = 1.0
LINES_PER_LOOK = 500
MOST_DRIFTS = 20
# A stuck GB10 ran at 799 MHz of 2281 under load.
LOW_CLOCK_SHARE = 0.5


class SteeringWatch:
    """Reads a run's ledger as it grows, and carries out the guardian's decisions."""

    def __init__(
        self,
        event_log: EventLog,
        socket: RunSocket,
        read_accelerators: Callable[[], Sequence[Accelerator]],
        swap: DrafterSwap,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._event_log, self._socket = event_log, socket
        self._swap, self._clock = swap, clock
        self._read_accelerators = read_accelerators
        self._reader, self._watch = LedgerReader(), LedgerWatch()
        self._guardian = Guardian(event_log.run.terms.guardian)
        self._plan: LaunchPlan | None = None
        self._is_torn = False
        self._is_low_power = False

    async def watch(self) -> str:
        """Check once a second, and return the reason if the engine is to be restarted."""
        name = "the guardian cannot watch"
        return await self._event_log.keep_looking(name, self.look, LOOK_EVERY_SECONDS)

    def close(self) -> None:
        self._reader.close()

    async def look(self) -> str | None:
        """Read new lines, act on the guardian's decisions, and return why to restart, if at all."""
        if not self._guardian.rules.allowed:
            return None
        self._follow_plan()
        found = [drift for line in self._read() for drift in self._watch.add(line)]
        if any(drift.family == "step seconds" for drift in found):
            self._is_low_power = await self._is_slowed()
        found = [self._name(drift) for drift in found]
        self._keep_drifts()
        active, levers = self._event_log.run.drifts, self._list_levers()
        steps = self._guardian.decide(found, active, levers, self._clock())
        reasons = [reason for step in steps if (reason := self._carry_out(step)) is not None]
        self._socket.limit_drafts(self._guardian.most)
        return reasons[0] if reasons else None

    def _read(self) -> Iterator[LedgerLine]:
        """Yield the new requests, without the supervisor's own."""
        file = self._event_log.folder.ledger
        for line in self._reader.read(file, LINES_PER_LOOK):
            if line.key != SUPERVISOR_KEY:
                yield line
        if self._reader.skipped_lines and not self._is_torn:
            self._is_torn = True
            self._event_log.note(f"{file} has lines that are not ledger lines")

    def _follow_plan(self) -> None:
        """Start over with other settings, whose different figures are no drift."""
        plan, before = self._event_log.run.plan, self._plan
        self._plan = plan
        if before is not None and plan is not before and plan.argv() != before.argv():
            self._watch.forget()
            self._guardian.begin_anew()
            self._event_log.update(drifts=())

    def _list_levers(self) -> Levers:
        """Return what can be done; bounds that the user set are not changed."""
        last, state = self._event_log.run.last_swap, self._socket.steering
        may_limit = state is not None and state.steers and self._socket.bounds is None
        return Levers(
            draft_length=state.longest if state is not None and may_limit else None,
            can_swap_back=last is not None and last.outcome == "swapped",
        )

    async def _is_slowed(self) -> bool:
        counts = self._socket.counts
        if counts is None or not counts.in_flight:
            return False
        return any(map(is_slowed, await asyncio.to_thread(self._read_accelerators)))

    def _name(self, drift: Drift) -> Drift:
        if drift.family != "step seconds" or not self._is_low_power:
            return drift
        return drift.model_copy(update={"decay": "low power"})

    def _keep_drifts(self) -> None:
        """Save the active drifts in the run, the latest first."""
        active = self._watch.list_active()
        drifts = tuple(self._name(drift) for drift in active[:MOST_DRIFTS])
        still = {(drift.family, drift.where) for drift in self._watch.drifts.values()}
        for drift in self._event_log.run.drifts:
            if (drift.family, drift.where) not in still:
                self._event_log.note(f"guardian: no longer active: {drift.describe()}")
        if drifts != self._event_log.run.drifts:
            self._event_log.update(drifts=drifts)

    def _carry_out(self, step: GuardianStep) -> str | None:
        """Carry out an action and note it; the reason for a restart is returned instead."""
        message, figures = f"guardian: {step.reason}", {}
        if step.action == "lift":
            message = f"guardian: the draft length is unrestricted again: {step.reason}"
        elif step.most is not None:
            message = f"guardian: drafts are limited to {step.most} tokens: {step.reason}"
            figures["most"] = float(step.most)
        elif step.action == "swap-back":
            done = self._swap.swap_back(step.reason)
            word = "swapping back to the previous drafter" if done else "cannot swap back"
            message = f"guardian: {word}: {step.reason}"
        elif step.action == "restart":
            message = f"guardian: restarting the engine: {step.reason}"
        self._event_log.note(message, figures=figures)
        return message if step.action == "restart" else None


def is_slowed(accelerator: Accelerator) -> bool:
    clock, limit = accelerator.clock_mhz, accelerator.clock_limit_mhz
    return clock is not None and limit is not None and clock < LOW_CLOCK_SHARE * limit
