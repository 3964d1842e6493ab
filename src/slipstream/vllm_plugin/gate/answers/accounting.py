"""Counts of open requests, reported to the supervisor a tenth of a second after a change.

So a request that hangs is reported although nothing follows it, and a stream of tokens costs ten
messages per second. Times are of the monotonic clock, which all processes of a machine share.
"""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from heapq import nlargest

from slipstream.serving.messages import CallerCounts, GateCounts
from slipstream.vllm_plugin.gate.callers.key_ring import SUPERVISOR

REPORT_WITHIN_SECONDS = 0.1
MOST_KEYS = 64


class Accounting:
    """Counts requests from their admission to their end, however they end."""

    def __init__(self, report: Callable[[GateCounts], None]) -> None:
        self._report = report
        self._under_way: Counter[str] = Counter()
        self._begun: Counter[str] = Counter()
        self._waiting: Counter[str] = Counter()
        self._sizes: list[int] = []
        self._last_token: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    @contextmanager
    def count(self, caller: str, body_bytes: int) -> Iterator[None]:
        """Count a request as long as the block lasts; a long one may be silent for long."""
        self._sizes.append(body_bytes)
        self._under_way[caller] += 1
        self._begun[caller] += 1
        self._change()
        try:
            yield
        finally:
            self._under_way[caller] -= 1
            self._sizes.remove(body_bytes)
            self._change()

    @contextmanager
    def wait(self, caller: str) -> Iterator[None]:
        """Count a request that waits for a seat in the engine, as long as the block lasts."""
        self._waiting[caller] += 1
        self._change()
        try:
            yield
        finally:
            self._waiting[caller] -= 1
            self._change()

    def count_requests(self) -> tuple[int, int]:
        """Return how many requests of others the engine has, and how many wait for a seat."""
        in_flight = self._under_way.total() - self._under_way[SUPERVISOR.id]
        return in_flight, self._waiting.total() - self._waiting[SUPERVISOR.id]

    def see_token(self) -> None:
        self._last_token = time.monotonic()
        self._change()

    def describe(self) -> GateCounts:
        """Return the counts as the supervisor gets them, without its own requests."""
        in_flight, waiting = self.count_requests()
        callers = (self._begun | self._waiting).keys() - {SUPERVISOR.id}
        return GateCounts(
            pid=os.getpid(),
            last_token=self._last_token,
            in_flight=in_flight,
            total=self._begun.total() - self._begun[SUPERVISOR.id],
            waiting=waiting,
            longest_body_bytes=max(self._sizes, default=0),
            by_key={
                caller: CallerCounts(
                    in_flight=self._under_way[caller],
                    total=self._begun[caller],
                    waiting=self._waiting[caller],
                )
                for caller in nlargest(MOST_KEYS, callers, key=self._measure_use)
            },
        )

    def _measure_use(self, caller: str) -> tuple[int, int]:
        return self._under_way[caller] + self._waiting[caller], self._begun[caller]

    def _change(self) -> None:
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(REPORT_WITHIN_SECONDS, self._send)

    def _send(self) -> None:
        self._timer = None
        self._report(self.describe())
