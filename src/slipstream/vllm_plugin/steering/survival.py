"""The chance that a drafted token survives: what the drafter says of it, held against what came.

A drafter's probability is no chance: it is calibrated by kind of content, position in the draft
and what was said. A request whose drafts do worse than that, as in a context beyond the drafter's
window, has a factor of its own.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from slipstream.steering.state import KINDS

EDGES = np.array((0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97))
_MIDDLES = (0.02, 0.07, 0.15, 0.27, 0.42, 0.57, 0.72, 0.85, 0.93, 0.99)
# Of a drafter that says nothing.
_UNSAID, _UNSAID_RATE = len(_MIDDLES), 0.6
# So many drafted tokens count as much as what was assumed before.
WEIGHT = 12.0
# Verified tokens after which an earlier one counts half.
HALF_LIFE = 4000.0
ROWS = 256


class Survival:
    """Calibrates the drafter's probabilities, and remembers what the latest drafts were worth."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        shape = (len(KINDS), longest, len(_MIDDLES) + 1)
        self._hits, self._trials = np.zeros(shape), np.zeros(shape)
        self._prior = np.array((*_MIDDLES, _UNSAID_RATE))
        self._rates = np.broadcast_to(self._prior, shape).copy()
        self._means = np.full(longest, _UNSAID_RATE)
        self._rows = np.zeros((ROWS, longest))
        self.seen = self._fresh = 0

    def calibrate(
        self, kinds: Sequence[int], factors: Sequence[float], chances: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return each token's survival by request and position, and the bins that it was in."""
        width = chances.shape[1]
        bins = np.searchsorted(EDGES, chances)
        bins[np.isnan(chances)] = _UNSAID
        rates = self._rates[np.asarray(kinds)[:, None], np.arange(width), bins]
        return np.minimum(rates * np.asarray(factors)[:, None], 0.999).cumprod(1), bins

    def remember(self, survival: np.ndarray) -> None:
        """Keep what drafts are worth; a narrow one is continued as drafts on average do."""
        count, width = survival.shape
        tail = self._means[width:].cumprod()
        rows = np.hstack((survival, survival[:, -1:] * tail))[-ROWS:]
        self._rows[(self.seen + np.arange(len(rows))) % ROWS] = rows
        self.seen += count

    def learn(self, kind: int, bins: Sequence[int], verified: int, accepted: int) -> None:
        """Learn from a draft of which so many tokens were verified and accepted."""
        for position in range(min(accepted + 1, verified)):
            self._trials[kind, position, bins[position]] += 1
            self._hits[kind, position, bins[position]] += position < accepted
        self._fresh += verified

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
        self._means = (hits.sum(1) + WEIGHT * self._means) / (trials.sum(1) + WEIGHT)

    def weigh(self, price: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return what each width verifies and gains per draft at a price, and its error."""
        if not self.seen:
            rows = np.full((1, self._longest), _UNSAID_RATE).cumprod(1)
        else:
            rows = self._rows[: min(self.seen, ROWS)]
        kept = rows > price
        gains = (rows * kept).cumsum(1)
        error = gains.std(0) / np.sqrt(len(rows)) if len(rows) > 1 else gains[0] * 0.5
        verified = kept.mean(0).cumsum()
        none = np.zeros(1)
        return tuple(np.concatenate((none, one)) for one in (verified, gains.mean(0), error))

    def list_calibration(self) -> list[tuple[str, int, float, float, float]]:
        """List kind, position, tokens verified, and the shares said and seen to be accepted."""
        said = (self._trials * self._prior).sum(2)
        found = []
        for kind, position in np.argwhere(self._trials.sum(2) >= 1):
            trials = self._trials[kind, position].sum()
            seen = self._hits[kind, position].sum() / trials
            figures = (float(trials), float(said[kind, position] / trials), float(seen))
            found.append((KINDS[kind], int(position) + 1, *figures))
        return found

    def forget(self) -> None:
        """Forget everything: another drafter makes the drafts."""
        self.__init__(self._longest)  # type: ignore[misc]

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
