"""Sequential detection of a lasting fall of a mean, with a bounded probability of a false alarm.

Values are between 0 and 1, one per request: tokens within a request depend on each other, and two
requests of a kind differ by far more than a binomial would, so no distribution is assumed. Two
parts, both valid at every moment and not only at a number of requests that is fixed beforehand:

- `Baseline` is a lower confidence bound of a stream's mean so far: an empirical Bernstein
  confidence sequence (Howard, Ramdas, McAuliffe, Sekhon 2021), a union over a few weights. The
  highest bound so far counts, so a slow fall does not pull it down.
- `Detector` is an e-detector of Shiryaev-Roberts type (Shin, Ramdas, Rinaldo 2024). It bets on
  values below the baseline less a margin, beginning anew at every value, with a mixture of margins
  and stakes. As long as the mean stays above, its expectation after n values is at most n. So by
  Markov's inequality it exceeds c within n values with a probability of at most n / c. It may bet
  on several streams in turn, each against its own baseline: then what the mix of streams is, and
  how that changes, makes no difference.

Neighbours are alike where users come in sessions, and a session with a low level would pass for a
change. So the variance is raised to that of means over blocks of neighbours (`Likeness`), in the
baseline and in the stakes. For independent values the bounds above hold all the same.

A CUSUM of likelihood ratios would be faster if the distribution were known. It is not, and an
estimated one alarms for its own error sooner or later, which in 20,000 requests is certain.
"""

from dataclasses import dataclass
from math import inf, log, pi, sqrt
from typing import NamedTuple

# At most this share of runs of so many requests has a false alarm, over all that is watched.
FALSE_ALARMS = 0.01
REQUESTS = 20_000
# Half of it is for baselines that are too high, half for what is seen against right ones.
BASELINE_ERROR = DETECTION_ERROR = FALSE_ALARMS / 2
LEAST_BASELINE = 32
RECOVERY_VALUES = 100
BLOCK_LENGTHS = (16, 64)
LEAST_BLOCKS = 5
# As long as there are fewer blocks.
UNKNOWN_LIKENESS = 3.0

_WEIGHTS = (0.6, 0.4, 0.2, 0.1, 0.05)
_PENALTIES = tuple(-log(1 - weight) - weight for weight in _WEIGHTS)
_STAKES = (0.9, 0.3)
_UPDATE_EVERY = 8


def find_threshold(values_per_request: int) -> float:
    """Return the threshold of detectors that together get at most so many values per request."""
    return values_per_request * REQUESTS / DETECTION_ERROR


def find_baseline_error(number: int) -> float:
    """Return the error of the n-th baseline, from 1 on; those of all add up to what is allowed."""
    return BASELINE_ERROR * 6 / (pi * number) ** 2


class ChangeMargin(NamedTuple):
    """How far a mean may fall without a report: by a share of it, or by a step."""

    share: float = 0.0
    step: float = 0.0


class Bet(NamedTuple):
    """A bound that the mean may have fallen below, and the highest stake on that."""

    bound: float
    stake: float


class Likeness:
    """How much more means over neighbours vary than means over strangers would, by their number.

    Streams of a family share it: one alone would need ten times as long to tell.
    """

    def __init__(self) -> None:
        self._squares = [0.0] * len(BLOCK_LENGTHS)
        self._expected = [0.0] * len(BLOCK_LENGTHS)
        self._blocks = [0] * len(BLOCK_LENGTHS)

    def add(self, place: int, squares: float, expected: float) -> None:
        """Learn from a block of this length: its deviation, and the one expected by chance."""
        self._squares[place] += squares
        self._expected[place] += expected
        self._blocks[place] += 1

    def find_factor(self) -> float:
        """Return the factor of the variance, on the high side of what is known."""
        factors = [1.0]
        for squares, expected, blocks in zip(
            self._squares, self._expected, self._blocks, strict=True
        ):
            if blocks < LEAST_BLOCKS:
                factors.append(UNKNOWN_LIKENESS)
            elif expected > 0:
                factors.append(squares / expected * (1 + 2 * sqrt(2 / blocks)))
        return max(factors)


class Baseline:
    """A lower confidence bound of the mean of values in [0, 1] that holds at all times.

    `mean` and the variance are those from when the bound was found, not of a fall since then.
    """

    def __init__(self, error: float, likeness: Likeness | None = None) -> None:
        self.count, self.lower, self.mean = 0, 0.0, 0.5
        self._likeness = likeness or Likeness()
        self._variance = 0.25
        self._sum = self._squares = 0.0
        self._block_sums = [0.0] * len(BLOCK_LENGTHS)
        self._log = log(len(_WEIGHTS) / error)

    def add(self, value: float) -> None:
        self._squares += (value - (self._sum + 0.5) / (self.count + 1)) ** 2
        self._sum += value
        self.count += 1
        for place, length in enumerate(BLOCK_LENGTHS):
            self._block_sums[place] += value
            if self.count % length == 0:
                self._end_block(place, length)
        if self.count % _UPDATE_EVERY == 0:
            self._update()

    def find_bets(self, margins: tuple[ChangeMargin, ...]) -> tuple[Bet, ...]:
        """Return what can be bet on, nothing as long as too little is known.

        Above the stake, neighbours that are alike could win by chance.
        """
        if self.count < LEAST_BASELINE:
            return ()
        bets = []
        for margin in margins:
            bound = min(self.lower, self.mean * (1 - margin.share) - margin.step)
            if bound > 0:
                fair = (self.mean - bound) / self._variance if self._variance else inf
                bets.append(Bet(bound, min(1 / (1 - bound), fair)))
        return tuple(bets)

    def _end_block(self, place: int, length: int) -> None:
        """Compare a block's mean with that of all values before it."""
        total, self._block_sums[place] = self._block_sums[place], 0.0
        if (earlier := self.count - length) >= LEAST_BASELINE:
            apart = total / length - (self._sum - total) / earlier
            own = self._squares / self.count
            self._likeness.add(place, apart**2, own * (1 / length + 1 / earlier))

    def _update(self) -> None:
        variance = self._squares / self.count * self._likeness.find_factor()
        spread = variance * self.count
        width = min(
            (self._log + penalty * spread) / weight
            for weight, penalty in zip(_WEIGHTS, _PENALTIES, strict=True)
        )
        lower = (self._sum - width) / self.count
        if lower > self.lower:
            self.lower, self.mean, self._variance = lower, self._sum / self.count, variance


@dataclass(frozen=True, slots=True)
class Change:
    """A fall: the expected and the observed mean, over a number of values.

    `times` counts how often it was seen, each time by new values alone.
    """

    before: float
    after: float
    values: int
    times: int


class Detector:
    """Adds up the evidence that means have fallen below their bounds."""

    def __init__(self, threshold: float, margins: int) -> None:
        self.change: Change | None = None
        self._threshold = threshold
        self._evidence = [0.0] * (margins * len(_STAKES))
        self._fallen = 0.0
        self._since = [0.0, 0.0, 0.0]
        self._latest = [0.0, 0.0]

    def add(self, value: float, bets: tuple[Bet, ...], figures: tuple[float, float]) -> bool:
        """Add a value of a stream, and return whether `change` has begun, changed or ended.

        `figures` are what was expected and what came, in the unit in which a change is reported.
        """
        if not bets:
            return False
        self._follow(bets[0].bound - value, figures)
        if self._bet(value, bets) > self._threshold:
            self._alarm()
            return True
        return self.change is not None and self._recover(value, bets[0].bound)

    def _bet(self, value: float, bets: tuple[Bet, ...]) -> float:
        """Return the evidence with this value; a margin that leaves no bound has no say in it."""
        evidence, place = self._evidence, 0
        for bound, stake in bets:
            scaled = (bound - value) * stake
            for share in _STAKES:
                evidence[place] = (1 + evidence[place]) * (1 + share * scaled)
                place += 1
        return sum(evidence) / len(evidence)

    def _follow(self, below: float, figures: tuple[float, float]) -> None:
        """Track the means since the most likely start of the fall, by a CUSUM."""
        self._fallen += below
        if self._fallen <= 0:
            self._fallen, self._since = 0.0, [0.0, 0.0, 0.0]
        else:
            for place, amount in enumerate((*figures, 1.0)):
                self._since[place] += amount

    def _alarm(self) -> None:
        expected, came, count = self._since
        times = self.change.times + 1 if self.change else 1
        self.change = Change(expected / count, came / count, int(count), times)
        self._begin_anew()

    def _recover(self, value: float, bound: float) -> bool:
        """End a change if the latest values are again above their bounds."""
        self._latest[0] += value - bound
        self._latest[1] += 1
        if self._latest[1] < RECOVERY_VALUES:
            return False
        above, self._latest = self._latest[0], [0.0, 0.0]
        if above < 0:
            return False
        self.change = None
        self._begin_anew()
        return True

    def _begin_anew(self) -> None:
        self._evidence = [0.0] * len(self._evidence)
        self._fallen, self._since, self._latest = 0.0, [0.0, 0.0, 0.0], [0.0, 0.0]
