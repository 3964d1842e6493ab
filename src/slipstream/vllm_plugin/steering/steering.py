"""The scheduler's interface to the draft length, the ledger, the recorder and the state file.

Files lie beside the gate's settings. The state is written by a thread of its own once a second, and
the order from outside is read by it.
"""

import json
import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from slipstream.vllm_plugin.gate.answers.records import AccessLog
from slipstream.vllm_plugin.steering.draft_length import DraftLength
from slipstream.vllm_plugin.steering.flight_recorder import FlightRecorder
from slipstream.vllm_plugin.steering.request_ledger import RequestLedger

LEDGER = "ledger.jsonl"
LEDGER_BYTES = 32 << 20
LEDGERS_KEPT = 1
STATE = "steering.json"
ORDER = "steering-order.json"
# What the gate says of the last drafter that it loaded.
SWAPPED = "swapped.json"
FLIGHT = "flight.bin"
WRITE_EVERY_SECONDS = 1.0
SPEED_SECONDS = 10
STEP_SHARE = 0.1


class Steering:
    """One engine core's steering; `lengths` has one entry if nothing is to be chosen.

    Of several cores (data parallel) each has its own state and recorder; all share the ledger and
    the order.
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
        self._longest = longest
        log = AccessLog(
            str(folder / LEDGER),
            limit_bytes=LEDGER_BYTES,
            older=LEDGERS_KEPT,
            drop=lambda _: None,
        )
        self._log = log
        self.ledger = RequestLedger(longest, log.add)
        self._flight = FlightRecorder(_name_own(folder / FLIGHT, rank))
        self._swapped = folder / SWAPPED
        self._swap = _read_object(self._swapped).get("order")
        self._state, self._order = _name_own(folder / STATE, rank), folder / ORDER
        self._running = self._waiting = self._steps = self._memory_mib = 0
        self._cache = self._step_seconds = 0.0
        self._speeds: deque[tuple[float, int]] = deque(maxlen=SPEED_SECONDS + 1)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._tell, name="steering", daemon=True)
        self._thread.start()

    @property
    def steers(self) -> bool:
        """Whether there is a length to choose."""
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
        self._flight.add(
            running=sequences,
            waiting=waiting,
            verified=max(map(len, drafts.values()), default=0),
            drafted=drafted,
            tokens=tokens,
            memory_mib=self._memory_mib,
            seconds=seconds,
            cache=cache,
        )

    def rest(self, waiting: int) -> None:
        """Record that no sequence is left to step."""
        self._running, self._waiting = 0, waiting

    def close(self) -> None:
        """Write what is still to be written."""
        self._over.set()
        self._thread.join(WRITE_EVERY_SECONDS)
        self._log.close()

    def describe(self) -> dict[str, Any]:
        """Return the state for the state file."""
        now, tokens = time.monotonic(), self.ledger.tokens
        self._speeds.append((now, tokens))
        began, before = self._speeds[0]
        estimates = self.control.estimate(max(1, self._running))
        best = max(estimates, key=lambda one: one.tokens_per_second)
        return {
            "schema_version": 1,
            "pid": os.getpid(),
            "at": round(time.time(), 3),
            "steers": self.steers,
            "draft_length": self.control.chosen,
            "longest": self._longest,
            "least": self.control.least,
            "most": self.control.most,
            "plain_pays": self.steers and best.length == 0,
            "running": self._running,
            "waiting": self._waiting,
            "kv_usage": round(self._cache, 4),
            "memory_mib": self._memory_mib,
            "steps": self._steps,
            "step_seconds": round(self._step_seconds, 6),
            "tokens": tokens,
            "tokens_per_second": round((tokens - before) / (now - began), 2) if now > began else 0,
            "kinds": dict(self.ledger.describe_kinds()),
            "lengths": [
                {
                    "draft_length": one.length,
                    "step_seconds": round(one.step_seconds, 6),
                    "tokens_per_step": round(one.tokens_per_step, 3),
                    "tokens_per_second": round(one.tokens_per_second, 2),
                    "steps": one.steps,
                }
                for one in estimates
                if one.steps
            ],
        }

    def _tell(self) -> None:
        while not self._over.wait(WRITE_EVERY_SECONDS):
            with suppress(OSError, ValueError):
                self._memory_mib = _read_memory_mib()
            self._obey()
            with suppress(OSError):
                _replace(self._state, json.dumps(self.describe()).encode())

    def _obey(self) -> None:
        """Follow the order in the folder, and start over with another drafter."""
        order = _read_object(self._order)
        bounds = (order.get("least"), order.get("most"))
        least, most = (one if type(one) is int and one >= 0 else None for one in bounds)
        self.control.least, self.control.most = least, most
        swap = _read_object(self._swapped)
        if swap.get("outcome") == "swapped" and swap.get("order") != self._swap:
            self._swap = swap.get("order")
            self.control.forget_drafts()


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


def _read_object(path: Path) -> dict[str, Any]:
    """Read a small JSON file; one that is missing or broken says nothing."""
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _read_memory_mib() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") >> 20


def _replace(path: Path, content: bytes) -> None:
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_bytes(content)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
