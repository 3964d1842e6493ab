"""Progress of long work in one line: done, rate, remaining time."""

import time
from collections.abc import Callable


class Ticker:
    """Reports at most once per interval, and always at the end."""

    def __init__(
        self,
        report: Callable[[str], None],
        work: str,
        *,
        unit: str,
        every_seconds: float = 20,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._report, self._work, self._unit = report, work, unit
        self._every, self._clock = every_seconds, clock
        self._began = self._said = clock()
        self._first: int | None = None

    def show(self, done: int, total: int, note: str = "") -> None:
        """Print the progress; what was done before the first call is left out of the rate."""
        now = self._clock()
        if self._first is None:
            self._first, self._began = done, now
        if done < total and now - self._said < self._every:
            return
        self._said = now
        rate = (done - self._first) / max(now - self._began, 1e-9)
        left = f", {_describe_time((total - done) / rate)} left" if done < total and rate else ""
        speed = f", {_show_rate(rate)} {self._unit}/s" if rate else ""
        extra = f", {note}" if note else ""
        self._report(f"{self._work}: {done} of {total} {self._unit}{speed}{extra}{left}")


def _show_rate(rate: float) -> str:
    return f"{rate:.0f}" if rate >= 100 else f"{rate:.3g}"


def _describe_time(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
