"""The chance that a drafted token survives: the drafter's probability, calibrated by what came.

A drafter's probability is no chance: it is calibrated by kind of content, position in the draft
and probability. A request whose drafts do worse than that, as in a context beyond the drafter's
window, has a factor of its own.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from slipstream.steering.state import KINDS, Calibration

EDGES = np.array((0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97))
# What was seen of 5,016 drafts in each bin, before an engine has seen its own (measurements.md).
_SEEN = (0.05, 0.09, 0.2, 0.29, 0.4, 0.48, 0.63, 0.72, 0.83, 0.97)
# The middle of the drafter's probabilities in each.
_PREDICTED = (0.03, 0.07, 0.15, 0.27, 0.42, 0.57, 0.72, 0.85, 0.94, 0.99)
# Of a drafter without probabilities.
NO_PROBABILITY, DEFAULT_RATE = len(_SEEN), 0.6
# So many drafted tokens count as much as what was assumed before.
WEIGHT = 12.0
# Verified tokens after which an earlier one counts half.
HALF_LIFE = 4000.0
ROWS = 128
# Steps after which what a draft was worth counts half.
ROW_HALF_LIFE = 200.0


class Survival:
    """Calibrates the drafter's probabilities, and remembers what the latest drafts were worth."""

    def __init__(self, longest: int) -> None:
        longest = self.longest = max(1, longest)
        shape = (len(KINDS), longest, len(_SEEN) + 1)
        self._hits, self._trials = np.zeros(shape), np.zeros(shape)
        self._prior = np.array((*_SEEN, DEFAULT_RATE))
        self._rates = np.broadcast_to(self._prior, shape).copy()
        self._rates_by_position = np.full(longest, DEFAULT_RATE)
        self._rows = np.zeros((len(KINDS), ROWS, longest))
        self._drafted_at = np.zeros((len(KINDS), ROWS))
        self._seen = np.zeros(len(KINDS), int)
        self.steps = 0
        # Open requests by kind.
        self.open = np.zeros(len(KINDS), int)
        self._fresh = 0

    def calibrate(
        self, kinds: Sequence[int], factors: Sequence[float], chances: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return each token's survival by request and position, and the bins that it was in."""
        width = chances.shape[1]
        bins = np.searchsorted(EDGES, chances)
        bins[np.isnan(chances)] = NO_PROBABILITY
        rates = self._rates[np.asarray(kinds)[:, None], np.arange(width), bins]
        return np.minimum(rates * np.asarray(factors)[:, None], 0.999).cumprod(1), bins

    def remember(self, kinds: Sequence[int], survival: np.ndarray) -> None:
        """Keep what drafts are worth; a narrow one is continued as drafts on average do."""
        tail = self._rates_by_position[survival.shape[1] :].cumprod()
        for kind, row in zip(kinds, np.hstack((survival, survival[:, -1:] * tail)), strict=True):
            place = self._seen[kind] % ROWS
            self._rows[kind, place], self._drafted_at[kind, place] = row, self.steps
            self._seen[kind] += 1

    def learn(
        self, kinds: np.ndarray, bins: np.ndarray, verified: np.ndarray, accepted: np.ndarray
    ) -> None:
        """Learn from drafts: how many tokens of each were verified, and how many accepted."""
        places = np.arange(bins.shape[1])
        reached = places < np.minimum(accepted + 1, verified)[:, None]
        cells = (kinds[:, None] * self.longest + places) * (len(_SEEN) + 1) + bins
        right = reached & (places < accepted[:, None])
        for counts, of in ((self._trials, reached), (self._hits, right)):
            counts += np.bincount(cells[of], minlength=counts.size).reshape(counts.shape)
        self._fresh += int(verified.sum())

    def settle(self) -> None:
        """Make the rates anew from all that was learnt."""
        fading = 0.5 ** (self._fresh / HALF_LIFE)
        self._hits *= fading
        self._trials *= fading
        self._fresh = 0
        hits, trials = self._hits.sum(0), self._trials.sum(0)
        by_bin = (hits.sum(0) + WEIGHT * self._prior) / (trials.sum(0) + WEIGHT)
        by_position = (hits + WEIGHT * by_bin) / (trials + WEIGHT)
        self._rates = (self._hits + WEIGHT * by_position) / (self._trials + WEIGHT)
        self._rates_by_position = (hits.sum(1) + WEIGHT * self._rates_by_position) / (
            trials.sum(1) + WEIGHT
        )

    def weigh(self, price: float) -> np.ndarray:
        """Return what each width verifies and gains per draft at a price, and its error.

        It is of the kinds that are open now: what others were worth says little of them.
        """
        open_now = self.open if self.open.any() else np.ones_like(self.open)
        shares = open_now / open_now.sum()
        found = sum(shares[kind] * self._weigh_kind(kind, price) for kind in np.flatnonzero(shares))
        return np.hstack((np.zeros((3, 1)), found))

    def _weigh_kind(self, kind: int, price: float) -> np.ndarray:
        count = min(self._seen[kind], ROWS)
        if not count:
            rows = self._rates[kind, :, NO_PROBABILITY].cumprod()
            gains = (rows * (rows > price)).cumsum()
            error = gains / np.sqrt(4 + self._trials[kind, 0, NO_PROBABILITY])
            return np.stack(((rows > price).cumsum(), gains, error))
        rows, ages = self._rows[kind, :count], self.steps - self._drafted_at[kind, :count]
        weights = 0.5 ** ((ages - ages.min()) / ROW_HALF_LIFE)
        evidence = 0.5 ** (ages.min() / ROW_HALF_LIFE) * weights.sum()
        weights /= weights.sum()
        kept = rows > price
        gains = (rows * kept).cumsum(1)
        mean = weights @ gains
        # The fewer and older they are, the rather may they be as good as drafts on average.
        spread = weights @ (gains - mean) ** 2 + self._rates_by_position.cumprod().cumsum() ** 2
        error = np.sqrt(spread / (1 + evidence))
        return np.stack(((weights @ kept).cumsum(), mean, error))

    def list_calibration(self) -> list[Calibration]:
        """List the drafter's predicted acceptance of its tokens, and the measured one."""
        trials, hits = self._trials[:, :, :NO_PROBABILITY], self._hits[:, :, :NO_PROBABILITY]
        counts, predicted, hit = trials.sum(2), trials @ np.array(_PREDICTED), hits.sum(2)
        return [
            Calibration(
                kind=KINDS[kind],
                position=position + 1,
                tokens=round(float(counts[kind, position]), 1),
                predicted=round(float(predicted[kind, position] / counts[kind, position]), 4),
                measured=round(float(hit[kind, position] / counts[kind, position]), 4),
            )
            for kind, position in np.argwhere(counts >= 1).tolist()
        ]

    def forget(self) -> None:
        """Forget everything: another drafter makes the drafts."""
        open_now = self.open
        self.__init__(self.longest)  # type: ignore[misc]
        self.open = open_now

    def dump(self) -> dict[str, Any]:
        return {"hits": self._hits.round(2).tolist(), "trials": self._trials.round(2).tolist()}

    def load(self, found: Any) -> None:
        """Begin with what an earlier engine has learnt of the same drafter."""
        hits, trials = (np.asarray(found[name], float) for name in ("hits", "trials"))
        if hits.shape != self._hits.shape or trials.shape != self._trials.shape:
            raise ValueError("not the survival of this drafter's tokens")
        if not (np.isfinite(trials).all() and (hits >= 0).all() and (hits <= trials + 0.01).all()):
            raise ValueError("not counts of accepted tokens")
        self._hits, self._trials = hits, trials
        self.settle()
