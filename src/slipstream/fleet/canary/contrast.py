"""`Contrast`: do two arms differ otherwise than they did before, by a confidence sequence.

The differences between the arms come in windows of a few requests. A window of the trial less one
from before it is a gain; if nothing changed, a gain is as likely positive as negative, whatever the
arms are. For gains g that are symmetric around t, exp(l S - l^2 V / 2) with S the sum of g - t and
V that of its squares is a nonnegative supermartingale for every l (de la Pena 1999), and so is its
mixture over a normal distribution of l. By Ville's inequality it ever reaches 1 / error with a
probability of at most `error`, so the values of t for which it has not are a confidence sequence:
valid whenever one looks, and no variance has to be known or bounded.

Neighbours are alike: a machine has slow minutes and users come in sessions. So V is raised by how
much means over neighbouring windows varied before the trial. That part is not proven but simulated
(`experiments/simulate-canary`).
"""

from collections.abc import Sequence
from math import inf, log, sqrt
from statistics import fmean, pvariance

BLOCK_LENGTHS = (8, 32)
LEAST_BLOCKS = 4
# As long as there are fewer blocks.
UNKNOWN_LIKENESS = 1.5
# Standard errors by which what was measured may be too low.
CAUTION = 1.5
# The mixture is narrowest after about so many windows.
USUAL_WINDOWS = 60
FARTHEST = 16.0
_GRID = 1.25
_HALVINGS = 30


class Contrast:
    """Compares the differences of a trial with those before it."""

    def __init__(
        self, before: Sequence[float], *, window: int, most_windows: int, error: float
    ) -> None:
        windows = _average(before, window)
        self._before = _average(windows, max(1, len(windows) // most_windows))
        self._likeness = find_likeness(windows)
        spread = 2 * pvariance(windows) if len(windows) > 1 else 0.0
        self._scale = 1 / (USUAL_WINDOWS * spread) if spread > 0 else 1.0
        self._window, self._limit = window, log(1 / error)
        self._waiting: list[float] = []
        self.count, self._sum, self._squares = 0, 0.0, 0.0

    @property
    def windows_left(self) -> int:
        """How many more windows of the trial there is something to compare with."""
        return len(self._before) - self.count

    @property
    def mean(self) -> float | None:
        """By how much the difference is larger than before, None as long as nothing is known."""
        return self._sum / self.count if self.count else None

    @property
    def interval(self) -> tuple[float, float]:
        """The values of the mean that are not ruled out."""
        if not self.count:
            return -inf, inf
        mean = self._sum / self.count
        reach = self._find_reach()
        return mean - reach, mean + reach

    def add(self, difference: float) -> bool:
        """Take a difference of the trial, and say whether a window is complete with it."""
        self._waiting.append(difference)
        if len(self._waiting) < self._window or self.windows_left <= 0:
            return False
        gain = fmean(self._waiting) - self._before[self.count]
        self._waiting = []
        self.count += 1
        self._sum += gain
        self._squares += gain**2
        return True

    def find_side(self, value: float = 0.0) -> int:
        """Return 1 if the mean is shown to be above a value, -1 if below, 0 if neither."""
        if not self.count or self._find_evidence(value) < self._limit:
            return 0
        return 1 if self._sum / self.count > value else -1

    def _find_evidence(self, value: float) -> float:
        """Return the logarithm of the mixture for gains around this value."""
        total = self._sum - self.count * value
        squares = self._squares - 2 * value * self._sum + self.count * value**2
        spread = 1 + self._scale * self._likeness * max(0.0, squares)
        return self._scale * total**2 / (2 * spread) - log(spread) / 2

    def _find_reach(self) -> float:
        """Return how far from the mean the first value lies that is ruled out."""
        mean = self._sum / self.count
        far = 1 / 1024
        while self._find_evidence(mean + far) < self._limit:
            far *= _GRID
            if far > FARTHEST:
                return inf
        near = far / _GRID
        for _ in range(_HALVINGS):
            middle = (near + far) / 2
            if self._find_evidence(mean + middle) < self._limit:
                near = middle
            else:
                far = middle
        return far


def find_likeness(windows: Sequence[float]) -> float:
    """Return how much more means over neighbours vary than means over strangers would, at least 1.

    It is on the high side of what is known.
    """
    factors = [1.0]
    variance = pvariance(windows) if len(windows) > 1 else 0.0
    for length in BLOCK_LENGTHS:
        blocks = _average(windows, length)
        if len(blocks) < LEAST_BLOCKS or variance == 0:
            factors.append(UNKNOWN_LIKENESS)
        else:
            ratio = length * pvariance(blocks) / variance
            factors.append(ratio * (1 + CAUTION * sqrt(2 / len(blocks))))
    return max(factors)


def _average(values: Sequence[float], length: int) -> list[float]:
    """Return the means of whole runs of neighbours, beginning with the first."""
    whole = len(values) - len(values) % length
    return [fmean(values[begin : begin + length]) for begin in range(0, whole, length)]
