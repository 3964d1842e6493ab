"""The scheduler's interface to the draft length, the ledger, the recorder and the supervisor.

A thread of its own reports the state to the supervisor once a second and takes its orders, so that
no step waits for it. The ledger and the recorder's file lie beside the gate's settings.
"""

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from slipstream.records import Record
from slipstream.serving.messages import SOCKET
from slipstream.steering.state import LengthEstimate, SteeringOrder, SteeringState
from slipstream.vllm_plugin.gate.answers.records import AccessLog
from slipstream.vllm_plugin.steering.draft_length import DraftLength
from slipstream.vllm_plugin.steering.flight_recorder import FlightRecorder
from slipstream.vllm_plugin.steering.request_ledger import RequestLedger
from slipstream.vllm_plugin.supervisor_link import SupervisorLink

LEDGER = "ledger.jsonl"
LEDGER_BYTES = 32 << 20
LEDGERS_KEPT = 1
FLIGHT = "flight.bin"
REPORT_EVERY_SECONDS = 1.0
SPEED_SECONDS = 10
STEP_SHARE = 0.1


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
        self._longest, self._rank = longest, rank
        self._log = AccessLog(
            folder / LEDGER, limit_bytes=LEDGER_BYTES, older=LEDGERS_KEPT, drop=lambda _: None
        )
        self.ledger = RequestLedger(longest, self._log.add)
        self._flight = FlightRecorder(_name_own(folder / FLIGHT, rank))
        self._drafter: int | None = None
        self._running = self._waiting = self._steps = self._memory_mib = 0
        self._cache = self._step_seconds = 0.0
        self._speeds: deque[tuple[float, int]] = deque(maxlen=SPEED_SECONDS + 1)
        self._link = SupervisorLink(
            folder / SOCKET, (SteeringOrder,), hear=self._obey, greet=lambda: [self.describe()]
        )
        self._over = threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._report()), name="steering", daemon=True
        )
        self._thread.start()

    @property
    def steers(self) -> bool:
        return len(self.control.lengths) > 1

    def see_step(
        self,
        scheduled: Mapping[str, int],
        drafts: Mapping[str, Sequence[int]],
        drafted: int,
        *,
        tokens: int,
        seconds: float,
        waiting: int,
        cache: float,
    ) -> None:
        """Learn from a step: the tokens scheduled and the drafts verified by request."""
        sequences = len(scheduled)
        if not sequences:
            return
        verified = _find_length(scheduled, drafts)
        if verified is not None and verified == drafted:
            self.control.observe(sequences, verified, seconds)
        self._steps += 1
        self._running, self._waiting, self._cache = sequences, waiting, cache
        self._step_seconds += (seconds - self._step_seconds) * (
            STEP_SHARE if self._steps > 1 else 1
        )
        tokens_verified = sum(map(len, drafts.values()))
        self._flight.add(
            running=sequences,
            waiting=waiting,
            prompt_tokens=sum(scheduled.values()) - sequences - tokens_verified,
            verified=tokens_verified,
            drafted=drafted,
            copied=0,
            tokens=tokens,
            memory_mib=self._memory_mib,
            seconds=seconds,
            cache=cache,
        )

    def rest(self, waiting: int) -> None:
        self._running, self._waiting = 0, waiting

    def close(self) -> None:
        self._over.set()
        self._thread.join(REPORT_EVERY_SECONDS)
        self._log.close()

    def describe(self) -> SteeringState:
        now, tokens = time.monotonic(), self.ledger.tokens
        self._speeds.append((now, tokens))
        began, before = self._speeds[0]
        estimates = self.control.estimate(max(1, self._running))
        best = max(estimates, key=lambda one: one.tokens_per_second)
        return SteeringState(
            rank=self._rank,
            pid=os.getpid(),
            at=round(time.time(), 3),
            steers=self.steers,
            draft_length=self.control.chosen,
            longest=self._longest,
            least=self.control.least,
            most=self.control.most,
            plain_pays=self.steers and best.length == 0,
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
                    steps=one.steps,
                )
                for one in estimates
                if one.steps
            ),
        )

    async def _report(self) -> None:
        """Report once a second; whatever fails is logged, and tried again a second later."""
        following = asyncio.create_task(self._link.follow())
        while not self._over.is_set():
            try:
                self._memory_mib = _read_memory_mib()
                self._link.send(self.describe())
            except Exception as fault:  # noqa: BLE001 without this thread nobody would be told
                self._link.report(f"the state was not reported: {type(fault).__name__}: {fault}")
            await asyncio.sleep(REPORT_EVERY_SECONDS)
        following.cancel()

    def _obey(self, order: Record) -> None:
        """Follow an order, and start over with another drafter."""
        assert isinstance(order, SteeringOrder)
        self.control.least, self.control.most = order.least, order.most
        if self._drafter not in (None, order.drafter):
            self.control.forget_drafts()
        self._drafter = order.drafter


def _name_own(path: Path, rank: int) -> Path:
    return path.with_stem(f"{path.stem}-rank-{rank}") if rank else path


def _find_length(scheduled: Mapping[str, int], drafts: Mapping[str, Sequence[int]]) -> int | None:
    """Return the length that every sequence verified, None if they differ or read a prompt."""
    if not drafts:
        return 0 if _all_are(scheduled.values(), 1) else None
    length = len(next(iter(drafts.values())))
    same = len(drafts) == len(scheduled) and _all_are(scheduled.values(), length + 1)
    return length if same else None


def _all_are(counts: Iterable[int], count: int) -> bool:
    return all(one == count for one in counts)


def _read_memory_mib() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") >> 20
