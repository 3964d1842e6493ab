"""`Design`: which arm each block ran, in which round; and the order in which arms take turns.

A round is a row of a Williams square and then its mirror image: A B B A for two arms, A B C C B A
for three. So a steady drift does the same to every arm within a round. Over a cycle of rounds
(as many as there are arms, half as many if their number is even) every arm has every place equally
often, and follows every other arm equally often.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, pairwise
from math import sqrt
from operator import mul, sub
from statistics import fmean

LETTERS = "ABCDEFGH"
NEGLIGIBLE = 1e-9

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
    """Which arm each block ran, and in which round; a round of one arm is about noise only.

    Effects are least squares with a level for each round, so no round has to be complete.
    """

    arms: tuple[str, ...]
    rounds: tuple[int, ...]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Return the arms by their letters."""
        return tuple(sorted(set(self.arms)))

    @cached_property
    def axes(self) -> list[list[float]]:
        """Return orthonormal weights of the blocks that span the differences between arms."""
        return _orthogonalize(self._columns.values())

    @cached_property
    def contrasts(self) -> dict[Pair, list[float]]:
        """Return the weights of the blocks that sum up to a pair's effect."""
        return {
            (first, second): list(map(sub, self._weights[second], self._weights[first]))
            for first, second in combinations(self.names, 2)
        }

    @cached_property
    def loadings(self) -> dict[str, list[float]]:
        """Return how noise along each axis moves an arm's effect against the first."""
        return {
            name: [multiply(weights, axis) for axis in self.axes]
            for name, weights in self._weights.items()
        }

    @property
    def information(self) -> float:
        """Return what a block's variance is divided by to be an effect's: 1 for A B B A."""
        return 1 / max(multiply(contrast, contrast) for contrast in self.contrasts.values())

    @property
    def degrees_of_freedom(self) -> int:
        """Count the degrees of freedom that are left for noise."""
        return len(self.arms) - len(set(self.rounds)) - len(self.axes)

    def estimate(self, pair: Pair, values: Sequence[float]) -> float:
        """Return by how much a pair's second arm is above its first."""
        return multiply(self.contrasts[pair], values)

    def find_residuals(self, values: Sequence[float]) -> list[float]:
        """Return what neither round nor arm explains of each block's value."""
        return _remove(self._center(values), self.axes)

    def find_floor(self, values: Sequence[float]) -> float:
        """Return by how much an arm differs from itself a start later: the root mean square."""
        starts: dict[Hashable, list[float]] = {}
        for arm, number, value in zip(self.arms, self.rounds, values, strict=True):
            starts.setdefault((arm, number), []).append(value)
        steps = [later - value for same in starts.values() for value, later in pairwise(same)]
        return sqrt(fmean(step**2 for step in steps)) if steps else 0.0

    @cached_property
    def _weights(self) -> dict[str, list[float]]:
        """Return the weights of the blocks that sum up to an arm's effect against the first."""
        weights = {self.names[0]: [0.0] * len(self.arms)}
        for name, column in self._columns.items():
            others = [other for key, other in self._columns.items() if key != name]
            own = _remove(column, _orthogonalize(others))
            weights[name] = [part / multiply(own, own) for part in own]
        return weights

    @cached_property
    def _columns(self) -> dict[str, list[float]]:
        """Return 1 where an arm ran, less the mean of the round, for each arm but the first."""
        return {
            name: self._center([float(arm == name) for arm in self.arms]) for name in self.names[1:]
        }

    def _center(self, values: Sequence[float]) -> list[float]:
        groups: dict[int, list[float]] = {}
        for number, value in zip(self.rounds, values, strict=True):
            groups.setdefault(number, []).append(value)
        return [
            value - fmean(groups[number]) for number, value in zip(self.rounds, values, strict=True)
        ]


def multiply(left: Iterable[float], right: Iterable[float]) -> float:
    """Return the scalar product."""
    total: float = sum(map(mul, left, right))
    return total


def _orthogonalize(columns: Iterable[Sequence[float]]) -> list[list[float]]:
    """Return orthonormal vectors with the same span."""
    axes: list[list[float]] = []
    for column in columns:
        left = _remove(column, axes)
        length = sqrt(multiply(left, left))
        if length > NEGLIGIBLE:
            axes.append([part / length for part in left])
    return axes


def _remove(values: Sequence[float], axes: Iterable[Sequence[float]]) -> list[float]:
    """Return the values less their parts along orthonormal axes."""
    left = list(values)
    for axis in axes:
        size = multiply(left, axis)
        left = [value - size * part for value, part in zip(left, axis, strict=True)]
    return left
