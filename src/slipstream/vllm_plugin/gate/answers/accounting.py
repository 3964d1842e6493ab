"""Counts of open requests for the supervisor: one small file per API process.

It shows a change within half a second, even if nothing happens after it: a request that
hangs is in it. That nothing is under way is shown at once, or 50 ms after the last time.
Times are of the monotonic clock, which all processes of a machine share.
"""

import asyncio
import errno
import json
import logging
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slipstream.vllm_plugin.gate.callers.key_ring import SUPERVISOR

WRITE_EVERY_SECONDS = 0.5
WHEN_IDLE_SECONDS = 0.05

_log = logging.getLogger(__name__)


class Accounting:
    """Counts requests from their admission to their end, however they end."""

    def __init__(self, folder: str | None) -> None:
        self._folder = None if folder is None else Path(folder)
        self._under_way: Counter[str] = Counter()
        self._begun: Counter[str] = Counter()
        self._waiting: Counter[str] = Counter()
        self._sizes: list[int] = []
        self._last_token: float | None = None
        self._written = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._failed = False

    @contextmanager
    def count(self, caller: str, body_bytes: int) -> Iterator[None]:
        """Count a request as long as the block lasts; a long one may be silent for long."""
        self._sizes.append(body_bytes)
        self._under_way[caller] += 1
        self._begun[caller] += 1
        self._tell_within(WRITE_EVERY_SECONDS)
        try:
            yield
        finally:
            self._under_way[caller] -= 1
            self._sizes.remove(body_bytes)
            if self._under_way.total():
                self._tell_within(WRITE_EVERY_SECONDS)
            elif time.monotonic() - self._written >= WHEN_IDLE_SECONDS:
                self.write()
            else:
                self._tell_within(WHEN_IDLE_SECONDS)

    @contextmanager
    def wait(self, caller: str) -> Iterator[None]:
        """Count a request that waits for a seat in the engine, as long as the block lasts."""
        self._waiting[caller] += 1
        self._tell_within(WRITE_EVERY_SECONDS)
        try:
            yield
        finally:
            self._waiting[caller] -= 1
            self._tell_within(WRITE_EVERY_SECONDS)

    def count_requests(self) -> tuple[int, int]:
        """Return how many requests of others the engine has, and how many wait for a seat."""
        in_flight = self._under_way.total() - self._under_way[SUPERVISOR.id]
        return in_flight, self._waiting.total() - self._waiting[SUPERVISOR.id]

    def see_token(self) -> None:
        """Note that the engine produced output."""
        self._last_token = time.monotonic()
        if self._timer is None:
            self._tell_within(WRITE_EVERY_SECONDS)

    def write(self) -> None:
        """Replace the file of this process."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._written = time.monotonic()
        if self._folder is None:
            return
        try:
            self._replace(self._folder / f"{os.getpid()}.json")
        except OSError as fault:
            if not self._failed:
                _log.error("what is under way cannot be written down: %s", fault)
            self._failed = True

    def _tell_within(self, seconds: float) -> None:
        """Schedule a write, a minimum time after the last one, without delaying requests."""
        due = self._written + seconds
        if self._timer is not None:
            if self._due <= due:
                return
            self._timer.cancel()
        wait = max(WHEN_IDLE_SECONDS, due - time.monotonic())
        self._due = due
        self._timer = asyncio.get_running_loop().call_later(wait, self.write)

    def _replace(self, path: Path) -> None:
        document = json.dumps(self._describe()).encode()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.partial")
        try:
            partial.write_bytes(document)
            partial.replace(path)
        except OSError as fault:
            partial.unlink(missing_ok=True)
            if fault.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            _overwrite(path, document)

    def _describe(self) -> dict[str, object]:
        return {
            "pid": os.getpid(),
            "written": self._written,
            "last_token": self._last_token,
            "in_flight": self._under_way.total(),
            "total": self._begun.total(),
            "waiting": self._waiting.total(),
            "longest_body_bytes": max(self._sizes, default=0),
            "by_key": {
                caller: {
                    "in_flight": self._under_way[caller],
                    "total": self._begun[caller],
                    "waiting": self._waiting[caller],
                }
                for caller in self._begun | self._waiting
            },
        }


def _overwrite(path: Path, document: bytes) -> None:
    """Write over the file, filled up with spaces: on a full disk its own room is still there."""
    with path.open("r+b", buffering=0) as file:
        held = os.fstat(file.fileno())
        if len(document) > held.st_blocks * 512:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        file.write(document.ljust(held.st_size))
