"""Progress of a download or a hash: a bar on a terminal, else a line every few seconds."""

import time
from collections.abc import Callable
from threading import RLock
from typing import Any, Self

from slipstream.units import show_bytes, show_time

LINE_EVERY_SECONDS = 5.0
DRAW_EVERY_SECONDS = 0.1
BAR_WIDTH = 24

Report = Callable[[str], None]


class ByteProgress:
    """Reports bytes done of a total, from any thread; `draw` redraws one line of a terminal."""

    def __init__(
        self, report: Report, work: str, total_bytes: int, draw: Report | None = None
    ) -> None:
        self._report, self._draw, self._work, self._total = report, draw, work, total_bytes
        self._done, self._lock = 0, RLock()
        self._began = self._shown = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._draw:
            self._draw("")
        if self._total and kind is None:
            self._report(self._describe())

    def add(self, count: int) -> None:
        with self._lock:
            self.reach(self._done + count)

    def reach(self, done: int) -> None:
        with self._lock:
            self._done, now = done, time.monotonic()
            if now - self._shown < (DRAW_EVERY_SECONDS if self._draw else LINE_EVERY_SECONDS):
                return
            self._shown = now
            if self._draw:
                self._draw(self._draw_bar() + self._describe())
            else:
                self._report(self._describe())

    def _draw_bar(self) -> str:
        full = BAR_WIDTH * min(self._done, self._total) // max(self._total, 1)
        return f"[{'#' * full}{' ' * (BAR_WIDTH - full)}] "

    def _describe(self) -> str:
        rate = self._done / max(time.monotonic() - self._began, 1e-9)
        done, total = show_size(self._done), show_size(self._total)
        line = f"{self._work}: {done} of {total}, {rate / 1e6:.0f} MB/s"
        if not 0 < self._done < self._total:
            return line
        return f"{line}, {show_time((self._total - self._done) / rate)} left"


def make_hub_bar(progress: ByteProgress) -> type[Any]:
    """Return the progress class for huggingface_hub, which draws nothing itself.

    A snapshot has a bar of bytes received and one of bytes written, and with xet the first may
    stay behind: the one that is further counts.
    """
    from huggingface_hub.utils.tqdm import tqdm

    bars: list[Any] = []

    class Bar(tqdm):
        def __init__(self, *args: Any, **settings: Any) -> None:
            super().__init__(*args, **settings | {"disable": True})  # type: ignore[no-untyped-call]
            self.received = 0
            if settings.get("unit") == "B":
                bars.append(self)

        def update(self, n: float | None = 1) -> None:
            self.received += int(n or 0)
            progress.reach(max((bar.received for bar in bars), default=0))

    return Bar


def show_size(count: int) -> str:
    """Write a size in GiB, or in MiB if it is smaller."""
    return show_bytes(count) if count >= 1 << 30 else f"{count / 2**20:.1f} MiB"
