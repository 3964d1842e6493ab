"""One engine from its start to its end: phases, warm-up, test request and watch.

An engine that gives up, hangs or proves useless ends in a `Death`; being asked to stop is
the supervisor's affair.
"""

import asyncio
import re
import subprocess
import time
from collections import deque
from contextlib import closing
from pathlib import Path

from slipstream.engines.vllm_log import Phase, PhaseMark, PhaseTracker
from slipstream.errors import EngineError
from slipstream.hardware.cgroup import count_oom_kills
from slipstream.planning.plan import LaunchPlan
from slipstream.serving.following import GrowingFile
from slipstream.serving.kept_logs import LogPlace, find_place, read_end
from slipstream.serving.messages import GateCounts
from slipstream.serving.plugin_settings import STEERING, list_parts
from slipstream.serving.run import ENGINE_NOTE, expected_phases
from slipstream.serving.supervision.causes.diagnosis import READ_BYTES
from slipstream.serving.supervision.causes.ladder import HEALTHY_SECONDS, Death
from slipstream.serving.supervision.event_log import EventLog
from slipstream.serving.supervision.generation import Asker, prove, warm_up
from slipstream.serving.supervision.peers import Peers
from slipstream.serving.supervision.run_socket import RunSocket
from slipstream.serving.supervision.watching.watchdog import (
    LOOK_EVERY_SECONDS,
    STUCK_AFTER_SECONDS,
    EngineObservation,
    MemoryGuard,
    assess,
    should_probe,
)

START_WITHIN_SECONDS = 3600.0
READ_LOG_EVERY_SECONDS = 0.25
STILL_EVERY_SECONDS = 15.0
WATCH_EVERY_SECONDS = 1.0
EXIT_FOLLOWS_SECONDS = 5.0
# A start takes up to 40 minutes: one refused health check is no reason for another.
FAILED_HEALTH_CHECKS = 3
HEALTH_FAILING_SECONDS = 5.0
# A worker that dies says why up to a few health checks before one fails.
KEPT_MARKS = 3
# An engine whose core the kernel has killed takes seconds to end, and says nothing of it.
KILLS_REMEMBERED = 60
# A listener that comes and goes before the engine's own is no reason to end a start.
FOREIGN_SECONDS = 2.0
DEFAULT_CONTEXT = 4096
# Of a request's body: more than most texts have, so that patience is not too short.
BYTES_PER_TOKEN = 3

# What a part of ours inside the engine says of itself.
_APPLIED = re.compile(
    r"slipstream (patch [\w-]+|steering): ((?:not applied|no row is copied): .*)?"
)
_ROOT = Path("/")
_PHASE_NAMES: dict[Phase, str] = {
    "boot": "Python and vLLM are being loaded",
    "engine": "the engine is being set up",
    "weights": "the target's weights are being read",
    "drafter": "the drafter's weights are being read",
    "compile": "the model is being compiled",
    "profile": "memory is being measured",
    "cache": "the key-value cache is being allocated",
    "graphs": "graphs are being captured",
    "server": "the API server is starting",
    "listening": "the API server listens",
}


class EngineLife:
    def __init__(
        self,
        event_log: EventLog,
        process: subprocess.Popen[bytes],
        asker: Asker,
        socket: RunSocket,
        peers: Peers | None = None,
    ) -> None:
        self.event_log, self.process, self.asker = event_log, process, asker
        self._socket, self._peers = socket, peers or Peers()
        self.ready_at: float | None = None
        self._began = time.monotonic()
        self._prefill_tokens_per_s: float | None = None
        self._probed_well_at: float | None = None
        self._failures: list[float] = []
        self._failed_checks: list[float] = []
        self._last_probe_at: float | None = None
        self._counted: tuple[float, int] | None = None
        self._probe: asyncio.Task[bool] | None = None
        self._rising: asyncio.Task[None] | None = None
        self._marks = deque[LogPlace](maxlen=KEPT_MARKS)
        self._foreign_since: float | None = None
        self._oom_kills = deque((count_oom_kills(_ROOT),), maxlen=KILLS_REMEMBERED)

    async def live(self, guard: MemoryGuard) -> None:
        """Run until the engine dies; raises its `Death`."""
        self._rising = asyncio.create_task(self._rise_and_work())
        parts = (self._await_exit(), self._guard_memory(guard), self._peers.watch())
        fates = [asyncio.create_task(part) for part in parts]
        try:
            await asyncio.wait((self._rising, *fates), return_when=asyncio.FIRST_COMPLETED)
            if self._rising.cancelled():
                await asyncio.wait(fates, return_when=asyncio.FIRST_COMPLETED)
            for task in (*fates, self._rising):
                if task.done() and not task.cancelled():
                    await task
        finally:
            for task in (self._rising, *fates):
                task.cancel()
            if self._probe is not None:
                self._probe.cancel()
            await asyncio.gather(self._rising, *fates, return_exceptions=True)

    def leave(self) -> None:
        """Stop warming, testing and watching: the engine is about to be ended."""
        if self._rising is not None:
            self._rising.cancel()

    @property
    def healthy_seconds(self) -> float:
        return 0.0 if self.ready_at is None else time.monotonic() - self.ready_at

    @property
    def healthy_log(self) -> LogPlace | None:
        """The end of the log when the engine was last healthy, None if it was never ready."""
        return self._marks[0] if self._marks else None

    def count_oom_kills(self) -> int:
        """Count what the kernel killed around this engine, because memory ran out, of late."""
        return count_oom_kills(_ROOT) - self._oom_kills[0]

    async def _rise_and_work(self) -> None:
        try:
            await self._start()
            await self._warm()
            self._note_unapplied()
            await self._note_context()
            await self._prove()
            await self._watch()
        except EngineError as fault:
            # What a request says of a dying engine comes before its exit, which says more.
            await asyncio.sleep(EXIT_FOLLOWS_SECONDS)
            raise Death(None, fault.message, self.process.poll()) from fault

    async def _await_exit(self) -> None:
        while (code := self.process.poll()) is None:
            await asyncio.sleep(READ_LOG_EVERY_SECONDS)
        ending = f"signal {-code}" if code < 0 else f"exit code {code}"
        raise Death(None, f"the engine ended by itself with {ending}", code)

    async def _guard_memory(self, guard: MemoryGuard) -> None:
        async def look() -> None:
            if alarm := guard.look((_ROOT / "proc/meminfo").read_text(), time.monotonic()):
                raise Death("out-of-memory", alarm)

        name = "the machine's memory cannot be watched"
        await self.event_log.keep_looking(name, look, LOOK_EVERY_SECONDS)

    async def _start(self) -> None:
        event_log, drafts = self.event_log, self._plan.is_drafted_by_model
        expected = expected_phases(event_log.folder.path.parent, self._plan)
        tracker = PhaseTracker(started_at=self._began, drafts=drafts)
        reported = self._began
        self._tell_phase(tracker.reached, reported, expected.get("boot"))
        with closing(GrowingFile(event_log.folder.engine_log)) as log:
            while not await self._is_up():
                now = time.monotonic()
                if now - self._began > START_WITHIN_SECONDS:
                    raise Death("hang", f"the engine did not start in {START_WITHIN_SECONDS:g} s")
                before = tracker.reached.phase
                added = log.read().decode(errors="replace")
                marks = {mark.phase: mark for mark in tracker.feed(added, now)}
                marks.pop(before, None)
                if now - reported > STILL_EVERY_SECONDS:
                    marks[tracker.reached.phase] = tracker.reached
                for mark in marks.values():
                    self._tell_phase(mark, now, expected.get(mark.phase))
                    reported = now
                await asyncio.sleep(READ_LOG_EVERY_SECONDS)
        took = tracker.seconds_by_phase(time.monotonic())
        event_log.update(phase_seconds={**took})
        self._measure(start_seconds=time.monotonic() - self._began)

    async def _is_up(self) -> bool:
        """Return whether our engine is healthy; another process at its address is not asked."""
        listener, now = self.asker.listener, time.monotonic()
        owner = listener.find_owner()
        if owner != "other":
            self._foreign_since = None
            return owner == "engine" and bool(await self.asker.is_healthy())
        self._foreign_since = self._foreign_since or now
        if now - self._foreign_since > FOREIGN_SECONDS:
            raise Death(
                "port",
                f"another program is listening at {listener.address}; no key was sent to it",
                hint=listener.address.explain_owner(),
            )
        return False

    def _tell_phase(self, mark: PhaseMark, now: float, expected: float | None) -> None:
        figures = {"elapsed": now - self._began}
        details = [f"{now - self._began:.0f} s so far"]
        if mark.share is not None:
            details.insert(0, f"{mark.share:.0%}")
        if expected is not None:
            details.append(f"this phase took {expected:.0f} s before")
            figures["expected"] = expected
        message = f"{_PHASE_NAMES[mark.phase]} ({', '.join(details)})"
        self.event_log.note(message, phase=mark.phase, figures=figures)

    async def _warm(self) -> None:
        seconds = time.monotonic() - self._began
        self.event_log.move("warming", f"listening after {seconds:.0f} s", elapsed=seconds)
        self._socket.tell_gate("warming", "sending the first requests, which are slow")
        warm = await warm_up(self.asker, self._context, self.event_log.note)
        self._prefill_tokens_per_s = warm.prefill_tokens_per_s
        self._measure(
            warm_up_requests=warm.requests,
            first_ms_per_token=1000 * warm.first_seconds_per_token,
            last_ms_per_token=1000 * warm.last_seconds_per_token,
        )
        if not warm.flat:
            self.event_log.note("the time per token is not stable: the machine may be busy")

    def _note_unapplied(self) -> None:
        """Note what was planned of our plugin and is not applied, or not heard of."""
        text = read_end(self.event_log.folder.engine_log, READ_BYTES)
        found = _APPLIED.findall(text)
        known = {part for part, _ in found}
        # A log that was cut or could not be written tells nothing by its silence.
        is_whole = 0 < len(text) < READ_BYTES // 2
        silent = [part for part in list_parts(self._plan) if is_whole and part not in known]
        unapplied = {part: why for part, why in found if why}
        unapplied |= dict.fromkeys(silent, "not applied: the engine's log does not mention it")
        for part, why in unapplied.items():
            effect = "vLLM runs without it (docs/patches.md)"
            if part == STEERING:
                effect = "the draft length stays as planned, and there is no ledger"
            self.event_log.set_note(part, f"slipstream {part}: {why}; {effect}")

    async def _note_context(self) -> None:
        """Note a shorter context than planned: from 0.33 on a drafter's positions can lower it."""
        planned, served = self._plan.context, await self.asker.read_context()
        if planned is not None and served is not None and served < planned:
            message = f"the context is {served} tokens, not {planned} as planned: "
            hint = f"slipstream logs {self.event_log.run.id}"
            self.event_log.set_note("context", f"{message}{hint}")

    async def _prove(self) -> None:
        """Report ready only after a real generation."""
        drafts = self._plan.is_drafted_by_model
        proof = await prove(self.asker, drafts=drafts)
        figures = {"tokens_per_second": proof.tokens_per_second}
        speed = f"{proof.tokens_per_second:.1f} tokens/s alone"
        # Where drafts do not pay, a steered engine may have made none: that says nothing of them.
        steered = self.event_log.run.terms.steered
        if drafts and not proof.accepted and not (steered and proof.drafts == 0):
            raise Death("no-acceptance", f"none of {proof.drafts} drafts was accepted")
        if proof.tokens_per_step is not None:
            figures["tokens_per_step"] = proof.tokens_per_step
            speed += f", {proof.tokens_per_step:.2f} tokens per step"
        self.ready_at = self._probed_well_at = time.monotonic()
        figures["ready_seconds"] = self.ready_at - self._began
        self._measure(**figures)
        self._mark(find_place(self.event_log.folder.engine_log))
        self.event_log.update(healthy_log=self.healthy_log)
        self._become_ready(f"ready at {self.event_log.run.url}: {speed}", **figures)

    def _become_ready(self, message: str, **figures: float) -> None:
        self.event_log.move("ready", message, **figures)
        self._socket.tell_gate("ready")

    async def _watch(self) -> None:
        name = "the engine cannot be checked"
        await self.event_log.keep_looking(name, self._look, WATCH_EVERY_SECONDS)

    async def _look(self) -> None:
        self.event_log.save()
        self._socket.tell_notes()
        self._oom_kills.append(count_oom_kills(_ROOT))
        if self.healthy_seconds >= HEALTHY_SECONDS:
            self.event_log.set_note(ENGINE_NOTE, None)
        place = find_place(self.event_log.folder.engine_log)
        self._count_health_check(await self.asker.is_healthy(), place)
        await self._judge()

    def _mark(self, place: LogPlace | None) -> None:
        if place is not None:
            self._marks.append(place)

    def _count_health_check(self, healthy: bool | None, place: LogPlace | None) -> None:
        """End an engine whose health check keeps failing; a missing answer does not count."""
        if healthy:
            self._failed_checks = []
            self._mark(place)
        elif healthy is False:
            self._failed_checks.append(time.monotonic())
            count, seconds = len(self._failed_checks), time.monotonic() - self._failed_checks[0]
            if count >= FAILED_HEALTH_CHECKS and seconds >= HEALTH_FAILING_SECONDS:
                message = f"the health check failed {count} times in {seconds:.0f} s"
                raise Death(None, message, self.process.poll())

    async def _judge(self) -> None:
        # A probe waits behind the requests of others, and without a gate nobody knows of them.
        if not self.event_log.run.terms.gated and await self._has_made_tokens():
            self._probed_well_at = time.monotonic()
        seen = self._observe()
        self._follow_probe(seen)
        health = assess(seen)
        if health.stuck:
            raise Death("hang", health.reason)
        is_ready = self.event_log.run.state == "ready"
        if is_ready and not health.ready:
            self.event_log.move("warming", f"not ready: {health.reason}")
            self._socket.tell_gate("warming", health.reason)
        elif health.ready and self.event_log.run.state == "warming":
            self._become_ready(f"ready again: {health.reason}")

    def _follow_probe(self, seen: EngineObservation) -> None:
        if (probe := self._probe) is not None and probe.done():
            self._probe = None
            if probe.result():
                self._probed_well_at = time.monotonic()
            else:
                self._failures.append(time.monotonic())
        if self._probe is None and should_probe(seen, self._last_probe_at):
            self._last_probe_at = seen.now
            self._probe = asyncio.create_task(self._look_for_life())

    async def _look_for_life(self) -> bool:
        """Probe; an engine too busy to answer in time shows by its own counts that it works."""
        return await self.asker.probe() or await self._has_made_tokens()

    async def _has_made_tokens(self) -> bool:
        try:
            counted = time.monotonic(), await self.asker.count_tokens()
        except EngineError:
            return False
        before, self._counted = self._counted or counted, counted
        return counted[0] - before[0] <= STUCK_AFTER_SECONDS and counted[1] > before[1]

    def _observe(self) -> EngineObservation:
        counts = self._socket.counts or GateCounts(pid=0)
        last_sign = max(counts.last_token or 0.0, self._probed_well_at or 0.0)
        self._failures = [at for at in self._failures if at > last_sign]
        return EngineObservation(
            now=time.monotonic(),
            in_flight=counts.in_flight,
            last_token_at=counts.last_token,
            last_good_generation_at=self._probed_well_at,
            failed_probes=len(self._failures),
            longest_prompt_tokens=min(self._context, counts.longest_body_bytes // BYTES_PER_TOKEN),
            prefill_tokens_per_s=self._prefill_tokens_per_s,
        )

    @property
    def _plan(self) -> LaunchPlan:
        return self.event_log.run.plan

    @property
    def _context(self) -> int:
        return self._plan.context or DEFAULT_CONTEXT

    def _measure(self, **figures: float) -> None:
        self.event_log.update(measurements={**self.event_log.run.measurements, **figures})
