"""The flight recorder: the engine's last steps, in a file that outlives it.

It is a ring in mapped memory: a step costs a few writes to memory, and what was written is in the
file whatever kills the process. `slipstream.steering.flight` has its format, and reads it.
"""

import mmap
import os
import time
from contextlib import suppress
from pathlib import Path

from slipstream.steering.flight import HEADER, MAGIC, STEP

STEPS = 16_384
_MOST = 0xFFFF
_MOST_TOKENS = 0xFFFFFFFF


class FlightRecorder:
    """Keeps the last steps; without disk space only the record is lost."""

    def __init__(self, path: Path) -> None:
        self._next = 0
        try:
            self._ring: mmap.mmap | None = _map(path)
        except OSError:
            self._ring = None

    def add(
        self,
        *,
        running: int,
        waiting: int,
        prompt_tokens: int,
        verified: int,
        drafted: int,
        copied: int,
        tokens: int,
        memory_mib: int,
        seconds: float,
        cache: float,
    ) -> None:
        if self._ring is None:
            return
        place = HEADER.size + self._next % STEPS * STEP.size
        STEP.pack_into(
            self._ring,
            place,
            time.time(),
            self._next,
            min(running, _MOST),
            min(waiting, _MOST),
            max(0, min(prompt_tokens, _MOST_TOKENS)),
            min(verified, _MOST_TOKENS),
            min(drafted, _MOST),
            min(copied, _MOST),
            min(tokens, _MOST_TOKENS),
            memory_mib,
            seconds,
            cache,
        )
        self._next += 1


def _map(path: Path) -> mmap.mmap:
    """Make the file anew, with all of its room: a full disk is met here and not later.

    The one before it is kept: it may be of an engine that has just died.
    """
    with suppress(FileNotFoundError):
        path.replace(path.with_stem(f"{path.stem}-1"))
    size = HEADER.size + STEPS * STEP.size
    flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(path, flags, 0o600)
    try:
        os.posix_fallocate(file, 0, size)
        ring = mmap.mmap(file, size)
    finally:
        os.close(file)
    HEADER.pack_into(ring, 0, MAGIC, STEP.size, STEPS)
    return ring
