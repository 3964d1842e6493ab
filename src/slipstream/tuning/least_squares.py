"""Least squares for times: errors are shares of the value, costs are not negative.

The least absolute errors come first. What they leave far out is set aside, but never more than a
quarter: where much does not fit, it is the line that is wrong. What is left is fitted by squares.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import atan2, cos, exp, lgamma, pi, sin, sqrt, tan
from operator import mul
from statistics import NormalDist, median

ABSOLUTE_ROUNDS = 40
SQUARE_ROUNDS = 4
SMALLEST_RESIDUAL = 1e-4
OUTLYING_SPREADS = 5.0
OUTLYING_SHARE = 0.1
MOST_SET_ASIDE = 0.25
MEDIAN_TO_SPREAD = 1.4826
SMALLEST_PIVOT = 1e-7
NEWTON_STEPS = 50
NEWTON_CLOSE = 1e-12

Row = Sequence[float]
Matrix = list[list[float]]


@dataclass(frozen=True, slots=True)
class Fit:
    """Coefficients, their covariance for errors of spread 1, and the residuals.

    `residuals` are shares of the fitted values, of the rows in `kept`.
    """

    coefficients: tuple[float, ...]
    covariance: tuple[tuple[float, ...], ...]
    residuals: tuple[float, ...]
    kept: tuple[int, ...]
    degrees_of_freedom: int


def fit_shares(rows: Sequence[Row], values: Sequence[float]) -> Fit | None:
    """Fit positive values by non-negative rows; None if the rows do not determine them."""
    everything = range(len(rows))
    off = _fit_absolute(rows, values)
    if off is None:
        return None
    kept = _list_kept(off, len(rows[0]))
    return _fit_squares(rows, values, kept) or _fit_squares(rows, values, everything)


def _fit_absolute(rows: Sequence[Row], values: Sequence[float]) -> list[float] | None:
    """Return by which share each value is off the fit that leaves the least absolute errors."""
    fitted, off = list(values), [1.0] * len(rows)
    for _ in range(ABSOLUTE_ROUNDS):
        weights = [1 / max(share, SMALLEST_RESIDUAL) for share in off]
        solved = _solve(rows, values, fitted, weights)
        if solved is None:
            return None
        fitted = [_multiply(row, solved[0]) for row in rows]
        off = [abs(value / made - 1) for value, made in zip(values, fitted, strict=True)]
    return off


def _list_kept(off: Sequence[float], columns: int) -> Sequence[int]:
    """List what lies near enough; as many as the columns are met exactly and do not count."""
    everything = range(len(off))
    free = sorted(off)[columns:]
    if not free:
        return everything
    limit = max(OUTLYING_SHARE, OUTLYING_SPREADS * MEDIAN_TO_SPREAD * median(free))
    kept = [number for number in everything if off[number] <= limit]
    return kept if len(kept) >= (1 - MOST_SET_ASIDE) * len(off) else everything


def _fit_squares(rows: Sequence[Row], values: Sequence[float], kept: Sequence[int]) -> Fit | None:
    rows, values = [rows[number] for number in kept], [values[number] for number in kept]
    coefficients, covariance, fitted = list[float](), list[list[float]](), values
    for _ in range(SQUARE_ROUNDS):
        solved = _solve(rows, values, fitted, [1.0] * len(rows))
        if solved is None:
            return None
        coefficients, covariance = solved
        fitted = [_multiply(row, coefficients) for row in rows]
    return Fit(
        coefficients=tuple(coefficients),
        covariance=tuple(map(tuple, covariance)),
        residuals=tuple(value / made - 1 for value, made in zip(values, fitted, strict=True)),
        kept=tuple(kept),
        degrees_of_freedom=len(rows) - len(rows[0]),
    )


def _solve(
    rows: Sequence[Row], values: Sequence[float], scales: Sequence[float], weights: Sequence[float]
) -> tuple[list[float], Matrix] | None:
    """Solve for coefficients, dropping columns one by one that would be negative.

    The covariance stays that of all columns: to come out at nothing makes no cost more certain.
    """
    every = range(len(rows[0]))
    shares = [weight / scale**2 for weight, scale in zip(weights, scales, strict=True)]
    normal = [
        [sum(w * r[i] * r[j] for w, r in zip(shares, rows, strict=True)) for j in every]
        for i in every
    ]
    right = [sum(w * r[i] * v for w, r, v in zip(shares, rows, values, strict=True)) for i in every]
    columns, covariance = list(every), invert(normal)
    inverse = covariance
    while covariance is not None and inverse is not None:
        solved = [_multiply(line, [right[j] for j in columns]) for line in inverse]
        if min(solved) >= 0:
            found = dict(zip(columns, solved, strict=True))
            return [found.get(i, 0.0) for i in every], covariance
        columns.pop(solved.index(min(solved)))
        inverse = invert([[normal[i][j] for j in columns] for i in columns])
    return None


def invert(matrix: Sequence[Row]) -> Matrix | None:
    """Invert a symmetric positive matrix; None if it is numerically singular."""
    size = len(matrix)
    lengths = [sqrt(matrix[i][i]) for i in range(size)]
    if min(lengths) <= 0:
        return None
    work = [
        [matrix[i][j] / lengths[i] / lengths[j] for j in range(size)]
        + [float(i == j) for j in range(size)]
        for i in range(size)
    ]
    for i in range(size):
        pivot = work[i][i]
        if pivot < SMALLEST_PIVOT:
            return None
        work[i] = [part / pivot for part in work[i]]
        for j in range(size):
            if j != i:
                factor = work[j][i]
                work[j] = [a - factor * b for a, b in zip(work[j], work[i], strict=True)]
    return [[work[i][size + j] / lengths[i] / lengths[j] for j in range(size)] for i in range(size)]


def find_leverage(row: Row, covariance: Sequence[Row]) -> float:
    """Return a fitted value's variance if errors had a spread of 1."""
    return _multiply(row, [_multiply(line, row) for line in covariance])


@cache
def t_quantile(degrees_of_freedom: int, confidence: float = 0.95) -> float:
    """Return how many standard errors hold a Student t with this confidence, on both sides.

    Exact for 1 and 2 degrees of freedom. For more, Newton's method on the distribution, whose
    series is finite for whole degrees of freedom (Abramowitz and Stegun 26.7.3 and 26.7.4).
    """
    if degrees_of_freedom == 1:
        return tan(pi * confidence / 2)
    if degrees_of_freedom == 2:
        return confidence * sqrt(2 / (1 - confidence**2))
    density_at_0 = exp(
        lgamma((degrees_of_freedom + 1) / 2) - lgamma(degrees_of_freedom / 2)
    ) / sqrt(degrees_of_freedom * pi)
    # From below: the distribution is concave there, so that no step goes too far.
    t = NormalDist().inv_cdf((1 + confidence) / 2)
    for _ in range(NEWTON_STEPS):
        density = density_at_0 * (1 + t**2 / degrees_of_freedom) ** (-(degrees_of_freedom + 1) / 2)
        step = (confidence - _hold(t, degrees_of_freedom)) / (2 * density)
        t += step
        if abs(step) < NEWTON_CLOSE * t:
            break
    return t


def _hold(t: float, degrees_of_freedom: int) -> float:
    """Return the probability that a Student t lies between -t and t."""
    angle = atan2(t, sqrt(degrees_of_freedom))
    odd = degrees_of_freedom % 2
    term, total = (cos(angle), 0.0) if odd else (1.0, 0.0)
    for power in range(1 if odd else 0, degrees_of_freedom - 1, 2):
        total += term
        term *= cos(angle) ** 2 * (power + 1) / (power + 2)
    series = sin(angle) * total
    return 2 / pi * (angle + series) if odd else series


def _multiply(left: Row, right: Row) -> float:
    total: float = sum(map(mul, left, right))
    return total
