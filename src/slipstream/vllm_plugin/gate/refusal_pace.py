"""The rate at which one caller is refused, since refusing takes time from others."""

import asyncio
import time
from collections.abc import Callable

AT_ONCE = 100
LONGEST_WAIT_SECONDS = 5.0


class RefusalPace:
    """Delays refusals: the first hundred are immediate, then a fixed number per second."""

    def __init__(self, per_second: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds_each = 1 / per_second
        self._clock = clock
        self._next: dict[str, float] = {}

    def follow(self, per_second: float) -> None:
        """Refuse at another pace from now on."""
        self._seconds_each = 1 / per_second

    def place(self, caller: str) -> float:
        """Return the seconds that the next refusal of a caller has to wait."""
        now = self._clock()
        earliest = now - (AT_ONCE - 1) * self._seconds_each
        due = max(self._next.get(caller, earliest), earliest)
        due = min(due, now + LONGEST_WAIT_SECONDS)
        self._next[caller] = due + self._seconds_each
        return max(due - now, 0)

    async def wait(self, caller: str) -> None:
        """Wait until the next refusal of a caller may be sent."""
        if seconds := self.place(caller):
            await asyncio.sleep(seconds)
