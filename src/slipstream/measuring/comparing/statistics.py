"""The uncertainty of a speed-up that was measured in few starts with few prompts.

Everything is in logarithms of speed. An effect is off for two reasons:

- Starts differ. Least squares takes each round's level and the arm out of every block; what is left
  moves all kinds at a concurrency together, or one cell. A concurrency that is quieter than the
  average counts as the average: a drift in step with the rounds would look like an effect there.
- Prompts gain differently, each the same at every concurrency. What requests do by chance is in
  both parts: without it there, many kinds were distinguished too often.

Both spreads are estimates: one A B B A has two degrees of freedom. So errors are drawn together
with such estimates, and an interval is as many estimated spreads wide as 95 % of the draws need (a
parametric bootstrap of the studentized effect; for one source of noise it is Student's t). All
intervals hold together: each is widened by the one factor that 95 % of the draws need in their
worst contrast.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf, sqrt
from typing import TYPE_CHECKING, NamedTuple

from slipstream.measuring.comparing.design import Design, Pair

if TYPE_CHECKING:
    from slipstream.measuring.comparing.design import Array

CONFIDENCE = 0.95

Cell = tuple[str, int]
"""A kind of prompt at a concurrency."""
Row = tuple[str | None, int]
"""A cell, or all kinds at a concurrency; each kind counts the same, however many its prompts."""
Contrast = tuple[Pair, Row]
"""Two arms in a row."""
Values = Mapping[Cell, Mapping[str, Sequence[float]]]
"""By cell and prompt, one value of each block."""


class Grid(NamedTuple):
    """Rows and concurrencies as weights of the cells' means.

    `load_of_cells` and `load_of_rows` are places in `loads`; `own_share` is the share of a cell's
    own variance that a row has beside that of its concurrency.
    """

    cells: list[Cell]
    rows: list[Row]
    weights: "Array"
    loads: "Array"
    load_of_cells: list[int]
    load_of_rows: list[int]
    own_share: "Array"


def make_grid(cells: Sequence[Cell]) -> Grid:
    """Arrange cells; where there is but one kind, it has no row of all kinds."""
    import numpy as np

    at = sorted({concurrency for _, concurrency in cells})
    rows: list[Row] = list(cells)
    if len({kind for kind, _ in cells}) > 1:
        rows += [(None, concurrency) for concurrency in at]

    def weigh(rows: Sequence[Row]) -> "Array":
        found = [[kind in (None, one) and load == n for one, n in cells] for kind, load in rows]
        return np.asarray(np.array(found) / np.sum(found, axis=1, keepdims=True))

    weights, loads = weigh(rows), weigh([(None, concurrency) for concurrency in at])
    of_rows = [at.index(concurrency) for _, concurrency in rows]
    return Grid(
        cells=list(cells),
        rows=rows,
        weights=weights,
        loads=loads,
        load_of_cells=of_rows[: len(cells)],
        load_of_rows=of_rows,
        own_share=(weights**2).sum(axis=1) - (loads**2).sum(axis=1)[of_rows],
    )


class Gains(NamedTuple):
    """The effects on a cell's prompts less their mean, prompt by pair.

    `lasting` is the share of their variance that more blocks leave: the prompts' own.
    """

    names: tuple[str, ...]
    effects: "Array"
    lasting: float


@dataclass(frozen=True, slots=True)
class Noise:
    """What chance does to the effects.

    `loads` is the variance of a block at each concurrency, `shared` the part that all of them have
    in common, `own` what a cell has beside. `loadings` are the weights with which independent
    blocks of that variance move the pairs, pair by axis.
    """

    grid: Grid
    degrees_of_freedom: int
    loadings: "Array"
    shared: float
    loads: "Array"
    own: "Array"
    gains: Sequence[Gains]

    def foresee(self, design: Design, rounds: int) -> "Noise":
        """Return the noise if it were measured in so many whole rounds more."""
        left = design.information / (design.information + rounds)
        return replace(
            self,
            degrees_of_freedom=self.degrees_of_freedom + (2 * len(design.names) - 1) * rounds,
            loadings=self.loadings * sqrt(left),
            gains=[
                one._replace(effects=one.effects * sqrt(one.lasting + (1 - one.lasting) * left))
                for one in self.gains
            ],
        )


def find_noise(design: Design, values: Values) -> Noise:
    """Separate the noise of starts and of prompts; a cell of one prompt has none of prompts."""
    import numpy as np

    grid = make_grid(list(values))
    tables = {cell: np.array(list(rows.values())) for cell, rows in values.items()}
    left = (np.array([table.mean(axis=0) for table in tables.values()]) @ design.residuals).T
    loads, own = _find_spreads(grid, left)
    loads = np.maximum(loads, loads.mean())
    products = (grid.loads @ left.T) @ (left @ grid.loads.T) / design.degrees_of_freedom
    apart = products[~np.eye(len(loads), dtype=bool)]
    axes, sizes, _ = np.linalg.svd(design.contrasts, full_matrices=False)
    return Noise(
        grid=grid,
        degrees_of_freedom=design.degrees_of_freedom,
        loadings=(axes * sizes)[:, : len(design.names) - 1],
        shared=float(np.clip(apart.mean(), 0, loads.min()) if len(apart) else loads[0]),
        loads=loads,
        own=own,
        gains=[_find_gains(design, tuple(values[cell]), tables[cell]) for cell in grid.cells],
    )


def _find_spreads(grid: Grid, left: "Array") -> tuple["Array", "Array"]:
    """Return the variance of each concurrency's mean, and of its cells around it.

    The last axes of `left` are degrees of freedom and cells. The cells of all concurrencies are
    pooled, but for a noisier one.
    """
    import numpy as np

    means = left @ grid.loads.T
    around = ((left - means[..., grid.load_of_cells]) ** 2).mean(axis=-2)
    sums, counts = around @ (grid.loads.T > 0), (grid.loads > 0).sum(axis=1)
    pooled = sums.sum(axis=-1, keepdims=True) / max(1, len(grid.cells) - len(counts))
    return (means**2).mean(axis=-2), np.maximum(pooled, sums / np.maximum(1, counts - 1))


def _find_gains(design: Design, names: tuple[str, ...], table: "Array") -> Gains:
    effects = table @ design.contrasts.T
    effects -= effects.mean(axis=0)
    left = table @ design.residuals
    requests = ((left - left.mean(axis=0)) ** 2).sum() / design.degrees_of_freedom
    chance, variance = requests * (design.contrasts**2).sum(), (effects**2).sum()
    return Gains(names, effects, max(0.0, 1 - float(chance / variance)) if variance else 0.0)


def draw_errors(noise: Noise, seed: int, draws: int) -> tuple["Array", "Array"]:
    """Return the estimated spread of every pair in every row, and draws of its error in spreads."""
    import numpy as np

    chance, grid = np.random.default_rng(seed), noise.grid

    def scatter(count: int) -> "Array":
        """Draw what a start does to every cell, so many times."""
        own = chance.standard_normal((draws, count, len(grid.cells)))
        own -= (own @ grid.loads.T)[..., grid.load_of_cells]
        loads = chance.standard_normal((draws, count, len(noise.loads)))
        loads *= np.sqrt(np.maximum(noise.loads - noise.shared, 0))
        loads += sqrt(noise.shared) * chance.standard_normal((draws, count, 1))
        own *= np.sqrt(noise.own)[grid.load_of_cells]
        return np.asarray(own + loads[..., grid.load_of_cells])

    def add_up(loads: "Array", own: "Array") -> "Array":
        at = grid.load_of_rows
        return np.asarray(loads[..., at] + own[..., at] * grid.own_share)

    scale = (noise.loadings**2).sum(axis=1)[:, None]
    variances = scale * add_up(noise.loads, noise.own)
    again = scale * add_up(*_find_spreads(grid, scatter(noise.degrees_of_freedom)))[:, None]
    errors = noise.loadings @ scatter(noise.loadings.shape[1]) @ grid.weights.T
    luck: dict[tuple[str, str], Array] = {}
    for shares, (kind, _), gains in zip(grid.weights.T, grid.cells, noise.gains, strict=True):
        degrees_of_freedom = len(gains.names) - 1
        if not degrees_of_freedom:
            continue
        for key in ((kind, name) for name in gains.names):
            if key not in luck:
                luck[key] = chance.standard_normal(draws)
        drawn = np.array([luck[kind, name] for name in gains.names]).T @ gains.effects
        errors += drawn[..., None] * shares / sqrt(degrees_of_freedom * (degrees_of_freedom + 1))
        variance = (gains.effects**2).sum(axis=0) / (degrees_of_freedom * (degrees_of_freedom + 1))
        variances += variance[:, None] * shares**2
        # The spread of each pair in each cell may be too small while others are not.
        estimated = (
            variance
            * chance.chisquare(degrees_of_freedom, (draws, len(variance)))
            / degrees_of_freedom
        )
        again += estimated[..., None] * shares**2
    return np.sqrt(variances), errors / np.sqrt(np.where(again > 0, again, inf))


def find_widths(drawn: "Array") -> "Array":
    """Return how many spreads half of each interval is wide, so that all hold together."""
    import numpy as np

    sizes = np.abs(drawn)
    alone = np.quantile(sizes, CONFIDENCE, axis=0, method="higher")
    worst = (sizes / np.where(alone > 0, alone, inf)).max(axis=(1, 2))
    return np.asarray(alone * np.quantile(worst, CONFIDENCE, method="higher"))


def find_crossing(concurrencies: Sequence[int], effects: Sequence[float]) -> float:
    """Return the concurrency at which a falling effect first gets below 0, or 0, or infinity."""
    if effects[0] < 0:
        return 0.0
    for (low, left), (high, right) in pairwise(zip(concurrencies, effects, strict=True)):
        if right < 0:
            return float(low * (high / low) ** (left / (left - right)))
    return inf
