"""The supervisor's part in learning: two processes that it starts, pauses and ends.

The collector writes down what the engine's core sends. The job decides, trains and orders swaps;
while it computes, it is stopped as soon as a request is open and goes on once there was none for
some seconds. Both begin again where they were, whoever killed them, and end with the supervisor.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from hashlib import sha256
from pathlib import Path

from slipstream.checkpoints.reading import read_checkpoint
from slipstream.errors import InvalidInputError
from slipstream.serving.learning import LearningTerms
from slipstream.serving.plugin_settings import is_followed, takes_swaps
from slipstream.serving.run import Run, find_runs_root
from slipstream.serving.supervision.event_log import EventLog
from slipstream.serving.supervision.run_socket import RunSocket

LOOK_EVERY_SECONDS = 0.2
# Without a request, before training goes on.
IDLE_SECONDS = 2.0
# After a start, before an earlier end is forgotten.
SETTLED_SECONDS = 60.0
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 2.0, 600.0
LOG_BYTES = 1 << 20
COLLECTOR, JOB = "slipstream.learning.collector", "slipstream.learning.job"


class LearningJob:
    """Follows the terms and the orders of a run as long as its supervisor lives."""

    def __init__(
        self,
        event_log: EventLog,
        socket: RunSocket,
        environment: Mapping[str, str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._event_log, self._socket, self._clock = event_log, socket, clock
        self._environment = {**environment, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        self._processes: dict[str, _Child] = {}
        self._once: LearningTerms | None = None
        self._busy_at = clock()

    async def follow(self) -> None:
        name = "the run does not learn"
        await self._event_log.keep_looking(name, self.look, LOOK_EVERY_SECONDS)

    async def look(self) -> None:
        """Carry out an order, start what is missing, and give way to requests."""
        order, self._socket.learning = self._socket.learning, None
        if order is not None:
            self._end(JOB)
            self._once = order.terms if order.once else None
            self._event_log.update(learning=None)
            if not order.once:
                self._end(COLLECTOR)
                self._change_terms(order.terms)
        steady = self._event_log.run.terms.learning
        if steady is not None:
            self._keep(COLLECTOR, lambda: self._describe_collector(steady))
        if (terms := self._once or steady) is None:
            return
        if self._keep(JOB, lambda: self._describe_job(terms)) == 0 and self._once is not None:
            self._once = None
            self._processes.pop(JOB)
        self._give_way(terms)

    def close(self) -> None:
        for name in list(self._processes):
            self._end(name)

    def _change_terms(self, terms: LearningTerms | None) -> None:
        run = self._event_log.run
        changed = run.terms.model_copy(update={"learning": terms})
        self._event_log.update(terms=changed)
        message = "stopped" if terms is None else f"on, kept in {self._find_folder(terms)}"
        self._event_log.note(f"learning: {message}")

    def _find_folder(self, terms: LearningTerms) -> Path:
        return terms.folder or find_learning_folder(self._environment, self._event_log.run)

    def _describe_collector(self, terms: LearningTerms) -> list[str]:
        run, home = self._event_log.folder, self._find_folder(terms)
        if terms.folder is None:  # Successors find it, whatever drafter they begin with.
            settled = terms.model_copy(update={"folder": home})
            both = self._event_log.run.terms.model_copy(update={"learning": settled})
            self._event_log.update(terms=both)
        tokenizer = Path(self._event_log.run.plan.settings.model.value) / "tokenizer.json"
        return [str(home / "text"), str(run.kept_socket), str(tokenizer), *terms.redact]

    def _describe_job(self, terms: LearningTerms) -> list[str]:
        words = [str(self._event_log.folder.path), str(self._find_folder(terms))]
        words += ["--steps", str(terms.steps)] if terms.steps else []
        return [*words, "--once"] if self._once is not None else words

    def _keep(self, name: str, describe: Callable[[], list[str]]) -> int | None:
        """Start a process that does not run, and return how it ended if it has."""
        child = self._processes.setdefault(name, _Child())
        ended = child.look()
        if ended is not None:
            log = self._event_log.folder.learning_log
            self._event_log.set_note(
                name, f"{name} ended with {ended}, see {log}" if ended else None
            )
            child.wait(self._clock())
        elif child.process is not None and self._clock() - child.next_at > SETTLED_SECONDS:
            self._event_log.set_note(name, None)
            child.settle()
        elif child.process is None and self._clock() >= child.next_at:
            child.start(name, describe(), self._environment, self._event_log.folder.learning_log)
            child.next_at = self._clock()
        return ended

    def _give_way(self, terms: LearningTerms) -> None:
        run, counts, now = self._event_log.run, self._socket.counts, self._clock()
        if run.state != "ready" or counts is None or counts.in_flight or counts.waiting:
            self._busy_at = now
        works = run.learning is not None and run.learning.works
        is_idle = now - self._busy_at >= IDLE_SECONDS and terms.may_work(datetime.now())
        if (child := self._processes.get(JOB)) is not None:
            child.pause(works and not is_idle)

    def _end(self, name: str) -> None:
        if (child := self._processes.pop(name, None)) is not None:
            child.end()


class _Child:
    """A process in a group of its own; after each end the next start waits longer."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.next_at, self._pause, self._is_paused = 0.0, FIRST_PAUSE_SECONDS, False

    def start(self, name: str, words: list[str], environment: Mapping[str, str], log: Path) -> None:
        with suppress(OSError):
            if log.stat().st_size > LOG_BYTES:
                log.unlink()
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(log, flags, 0o600), "ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", name, *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=dict(environment),
                start_new_session=True,
            )
        self._is_paused = False

    def look(self) -> int | None:
        """Return how the process ended, once."""
        if self.process is None or (ended := self.process.poll()) is None:
            return None
        self.process = None
        return ended

    def settle(self) -> None:
        """Wait no longer than at first when it ends again."""
        self._pause = FIRST_PAUSE_SECONDS

    def wait(self, now: float) -> None:
        self.next_at = now + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE_SECONDS)

    def pause(self, wanted: bool) -> None:
        if self.process is not None and wanted != self._is_paused:
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGSTOP if wanted else signal.SIGCONT)
            self._is_paused = wanted

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


def find_learning_folder(environment: Mapping[str, str], run: Run) -> Path:
    """Return the folder of a pair: every run of the same target and first drafter learns there."""
    first = Path(run.drafters[0].folder if run.drafters else run.plan.drafter or "")
    root = find_runs_root(environment).parent / "learning"
    if root in first.parents:  # A run that began with what an earlier one learnt.
        return root / first.relative_to(root).parts[0]
    target = run.plan.settings.model.value
    digest = sha256(f"{target}\n{first}".encode()).hexdigest()[:8]
    return root / f"{Path(target).name}-{digest}"


def require_learnable(run: Run) -> None:
    """Refuse a run whose drafter cannot be trained and replaced beside its engine here."""
    plan = run.plan
    if not (run.terms.gated and is_followed(plan) and takes_swaps(plan)):
        raise InvalidInputError(
            f"{run.id} cannot learn: that needs a DFlash drafter, the gate, slipstream's scheduler "
            "and an engine on one machine",
            hint="slipstream serve TARGET --drafter DRAFTER --learn",
        )
    if run.host.accelerators:
        raise InvalidInputError(
            f"{run.id} serves on a GPU: training beside its engine was tested on a CPU only",
            hint="serve with --record FOLDER; slipstream train TARGET --prompts "
            "FOLDER/requests.jsonl --from DRAFTER; slipstream swap RUN FOLDER --trial 2",
        )
    draft = read_checkpoint(plan.drafter or "", tokenizer=False).draft
    if draft is None or draft.layout != "speculators":
        raise InvalidInputError(
            f"{plan.drafter} is not in speculators' layout, in which drafters are trained: what is "
            "learnt from it could not replace it in a running engine",
            hint="train one in that layout, and serve with it: "
            f"slipstream train {plan.target} --prompts FILE --from {plan.drafter}",
        )
