"""The uncertainty of a speed-up that was measured in few starts with few prompts.

Everything is in logarithms of speed. What chance may have done is drawn again, in two parts:

- The starts. Least squares takes each round's level and the arm out of every block, so drift from
  round to round does not count. What is left moves all cells of a start at once, those of one
  concurrency, or one cell; each is a Student t with the degrees of freedom there are (2 for one
  A B B A). A bootstrap of two starts an arm has four outcomes and is far too sure. What moves
  all cells at once is drawn once for all, and so costs no correction for their number.
- The prompts. A bootstrap whose weights are exponential and the same at every concurrency and for
  every arm, with the spread of a t: resampling few prompts is too sure as well.

The half-widths hold for all pairs of arms in all cells together: each is what 95 % of its own draws
need, widened by the one factor that 95 % of the draws need in their worst contrast.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf, sqrt
from operator import add, sub
from random import Random
from statistics import fmean
from typing import TypeVar

from slipstream.measuring.comparing.design import Design, Pair, multiply

CONFIDENCE = 0.95

Cell = tuple[str, int]
"""A kind of prompt at a concurrency."""
Row = tuple[str | None, int]
"""A cell, or all kinds at a concurrency; each kind counts the same, however many its prompts."""
Contrast = tuple[Pair, Row]
"""Two arms in a row."""
Values = Mapping[Cell, Mapping[str, Sequence[float]]]
"""By cell and prompt, one value of each block."""
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Level:
    """Groups of cells that a start moves together, with the standard deviation of a block."""

    group_of: Mapping[Cell, Hashable]
    spreads: Mapping[Hashable, float]
    degrees_of_freedom: float


@dataclass(frozen=True, slots=True)
class Noise:
    """What chance does to the effects: the starts level by level, and the prompts.

    `prompts` has, by pair and cell, each prompt's effect less the cell's; `lasting` is the share
    of their variance that is the prompts' own and not that of their requests: more blocks leave
    it.
    """

    design: Design
    levels: tuple[Level, ...]
    prompts: Mapping[tuple[Pair, Cell], Mapping[str, float]]
    lasting: Mapping[Cell, float]

    def foresee(self, rounds: int) -> "Noise":
        """Return the noise if it were measured in so many whole rounds more."""
        left = self.design.information / (self.design.information + rounds)
        gain = 1 + (2 * len(self.design.names) - 1) * rounds / self.design.degrees_of_freedom
        levels = tuple(
            replace(
                level,
                spreads={group: spread * sqrt(left) for group, spread in level.spreads.items()},
                degrees_of_freedom=level.degrees_of_freedom * gain,
            )
            for level in self.levels
        )
        shrink = {cell: sqrt(share + (1 - share) * left) for cell, share in self.lasting.items()}
        prompts = {
            (pair, cell): {name: effect * shrink[cell] for name, effect in effects.items()}
            for (pair, cell), effects in self.prompts.items()
        }
        return replace(self, levels=levels, prompts=prompts)


def find_noise(design: Design, values: Values) -> Noise:
    """Part what neither round nor arm explains; a cell of one prompt has no noise of prompts.

    What requests do by chance is in both parts. To take it out of the one made the intervals a
    tenth narrower, and wrong too often where there were many kinds.
    """
    prompts: dict[tuple[Pair, Cell], dict[str, float]] = {}
    for pair, weights in design.contrasts.items():
        for cell, rows in values.items():
            mean = multiply(weights, average(rows.values()))
            many = len(rows) > 1
            prompts[pair, cell] = {
                n: multiply(weights, row) - mean for n, row in rows.items() if many
            }
    lasting = {
        cell: _find_lasting(design, rows, [prompts[pair, cell] for pair in design.contrasts])
        for cell, rows in values.items()
    }
    left = {cell: design.find_residuals(average(rows.values())) for cell, rows in values.items()}
    return Noise(design, tuple(_find_levels(design, left)), prompts, lasting)


def average(rows: Iterable[Sequence[float]]) -> list[float]:
    """Return the average of rows of values, block by block."""
    columns = list(zip(*rows, strict=True))
    return [sum(column) / len(column) for column in columns]


def _find_lasting(
    design: Design, rows: Mapping[str, Sequence[float]], effects: Sequence[Mapping[str, float]]
) -> float:
    variance = sum(effect**2 for own in effects for effect in own.values())
    squares = sum(left**2 for row in rows.values() for left in design.find_residuals(row))
    weight = sum(multiply(contrast, contrast) for contrast in design.contrasts.values())
    chance = squares / design.degrees_of_freedom * weight
    return max(0.0, 1 - chance / variance) if variance else 0.0


def _find_levels(design: Design, left: dict[Cell, list[float]]) -> Iterator[Level]:
    """Return the variance that a start causes in all cells, then per concurrency, then per cell."""
    groupings: tuple[dict[Cell, Hashable], ...] = (
        dict.fromkeys(left),
        {cell: cell[1] for cell in left},
        {cell: cell for cell in left},
    )
    above = 0
    for group_of in groupings:
        groups = dict.fromkeys(group_of.values())
        if len(groups) == above:
            continue
        means = {
            group: average(row for cell, row in left.items() if group_of[cell] == group)
            for group in groups
        }
        degrees_of_freedom = design.degrees_of_freedom * (len(groups) - above)
        share = degrees_of_freedom / len(groups)
        variances = {group: sum(part**2 for part in row) / share for group, row in means.items()}
        yield Level(group_of, _pool(variances, group_of), degrees_of_freedom)
        left = {cell: list(map(sub, row, means[group_of[cell]])) for cell, row in left.items()}
        above = len(groups)


def _pool(
    variances: Mapping[Hashable, float], group_of: Mapping[Cell, Hashable]
) -> dict[Hashable, float]:
    """Return spreads: pooled over all groups, or, at a noisier concurrency, over its own."""
    near: dict[int, list[float]] = {}
    concurrency_of = {group: cell[1] for cell, group in group_of.items()}
    for group, variance in variances.items():
        near.setdefault(concurrency_of[group], []).append(variance)
    pooled = fmean(variances.values())
    return {group: sqrt(max(pooled, fmean(near[concurrency_of[group]]))) for group in variances}


def list_rows(cells: Sequence[Cell]) -> dict[Row, list[Cell]]:
    """Return the cells of each row; where there is but one kind, it has no row of all kinds."""
    rows: dict[Row, list[Cell]] = {cell: [cell] for cell in cells}
    if len({kind for kind, _ in cells}) > 1:
        for concurrency in sorted({concurrency for _, concurrency in cells}):
            rows[None, concurrency] = [cell for cell in cells if cell[1] == concurrency]
    return rows


def draw_errors(noise: Noise, chance: Random, draws: int) -> dict[Contrast, list[float]]:
    """Draw by how much each contrast may be off; one draw has the same place in all of them."""
    design, cells = noise.design, list(noise.lasting)
    errors: dict[tuple[Pair, Cell], list[float]] = {}
    for kind in sorted({kind for kind, _ in cells}):
        effects = {key: effects for key, effects in noise.prompts.items() if key[1][0] == kind}
        errors |= _draw_prompts(effects, chance, draws)
    for level in noise.levels:
        # The spreads are pooled: if one is too small, all are.
        tails = [_draw_tail(chance, level.degrees_of_freedom) for _ in range(draws)]
        drawn = {
            group: _draw_starts(design, [spread * tail for tail in tails], chance)
            for group, spread in level.spreads.items()
        }
        for (pair, cell), before in errors.items():
            errors[pair, cell] = list(map(add, before, drawn[level.group_of[cell]][pair]))
    return {
        (pair, row): average(errors[pair, cell] for cell in members)
        for pair in design.contrasts
        for row, members in list_rows(cells).items()
    }


def _draw_starts(
    design: Design, spreads: Sequence[float], chance: Random
) -> dict[Pair, list[float]]:
    """Draw what starts of these spreads do to each pair."""
    axes = [[spread * chance.gauss(0, 1) for spread in spreads] for _ in design.axes]
    columns = list(zip(*axes, strict=True))
    moved = {
        arm: [multiply(loadings, column) for column in columns]
        for arm, loadings in design.loadings.items()
    }
    return {
        (first, second): list(map(sub, moved[second], moved[first]))
        for first, second in design.contrasts
    }


def _draw_prompts(
    effects: Mapping[tuple[Pair, Cell], Mapping[str, float]], chance: Random, draws: int
) -> dict[tuple[Pair, Cell], list[float]]:
    """Resample the prompts of one kind; a cell without prompts stays as it is."""
    names = sorted({name for own in effects.values() for name in own})
    same_prompts: dict[tuple[str, ...], list[tuple[Pair, Cell]]] = {}
    for key, own in effects.items():
        same_prompts.setdefault(tuple(own), []).append(key)
    same_prompts.pop((), None)
    # The spread of each pair is estimated by itself, so one may be too small and others not.
    counts = list(dict.fromkeys((pair, len(own)) for (pair, _), own in effects.items() if own))
    drawn = {key: [0.0] * draws for key in effects}
    for draw in range(draws):
        weight_of = {name: chance.expovariate(1) for name in names}
        # Exponential weights spread less than a mean of so many does.
        scales = {
            (pair, n): _draw_tail(chance, n - 1) * sqrt((n + 1) / (n - 1)) for pair, n in counts
        }
        for prompts, keys in same_prompts.items():
            weights = [weight_of[name] for name in prompts]
            total = sum(weights)
            for key in keys:
                mean = multiply(weights, effects[key].values()) / total
                drawn[key][draw] = mean * scales[key[0], len(prompts)]
    return drawn


def _draw_tail(chance: Random, degrees_of_freedom: float) -> float:
    """Draw what makes a Student t of a normal."""
    return 1 / sqrt(chance.gammavariate(degrees_of_freedom / 2, 2 / degrees_of_freedom))


def find_half_widths(errors: Mapping[Key, Sequence[float]]) -> dict[Key, float]:
    """Return half of each contrast's interval, so that all the intervals hold together."""
    alone = {key: find_quantile(list(map(abs, drawn)), CONFIDENCE) for key, drawn in errors.items()}
    parts = [[abs(error) / (alone[key] or 1.0) for error in drawn] for key, drawn in errors.items()]
    widening = find_quantile(list(map(max, zip(*parts, strict=True))), CONFIDENCE)
    return {key: half * widening for key, half in alone.items()}


def find_quantile(values: Sequence[float], share: float) -> float:
    """Return the value that this share of them does not exceed."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def find_crossing(concurrencies: Sequence[int], effects: Sequence[float]) -> float:
    """Return the concurrency at which a falling effect first gets below 0, or 0, or infinity."""
    if effects[0] < 0:
        return 0.0
    for (low, left), (high, right) in pairwise(zip(concurrencies, effects, strict=True)):
        if right < 0:
            return float(low * (high / low) ** (left / (left - right)))
    return inf
