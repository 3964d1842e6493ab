"""The supervisor: the only owner of a run's state, from its plan to its end.

It starts the engine, replaces one that dies, steps the plan down where that fits the cause,
and stops in order: drain, TERM, grace, KILL. The first signal drains, the second does not.
Once an engine has served, nothing but a stop ends the run: whatever goes wrong, another one starts.
"""

import asyncio
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import NoReturn

from slipstream.errors import EngineError, InvalidInputError, explain
from slipstream.hardware.host import Accelerator
from slipstream.hardware.nvml import read_nvidia
from slipstream.serving.access.addresses import Address
from slipstream.serving.access.gate_file import GATE_VARIABLE
from slipstream.serving.access.own_listener import OwnListener
from slipstream.serving.kept_logs import LogPlace, find_place, set_aside
from slipstream.serving.messages import SOCKET
from slipstream.serving.run import ENGINE_NOTE, read_process, was_ready_before
from slipstream.serving.served_plan import describe_gate
from slipstream.serving.service.systemd import ServiceManager
from slipstream.serving.supervision.causes.diagnosis import Cause, Finding, diagnose, diagnose_file
from slipstream.serving.supervision.causes.ladder import (
    CRASHES_PER_PLAN,
    LONGEST_WAIT_SECONDS,
    Crash,
    Death,
    classify,
    decide_takeover_wait,
    decide_wait,
    find_streak,
    may_restart,
    step_down,
)
from slipstream.serving.supervision.engine_life import EngineLife
from slipstream.serving.supervision.engine_process import (
    GRACE_SECONDS,
    LOADING_GRACE_SECONDS,
    end_group,
    make_command,
    make_environment,
    signal_group,
    start_group,
)
from slipstream.serving.supervision.engine_session import list_session
from slipstream.serving.supervision.event_log import EventLog
from slipstream.serving.supervision.generation import Asker
from slipstream.serving.supervision.learning_job import LearningJob
from slipstream.serving.supervision.peers import Followers, Peers
from slipstream.serving.supervision.run_socket import RunSocket
from slipstream.serving.supervision.swapping.swapping import Swapping
from slipstream.serving.supervision.watching.gate_following import GateFollowing
from slipstream.serving.supervision.watching.steering_watch import SteeringWatch
from slipstream.serving.supervision.watching.watchdog import guard_host

LOOK_EVERY_SECONDS = 0.1
# For requests that were admitted just before the gate heard of the drain to be counted.
SETTLED_SECONDS = 1.0
MEMORY = "/dev/shm"
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
ADDRESS_WAIT_SECONDS = 5.0
KEPT_CRASHES = 100


class Supervisor:
    """Keeps one engine running until it is asked to stop or no restart helps."""

    def __init__(self, event_log: EventLog, environment: Mapping[str, str]) -> None:
        self._event_log, self._environment = event_log, environment
        self._address = Address.of(event_log.run.plan)
        certificate = self._address.certificate
        self._tls = certificate.pin() if certificate else None
        self._socket = RunSocket(event_log)
        self._gate = GateFollowing(event_log)
        self._swapping = Swapping(event_log, self._socket)
        self._steering = SteeringWatch(
            event_log, self._socket, self._read_accelerators, self._swapping
        )
        self._learning = LearningJob(event_log, self._socket, environment)
        self._stop, self._now = asyncio.Event(), asyncio.Event()
        self._history: list[Crash] = []
        self._findings: tuple[Finding, ...] = ()
        self._manager = ServiceManager(environment)
        # A successor follows a supervisor that was killed, not one whose engine failed. A service
        # is to come up again after a boot, with nobody there to see why it does not.
        self._has_served = bool(event_log.run.takeovers) or (
            self._manager.is_present
            and was_ready_before(event_log.folder.path.parent, event_log.run)
        )
        self._spare: TemporaryDirectory[str] | None = None
        self._log_begin: LogPlace | None = None
        self._chance = Random()
        self._peers = self._make_peers()
        event_log.listen(self._manager.report)

    async def serve(self) -> None:
        """Run until the end; an unrequested end raises an EngineError."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup leaves it
                loop.add_signal_handler(number, self.stop)
        name, manager = "the service manager is not notified", self._manager
        beating: asyncio.Task[None] = asyncio.create_task(
            self._event_log.keep_looking(name, manager.beat, manager.beat_seconds)
        )
        learning = asyncio.create_task(self._learning.follow())
        try:
            await self._peers.open()
            while (death := await self._live_once()) is not None:
                await self._find_way_on(death)
                if self._stop.is_set():
                    self._event_log.move("stopping", "stop requested before the next start")
                    break
        except BaseException as fault:
            self._peers.give_up(str(fault))
            self._event_log.give_up(fault)
            raise
        finally:
            await self._peers.close()
            beating.cancel()
            learning.cancel()
            self._learning.close()
            self._steering.close()
            await self._socket.close()
            self._remove_spare_folder()
        self._event_log.move("stopped", "all of its processes have ended")

    def _make_peers(self) -> Peers:
        group = self._event_log.run.plan.group
        return Peers() if group is None else Followers(self._event_log, group)

    def stop(self) -> None:
        """Drain and end; asked again, end now."""
        if self._stop.is_set():
            self._now.set()
        self._stop.set()

    async def _live_once(self) -> Death | None:
        """Run one engine and return its death, None if a stop was requested."""
        event_log = self._event_log
        try:
            life = await self._begin_life()
        except Exception as fault:
            # What the head of a group has decided is one.
            if not self._has_served or isinstance(fault, EngineError):
                raise
            return self._count_failed_start(fault)
        if life is None:
            event_log.move("stopping", "stop requested before the next start")
            return None
        living = asyncio.create_task(life.live(guard_host(event_log.run.host)))
        stopping = asyncio.create_task(self._stop.wait())
        following = asyncio.create_task(self._gate.follow())
        swapping = asyncio.create_task(self._swapping.follow(life))
        steering = asyncio.create_task(self._steering.watch())
        tasks = (living, stopping, following, swapping, steering)
        death: Death | None = None
        try:
            await asyncio.wait(
                (living, stopping, swapping, steering), return_when=asyncio.FIRST_COMPLETED
            )
            if swapping.done() and not living.done():
                await swapping
            if living.done():
                await living
            elif steering.done() and not stopping.done():
                raise Death("hang", steering.result())
            else:
                await self._drain(life, living)
        except Exception as fault:
            if not isinstance(fault, Death) and not (self._has_served or life.ready_at):
                raise
            death = fault if isinstance(fault, Death) else Death(None, explain(fault))
            event_log.note(death.message)
            self._socket.tell_gate("failed", death.message)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if death is None and event_log.run.state != "stopping":
                event_log.move("stopping", "stopping the engine")
            await life.asker.close()
            self._peers.dismiss(death.message if death else "a stop was requested")
            await self._end(life, immediately=death is not None)
        cause = None
        if death is not None:
            cause = self._remember(death, life, await self._peers.settle())
        self._peers.report(cause, death.message if death else "a stop was requested")
        if death is not None and self._stop.is_set():
            event_log.move("stopping", "a stop was requested anyway")
            return None
        return death

    async def _begin_life(self) -> EngineLife | None:
        """Start an engine when everything is there for it, None if a stop was requested."""
        key = secrets.token_urlsafe(32)
        await self._prepare_folder(key)
        await self._await_address()
        await self._peers.assemble(self._stop)
        return None if self._stop.is_set() else self._start_engine(key)

    def _count_failed_start(self, fault: Exception) -> Death:
        """Count an engine that this machine does not let us start now, which is no fault of it."""
        death = Death("host", f"the engine cannot be started: {explain(fault)}")
        self._event_log.note(death.message)
        self._findings = ()
        self._count(Crash(time.monotonic(), "host", 0.0))
        self._peers.dismiss(death.message)
        self._peers.report(death.cause, death.message)
        return death

    def _count(self, crash: Crash) -> None:
        self._history = [*self._history, crash][-KEPT_CRASHES:]

    async def _await_address(self) -> None:
        """Raise if the address is taken; a run that has served waits until it is free again."""
        is_reported = False
        while not self._stop.is_set():
            try:
                return self._address.require_free()
            except InvalidInputError as fault:
                # Processes of our own engine that were killed can hold it for a moment.
                if not (self._has_served or self._event_log.run.restarts):
                    raise
                if not is_reported:
                    message = f"waiting until the address is free: {fault.message}"
                    self._event_log.note(f"{message}; {self._address.explain_owner()}")
                is_reported = True
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), ADDRESS_WAIT_SECONDS)

    def _read_accelerators(self) -> tuple[Accelerator, ...]:
        """Return the current state of the accelerators from NVML, if the machine has any."""
        host = self._event_log.run.host
        if not host.accelerators:
            return ()
        import pynvml

        return read_nvidia(pynvml, host.memory, self._environment).accelerators

    async def _prepare_folder(self, key: str) -> None:
        """Put the socket and the gate's settings where the engine finds them.

        That is the run's folder, or one in shared memory while the run's cannot be written.
        """
        event_log = self._event_log
        group = event_log.run.plan.group
        if not event_log.run.terms.gated and not (group and group.is_follower):
            event_log.note("without the gate: every route of vLLM is open, without a key")
        self._gate.look()
        with suppress(OSError):
            set_aside(event_log.folder.engine_log)
        # What is still there is of an engine before: it tells nothing of the next one.
        self._log_begin = find_place(event_log.folder.engine_log)
        try:
            await self._fill_folder(event_log.folder.path, key)
            self._remove_spare_folder()
        except OSError as fault:
            if self._spare is None:
                self._spare = TemporaryDirectory(prefix="slipstream-", dir=self._find_memory())
            await self._fill_folder(Path(self._spare.name), key)
            event_log.note(
                f"cannot write {event_log.folder.path}: {fault.strerror or fault}; until the next "
                f"start the gate's settings and the ledger are in {self._spare.name}"
            )

    async def _fill_folder(self, folder: Path, key: str) -> None:
        run = self._event_log.run
        await self._socket.listen(folder)
        if run.terms.gated:
            digest = sha256(key.encode()).hexdigest()
            settings = describe_gate(run.plan, run.terms, self._event_log.folder, digest)
            self._gate.path = folder / self._event_log.folder.gate.name
            settings.model_copy(update={"socket": folder / SOCKET}).write(self._gate.path)

    def _find_memory(self) -> str | None:
        folders = (self._environment.get("XDG_RUNTIME_DIR"), MEMORY)
        return next((one for one in folders if one and os.access(one, os.W_OK)), None)

    def _remove_spare_folder(self) -> None:
        if self._spare is not None:
            self._spare.cleanup()
            self._spare = None

    def _start_engine(self, key: str) -> EngineLife:
        event_log, plan = self._event_log, self._event_log.run.plan
        command = make_command(plan)
        again = [sys.executable, "-P", "-m", "slipstream", "serve", str(event_log.folder.path)]
        environment = make_environment(plan, self._environment)
        if event_log.run.terms.gated:
            environment[GATE_VARIABLE] = str(self._gate.path)
        process = start_group(
            command,
            environment,
            event_log.folder.engine_log,
            successor=[*again, "--detach"] if event_log.run.terms.detached else (),
            successor_wait_seconds=decide_takeover_wait(event_log.run.takeovers),
        )
        try:
            return self._follow_engine(process, command, key)
        except BaseException:
            end_group(process, grace_seconds=0)
            raise

    def _follow_engine(
        self, process: subprocess.Popen[bytes], command: list[str], key: str
    ) -> EngineLife:
        event_log, plan = self._event_log, self._event_log.run.plan
        kept = {name: note for name, note in event_log.run.notes.items() if name == ENGINE_NOTE}
        event_log.update(
            engine=(engine := read_process(process.pid)),
            url=None if plan.group and plan.group.is_follower else self._address.url,
            argv=tuple(command),
            exit_code=None,
            healthy_log=None,
            notes=kept,  # The others are of the engine before.
        )
        listener = OwnListener(
            self._address,
            lambda: [one.pid for one in list_session(engine)] if engine is not None else [],
        )
        asker = Asker(listener, plan.settings.list_served_names()[0], key, self._tls)
        life = self._make_life(process, asker)
        self._socket.tell_gate("starting")
        event_log.move("starting", f"starting vLLM {plan.engine_version}, process {process.pid}")
        return life

    def _make_life(self, process: subprocess.Popen[bytes], asker: Asker) -> EngineLife:
        return EngineLife(self._event_log, process, asker, self._socket, self._peers)

    async def _drain(self, life: EngineLife, living: "asyncio.Task[None]") -> None:
        """Refuse new requests, and wait for the open ones."""
        event_log = self._event_log
        if event_log.run.state not in ("ready", "warming"):
            return
        if not event_log.run.terms.gated:
            event_log.move(
                "stopping", "without the gate open requests are not counted: they are cut off"
            )
            return
        patience = event_log.run.terms.drain_seconds
        began = time.monotonic()
        life.leave()
        event_log.move("draining", f"no new requests; open ones have {patience} s")
        self._socket.tell_gate("draining", "the server is stopping")
        while (waited := time.monotonic() - began) < patience and not self._now.is_set():
            if waited > SETTLED_SECONDS and self._count_in_flight() == 0:
                break
            if living.done():
                await living
            await asyncio.sleep(LOOK_EVERY_SECONDS)
        left = self._count_in_flight()
        message = f"{left} requests were cut off" if left else "all requests were answered"
        event_log.move("stopping", f"{message}; stopping the engine", in_flight=left)

    def _count_in_flight(self) -> int:
        return self._socket.counts.in_flight if self._socket.counts else 0

    async def _end(self, life: EngineLife, *, immediately: bool) -> None:
        """End the whole group; one that died or hangs is killed."""
        patience = LOADING_GRACE_SECONDS if life.ready_at is None else GRACE_SECONDS
        grace = 0.0 if immediately else patience
        ending = asyncio.create_task(
            asyncio.to_thread(end_group, life.process, grace_seconds=grace)
        )
        hurry = asyncio.create_task(self._now.wait())
        await asyncio.wait((ending, hurry), return_when=asyncio.FIRST_COMPLETED)
        if hurry.done():
            signal_group(life.process, signal.SIGKILL)
        hurry.cancel()
        await ending
        self._event_log.update(engine=None)

    def _remember(self, death: Death, life: EngineLife, elsewhere: Cause | None) -> Cause:
        """Find the cause of a crash, here or in another rank, report its remedy, and count it."""
        if (killed := life.count_oom_kills()) > 0 and (death.exit_code or 0) >= 0:
            # Of the core, of which vLLM says no more than that it died, or nothing.
            self._event_log.note(f"the kernel killed {killed} processes here: memory ran out")
            own = None if death.cause == "hang" else death.cause
            death = Death(own, death.message, -signal.SIGKILL, death.hint)
        self._event_log.update(exit_code=death.exit_code, healthy_log=life.healthy_log)
        self._findings = self._diagnose(death, life.healthy_log or self._log_begin)
        for finding in self._findings[:1]:
            self._event_log.note(f"{finding.meaning} {finding.remedy}")
        self._has_served |= life.ready_at is not None
        cause = death.cause or classify(self._findings, has_served=self._has_served)
        cause = elsewhere or cause
        self._count(Crash(time.monotonic(), cause, life.healthy_seconds))
        return cause

    async def _find_way_on(self, death: Death) -> None:
        """Wait for the next start, or step down; give up what has never served."""
        event_log, run = self._event_log, self._event_log.run
        wait = may_restart(self._history, time.monotonic(), self._chance)
        if death.cause == "port" and not self._has_served:
            self._give_up(death)
        if wait is None:
            if lower := step_down(run.plan, self._history[-1].cause, run.rungs):
                plan, rung = lower
                self._history = []
                event_log.update(plan=plan, rungs=(*run.rungs, rung))
                event_log.move("starting", plan.notes[-1])
            elif not self._has_served:
                self._give_up(death)
            else:
                wait = decide_wait(self._history, self._chance)
        if wait is not None:
            self._note_failures(death)
            event_log.move("starting", f"restarting in {wait:.0f} s", wait=wait)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), wait)
        event_log.update(restarts=run.restarts + 1)

    def _note_failures(self, death: Death) -> None:
        times = len(find_streak(self._history))
        if times >= CRASHES_PER_PLAN:
            message = f"the engine keeps ending, {times} times in a row: {death.message}"
            tried = f"it is started again, after {LONGEST_WAIT_SECONDS // 60} min at most"
            self._event_log.set_note(ENGINE_NOTE, f"{message}; {tried}")

    def _diagnose(self, death: Death, since: LogPlace | None) -> tuple[Finding, ...]:
        log = self._event_log.folder.engine_log
        try:
            return diagnose_file(log, exit_code=death.exit_code, healthy=since)
        except Exception:  # noqa: BLE001 the log is gone; the exit code is not
            return diagnose("", exit_code=death.exit_code)

    def _give_up(self, death: Death) -> NoReturn:
        remedy = self._findings[0].remedy if self._findings else None
        raise EngineError(
            f"the engine keeps failing: {death.message}",
            details=tuple(finding.meaning for finding in self._findings[:3]),
            hint=death.hint or remedy or f"slipstream logs {self._event_log.run.id}",
        )
