"""The cost and yield of a step by batch and draft length, learnt from the steps themselves.

Goodput decides, not acceptance: at eight sequences drafts that are accepted as often as at one can
cost more than they bring.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

# A stall of the machine says nothing about a length.
MOST_OVER = 1.6
# A cell that was measured so often moves by itself no more: the pace does.
PACED_STEPS = 8
PACE_SHARE = 0.05
LEAST_SHARE = 0.002
# After so many steps without it, a cell counts as measured a few times.
STALE_STEPS = 200
STALE_COUNT = 10
# Of a cell that is known, the line learns from one step in so many.
FIT_EVERY = 8
FORGETTING = 0.998
# Drafts after which a position's rate counts half.
HALF_LIFE_DRAFTS = 150.0
_FADING = 0.5 ** (1 / HALF_LIFE_DRAFTS)
_FEATURES = 4


def bucket(sequences: int) -> int:
    """Return the batch that stands for this one: exact up to eight, then in steps of a quarter."""
    if sequences <= 8:
        return sequences
    step = 1 << (sequences.bit_length() - 3)
    return sequences // step * step


@dataclass(slots=True)
class Cell:
    """The mean seconds of one batch and length, at the usual pace."""

    seconds: float
    steps: int
    last: int = 0

    def learn(self, seconds: float, now: int) -> None:
        """Learn from a step; a far shorter one shows that the first few were stalls."""
        if now - self.last > STALE_STEPS:
            self.steps = min(self.steps, STALE_COUNT)
        self.steps += 1
        self.last = now
        if self.steps <= 3 and seconds < self.seconds / MOST_OVER:
            self.seconds = seconds
        else:
            seconds = min(seconds, MOST_OVER * self.seconds)
            self.seconds += (seconds - self.seconds) * max(1 / self.steps, LEAST_SHARE)


class StepCosts:
    """Seconds of a step by sequences and draft length.

    A line through four features carries what some cells have seen to the others. `pace` follows
    what slows every step alike, such as a longer context or a busy machine, so lengths that were
    measured at different times can be compared.
    """

    def __init__(self) -> None:
        self.cells: dict[tuple[int, int], Cell] = {}
        self.pace = 1.0
        self.steps = self._longest = 0
        self._weights = [0.0] * _FEATURES
        self._covariance = [
            [1e6 if row == column else 0.0 for column in range(_FEATURES)]
            for row in range(_FEATURES)
        ]

    def observe(self, sequences: int, length: int, seconds: float) -> None:
        """Learn from a step in which every sequence verified and drafted this length."""
        self.steps += 1
        self._longest = max(self._longest, length)
        key = (bucket(sequences), length)
        cell = self.cells.get(key)
        if cell is None:
            cell = self.cells[key] = Cell(seconds / self.pace, steps=0)
        elif cell.steps >= PACED_STEPS:
            seconds = min(seconds, MOST_OVER * self.pace * cell.seconds)
            self.pace *= 1 + PACE_SHARE * (seconds / (self.pace * cell.seconds) - 1)
        usual = seconds / self.pace
        if cell.steps < PACED_STEPS or self.steps % FIT_EVERY == 0:
            self._fit(sequences, length, usual)
        cell.learn(usual, self.steps)

    def expect(self, sequences: int, length: int) -> float:
        """Return the seconds that such a step takes now.

        A step does less than one with longer drafts: one that seems to take longer was met by
        stalls, and would never be tried again.
        """
        if (cell := self.cells.get((bucket(sequences), length))) is not None:
            return self.pace * min(cell.seconds, *self._list_longer(sequences, length))
        line = sum(
            weight * feature
            for weight, feature in zip(self._weights, _describe(sequences, length), strict=True)
        )
        # A line is far off at its edges until it has seen enough.
        # Listed at once: a report is made in another thread while steps add cells.
        lowest = min((one.seconds for one in list(self.cells.values())), default=1e-3)
        return self.pace * max(line, lowest / 2)

    def count(self, sequences: int, length: int) -> int:
        cell = self.cells.get((bucket(sequences), length))
        return cell.steps if cell else 0

    def age(self, sequences: int, length: int) -> int | None:
        """Return how many steps ago the last of this kind was, None if there was none."""
        cell = self.cells.get((bucket(sequences), length))
        return self.steps - cell.last if cell else None

    def _list_longer(self, sequences: int, length: int) -> Iterator[float]:
        """Yield the seconds of well-known steps with longer drafts, and infinity."""
        yield inf
        for longer in range(length + 1, self._longest + 1):
            cell = self.cells.get((bucket(sequences), longer))
            if cell is not None and cell.steps >= PACED_STEPS:
                yield cell.seconds

    def _fit(self, sequences: int, length: int, seconds: float) -> None:
        """Recursive least squares of the relative error, the latest steps counting most."""
        row = [feature / seconds for feature in _describe(sequences, length)]
        covariance = self._covariance
        gain = [sum(covariance[i][j] * row[j] for j in range(_FEATURES)) for i in range(_FEATURES)]
        scale = FORGETTING + sum(row[i] * gain[i] for i in range(_FEATURES))
        error = 1 - sum(self._weights[i] * row[i] for i in range(_FEATURES))
        for i in range(_FEATURES):
            self._weights[i] += gain[i] / scale * error
        for i in range(_FEATURES):
            for j in range(_FEATURES):
                less = covariance[i][j] - gain[i] * gain[j] / scale
                covariance[i][j] = min(less / FORGETTING, 1e6) if i == j else less / FORGETTING


def _describe(sequences: int, length: int) -> tuple[float, float, float, float]:
    """A fixed part, the target's tokens, and of drafting a fixed part and one per sequence."""
    drafts = float(length > 0)
    return 1.0, float(sequences * (length + 1)), drafts, drafts * sequences


class Yield:
    """Tokens per step by draft length, from the conditional acceptance of each position."""

    def __init__(self, longest: int, rate: float = 0.6) -> None:
        self._hits = [rate] * longest
        self._trials = [1.0] * longest
        self._seen: dict[tuple[int, int], int] = {}

    def observe(self, drafted: int, accepted: int) -> None:
        """Add one draft; the drafts of a step are learnt from together."""
        seen = self._seen
        seen[drafted, accepted] = seen.get((drafted, accepted), 0) + 1

    def learn(self) -> None:
        for (drafted, accepted), drafts in self._seen.items():
            fading = _FADING**drafts
            for position in range(min(accepted + 1, drafted)):
                hits = drafts if accepted > position else 0
                self._trials[position] = self._trials[position] * fading + drafts
                self._hits[position] = self._hits[position] * fading + hits
        self._seen.clear()

    def expect(self, length: int) -> float:
        """Return the tokens that a sequence gets from a step with drafts of this length."""
        tokens = reached = 1.0
        for position in range(length):
            reached *= self._hits[position] / self._trials[position]
            tokens += reached
        return tokens
