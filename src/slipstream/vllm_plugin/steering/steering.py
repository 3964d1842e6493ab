"""The scheduler's interface to the draft length, the ledger, the recorder and the supervisor.

A thread of its own reports the state to the supervisor once a second and takes its orders, so that
no step waits for it. The ledger and the recorder's file lie beside the gate's settings. No fault of
ours ends a step of the engine: it goes on as unsteered, and the supervisor is told.
"""

import asyncio
import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from itertools import compress
from pathlib import Path
from typing import Any, TypeVar

from slipstream.atomic_files import write_atomically
from slipstream.errors import explain
from slipstream.learning.kept_text import SOCKET as COLLECTOR
from slipstream.records import Record
from slipstream.serving.messages import SOCKET
from slipstream.steering.ledger import SUPERVISOR_KEY
from slipstream.steering.state import KINDS, LengthEstimate, SteeringOrder, SteeringState
from slipstream.vllm_plugin.gate.answers.records import AccessLog
from slipstream.vllm_plugin.steering.answer_sender import AnswerSender
from slipstream.vllm_plugin.steering.choosing import (
    DraftChooser,
    Generating,
    find_most_constrained,
)
from slipstream.vllm_plugin.steering.draft_length import DraftLength, MeasuredStep
from slipstream.vllm_plugin.steering.flight_recorder import FlightRecorder
from slipstream.vllm_plugin.steering.request_ledger import RequestLedger
from slipstream.vllm_plugin.steering.step_costs import StepWork
from slipstream.vllm_plugin.supervisor_link import SupervisorLink

LEDGER = "ledger.jsonl"
LEDGER_BYTES = 32 << 20
LEDGERS_KEPT = 1
FLIGHT = "flight.bin"
LEARNT = "learnt.json"
LEARNT_BYTES = 256 << 10
KEEP_EVERY_REPORTS = 15
REPORT_EVERY_SECONDS = 1.0
SPEED_SECONDS = 10
STEP_SHARE = 0.1
LEAST_KEPT_STEPS = 100
NO_DRAFT = (0, 0)
# How a request ends whose answer is the target's own to the end.
WHOLE = ("stop", "length")
FAULT_SECONDS = 600.0

log = logging.getLogger("vllm.slipstream")
Given = TypeVar("Given", bound=Callable[..., Any])
# The tokens of a prompt and of its answer.
Text = tuple[Sequence[int], Sequence[int]]


def _or_else(fallback: Callable[..., Any]) -> Callable[[Given], Given]:
    """Have a method return what vLLM does without it, instead of raising into the scheduler."""

    def guard(method: Given) -> Given:
        @wraps(method)
        def guarded(self: "Steering", *arguments: Any, **named: Any) -> Any:
            try:
                return method(self, *arguments, **named)
            except Exception as fault:  # noqa: BLE001
                self.note_fault(f"{method.__name__}: {explain(fault)}")
                return fallback(self, *arguments)

        return guarded  # type: ignore[return-value]

    return guard


def _nothing(*_: Any) -> None:
    """Do nothing."""


class Steering:
    """One engine core's steering; `lengths` has one entry if nothing is to be chosen.

    Of several cores (data parallel) each has its own state and recorder; all share the ledger.
    """

    def __init__(
        self,
        folder: Path,
        lengths: Sequence[int],
        *,
        longest: int,
        planned: Sequence[int] | None,
        rank: int = 0,
    ) -> None:
        self.control = DraftLength(lengths, planned)
        self._chooser = DraftChooser(self.control.survival)
        self._longest, self._rank = longest, rank
        self._log = AccessLog(
            folder / LEDGER, limit_bytes=LEDGER_BYTES, older=LEDGERS_KEPT, drop=lambda _: None
        )
        self.ledger = RequestLedger(longest, self._log.add)
        self._sender = AnswerSender(folder / COLLECTOR)
        self._flight = FlightRecorder(_name_own(folder / FLIGHT, rank))
        self._learnt = _name_own(folder / LEARNT, rank)
        self._recall()
        self._drafter: int | None = None
        self._running = self._waiting = self._steps = self._memory_mib = self._reports = 0
        self._cache = self._step_seconds = 0.0
        self._fault: tuple[float, str] | None = None
        self._speeds: deque[tuple[float, int]] = deque(maxlen=SPEED_SECONDS + 1)
        self._link = SupervisorLink(
            folder / SOCKET,
            (SteeringOrder,),
            hear=self._follow_order,
            greet=lambda: [self.describe()],
        )
        self._over = threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._report()), name="steering", daemon=True
        )
        self._thread.start()

    @property
    def steers(self) -> bool:
        return len(self.control.lengths) > 1

    def note_fault(self, fault: str) -> None:
        """Keep a fault for the next reports; of those that follow each other the first."""
        if self._current_fault is None:
            log.warning("slipstream steering: this step is not steered: %s", fault)
        self._fault = (time.monotonic(), self._current_fault or fault)

    @property
    def _current_fault(self) -> str | None:
        at, fault = self._fault or (-FAULT_SECONDS, None)
        return fault if time.monotonic() - at < FAULT_SECONDS else None

    @_or_else(_nothing)
    def begin(self, request: str, arguments: object, temperature: float | None) -> None:
        tag = self.ledger.begin(request, arguments, temperature)
        proves = tag.key == SUPERVISOR_KEY
        self._chooser.begin(request, KINDS.index(tag.kind), plain=tag.plain, proves=proves)

    @_or_else(_nothing)
    def end(
        self, request: str, ended: str, *, prompt: int, tokens: int, text: Text | None = None
    ) -> None:
        """Write a request's line, and send its text to be kept where that is wanted."""
        tag = self.ledger.end(request, ended, prompt=prompt, tokens=tokens)
        self._chooser.end(request)
        if text is not None and tag.keep and ended in WHOLE:
            self._sender.send(tag.kind, *text)

    @_or_else(lambda self, _: self.control.lengths[-1])
    def choose_width(self, sequences: int) -> int:
        """Return what is drafted: nothing where all copy, all where the supervisor looks at it."""
        width = self.control.choose(sequences)
        if self._chooser.proves:
            return self.control.allowed[-1]
        return 0 if self._chooser.copies_all == sequences else width

    @_or_else(lambda *_: 0)
    def find_most_constrained(self, seats: int, constrained: int) -> int:
        """Return the longest copy of a request with a grammar, of which so many run."""
        return find_most_constrained(seats, self._longest, constrained)

    @_or_else(lambda _, __, rows, ___: list(rows))
    def choose_drafts(
        self,
        requests: Sequence[Generating],
        rows: Sequence[list[int]],
        chances: Sequence[list[float]] | None,
    ) -> list[list[int]]:
        """Return what each request verifies in the next step."""
        control = self.control
        return self._chooser.choose(
            requests,
            rows,
            chances,
            price=control.price,
            entry=control.entry,
            most=control.most,
            whole=control.is_exact,
        )

    @_or_else(_nothing)
    def see_step(
        self,
        scheduled: Mapping[str, int],
        given: Mapping[str, int],
        drafts: Mapping[str, tuple[int, int]],
        width: int,
        *,
        seconds: float | None,
        waiting: int,
        cache: float,
    ) -> None:
        """Learn from a step: by request the tokens scheduled and given, drafted and accepted."""
        if not scheduled:
            return
        names = list(given)
        drafted, accepted = _unzip([drafts.get(name, NO_DRAFT) for name in names])
        copied, expected, first = self._chooser.see_step(names, drafted, accepted)
        tokens = list(given.values())
        self.ledger.see_step(
            *(names, tokens, drafted, accepted, copied, time.monotonic()),
            expected=expected,
            first=first,
        )
        if seconds is None:
            return
        verified, generating = sum(drafted), sum(map(bool, tokens))
        step = MeasuredStep(
            work=StepWork(
                generating,
                prompt=sum(scheduled.values()) - verified - generating,
                verified=verified,
                width=width,
                rows=len(scheduled),
            ),
            tokens=sum(tokens),
            seconds=seconds,
            copies=sum(map(bool, compress(drafted, copied))),
            copied=sum(compress(drafted, copied)),
            copied_accepted=sum(compress(accepted, copied)),
        )
        self.control.observe(step)
        self._record(step, waiting, cache)

    def _record(self, step: MeasuredStep, waiting: int, cache: float) -> None:
        self._steps += 1
        self._running, self._waiting, self._cache = int(step.work.rows or 0), waiting, cache
        self._step_seconds += (step.seconds - self._step_seconds) * (
            STEP_SHARE if self._steps > 1 else 1
        )
        self._flight.add(
            running=self._running,
            waiting=waiting,
            prompt_tokens=int(step.work.prompt),
            verified=int(step.work.verified),
            drafted=int(step.work.width),
            copied=step.copied,
            tokens=step.tokens,
            memory_mib=self._memory_mib,
            seconds=step.seconds,
            cache=cache,
        )

    def rest(self, waiting: int) -> None:
        self._running, self._waiting = 0, waiting

    def close(self) -> None:
        self._over.set()
        self._thread.join(REPORT_EVERY_SECONDS)
        self._keep()
        self._log.close()
        self._sender.close()

    def describe(self) -> SteeringState:
        now, tokens = time.monotonic(), self.ledger.tokens
        self._speeds.append((now, tokens))
        began, before = self._speeds[0]
        estimates = self.control.estimate(max(1, self._running))
        best = max(estimates, key=lambda one: (one.known, one.tokens_per_second))
        return SteeringState(
            rank=self._rank,
            pid=os.getpid(),
            at=round(time.time(), 3),
            fault=self._current_fault,
            steers=self.steers,
            draft_length=self.control.chosen,
            longest=self._longest,
            least=self.control.least,
            most=self.control.most,
            plain_pays=self.steers and best.length == 0,
            price=round(self.control.price, 4),
            spent_share=round(self.control.lost / max(self.control.seconds, 1e-9), 5),
            calibration=tuple(self.control.survival.list_calibration()),
            running=self._running,
            waiting=self._waiting,
            kv_usage=round(self._cache, 4),
            memory_mib=self._memory_mib,
            steps=self._steps,
            step_seconds=round(self._step_seconds, 6),
            tokens=tokens,
            tokens_per_second=round((tokens - before) / (now - began), 2) if now > began else 0,
            kinds=self.ledger.describe_kinds(),
            lengths=tuple(
                LengthEstimate(
                    draft_length=one.length,
                    step_seconds=round(one.step_seconds, 6),
                    tokens_per_step=round(one.tokens_per_step, 3),
                    tokens_per_second=round(one.tokens_per_second, 2),
                    steps=self.control.used[one.length],
                )
                for one in estimates
                if one.known
            ),
        )

    def _recall(self) -> None:
        """Begin with what an engine of the same plan has learnt; what is not sound is left."""
        try:
            with self._learnt.open("rb") as file:
                content = file.read(LEARNT_BYTES + 1)
        except OSError:
            return
        try:
            found = json.loads(content) if len(content) <= LEARNT_BYTES else None
            self.control.load(found)
        except (ValueError, TypeError, KeyError, RecursionError) as fault:
            log.warning("slipstream steering: %s is left out: %s", LEARNT, fault)

    def _keep(self) -> None:
        """Keep what was learnt for the next engine; on a full disk it is lost."""
        if self.control.costs.steps >= LEAST_KEPT_STEPS:
            with suppress(OSError):
                document = json.dumps(self.control.dump()).encode()
                write_atomically(self._learnt, document, mode=0o600)

    async def _report(self) -> None:
        """Report once a second; whatever fails is logged, and tried again a second later."""
        following = asyncio.create_task(self._link.follow())
        while not self._over.is_set():
            try:
                self._memory_mib = _read_memory_mib()
                self._link.send(self.describe())
                self._reports += 1
                if self._reports % KEEP_EVERY_REPORTS == 0:
                    self._keep()
            except Exception as fault:  # noqa: BLE001 without this thread nobody would be told
                self._link.report(f"the state was not reported: {explain(fault)}")
            await asyncio.sleep(REPORT_EVERY_SECONDS)
        following.cancel()

    def _follow_order(self, order: Record) -> None:
        """Follow an order, and start over with another drafter."""
        assert isinstance(order, SteeringOrder)
        self.control.least, self.control.most = order.least, order.most
        if self._drafter not in (None, order.drafter):
            self.control.forget_drafts()
        self._drafter = order.drafter


def _name_own(path: Path, rank: int) -> Path:
    return path.with_stem(f"{path.stem}-rank-{rank}") if rank else path


def _unzip(pairs: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
    return [one for one, _ in pairs], [other for _, other in pairs]


def _read_memory_mib() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") >> 20
