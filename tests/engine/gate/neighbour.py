"""The neighbour: what an ordinary caller feels while others do what they do."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.engine.gate.gated_server import wait_until

PROGRAM = Path(__file__).with_name("neighbour_process.py")
Window = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer to the neighbour; times in seconds, of the machine's monotonic clock."""

    began: float
    seconds: float
    first_token: float
    status: int


class Neighbour:
    """A process that asks all the time; a process, so that it shares no lock with a test."""

    def __init__(self, samples: Path) -> None:
        self._samples = samples

    def during(self, windows: Sequence[Window]) -> list[Sample]:
        """Return the answers to what was asked within any of the windows."""
        samples = self._read()
        return [one for one in samples if any(a <= one.began < b for a, b in windows)]

    def watch(self, seconds: float, work: Callable[[], object] | None = None) -> Window:
        """Let time pass, or do some work over and over; return the window that it took."""
        started = time.monotonic()
        while (left := started + seconds - time.monotonic()) > 0:
            if work is None:
                time.sleep(left)
            else:
                work()
        ended = time.monotonic()
        # The last answer of the window is still under way.
        wait_until(lambda: self._read()[-1].began >= ended, within_seconds=60)
        return started, ended

    def _read(self) -> list[Sample]:
        lines = self._samples.read_text().splitlines(keepends=True)
        return [Sample(*json.loads(line)) for line in lines if line.endswith("\n")]


@contextmanager
def run_neighbour(port: int, key: str, folder: Path) -> Iterator[Neighbour]:
    """Let the neighbour ask until the block ends."""
    samples = folder / "neighbour.jsonl"
    samples.touch()
    with subprocess.Popen(
        [sys.executable, str(PROGRAM), str(port), str(samples)],
        stdin=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        process.stdin.write(f"{key}\n")
        process.stdin.flush()
        wait_until(lambda: samples.stat().st_size > 0, within_seconds=60)
        try:
            yield Neighbour(samples)
        finally:
            process.stdin.close()
            process.wait(timeout=120)
