"""`Design`: which arm each block ran, in which round; and the order in which arms take turns.

A round is a row of a Williams square and then its mirror image: A B B A for two arms, A B C C B A
for three. So a steady drift does the same to every arm within a round. Over a cycle of rounds
(as many as there are arms, half as many if their number is even) every arm has every place equally
often, and follows every other arm equally often.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, pairwise
from math import sqrt
from statistics import fmean
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

LETTERS = "ABCDEFGH"

Pair = tuple[str, str]
"""Two arms; a ratio of speeds is of the second against the first."""


def list_rounds(arms: int, rounds: int) -> list[str]:
    """List each round's order of the arms, as letters."""
    steps = [(place + 1) // 2 * (-1) ** (place + 1) for place in range(arms)]
    cycle = arms // 2 if arms % 2 == 0 else arms
    rows = [
        "".join(LETTERS[(step + number % cycle) % arms] for step in steps)
        for number in range(rounds)
    ]
    return [row + row[::-1] for row in rows]


@dataclass(frozen=True)
class Design:
    """Which arm each block ran, and in which round.

    Effects are least squares with a level for each round, so no round has to be complete.
    """

    arms: tuple[str, ...]
    rounds: tuple[int, ...]

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(set(self.arms)))

    @cached_property
    def pairs(self) -> list[Pair]:
        return list(combinations(self.names, 2))

    @cached_property
    def contrasts(self) -> "Array":
        """Return for each pair the weights of the blocks that sum up to its effect."""
        import numpy as np

        weights = np.linalg.pinv(self._columns)[len(set(self.rounds)) :]
        weights = np.vstack([np.zeros(len(self.arms)), weights])
        places = {name: place for place, name in enumerate(self.names)}
        return np.array([weights[places[two]] - weights[places[one]] for one, two in self.pairs])

    @cached_property
    def residuals(self) -> "Array":
        """Return orthonormal weights of the blocks for all that neither round nor arm explains."""
        import numpy as np

        return np.linalg.svd(self._columns)[0][:, self._rank :]

    @property
    def degrees_of_freedom(self) -> int:
        return len(self.arms) - self._rank

    @property
    def compared(self) -> int:
        """Count the arms whose differences can be told from those of the rounds."""
        return self._rank - len(set(self.rounds)) + 1

    @property
    def information(self) -> float:
        """Return what a block's variance is divided by to be an effect's: 1 for A B B A."""
        return float(1 / (self.contrasts**2).sum(axis=1).max())

    def find_floor(self, values: Sequence[float]) -> float:
        """Return by how much an arm differs from itself a start later: the root mean square."""
        starts: dict[Hashable, list[float]] = {}
        for arm, number, value in zip(self.arms, self.rounds, values, strict=True):
            starts.setdefault((arm, number), []).append(value)
        steps = [later - value for same in starts.values() for value, later in pairwise(same)]
        return sqrt(fmean(step**2 for step in steps)) if steps else 0.0

    @cached_property
    def _columns(self) -> "Array":
        """Return 1 where a round ran, and where each arm but the first did."""
        import numpy as np

        rounds = [np.equal(self.rounds, number) for number in sorted(set(self.rounds))]
        arms = [np.equal(self.arms, name) for name in self.names[1:]]
        return np.array([*rounds, *arms], dtype=np.float64).T.reshape(len(self.arms), -1)

    @cached_property
    def _rank(self) -> int:
        import numpy as np

        return int(np.linalg.matrix_rank(self._columns)) if self.arms else 0
