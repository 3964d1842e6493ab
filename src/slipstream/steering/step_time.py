"""How long a step takes: a fixed part, one per sequence and one per verified token.

This is the one model of it. `fit_steps` fits it to measured loads (tuning), to a ledger, to a
controller's report and to published rates (sizing). `ExpectedTime` follows a running engine, one
request at a time and without numpy, which a supervisor has no other use for.

vLLM 0.32 runs a DFlash drafter over 1 + k places per sequence and not over its block
(v1/spec_decode/dflash.py, v1/worker/gpu/spec_decode/dflash/speculator.py), so its cost is per token
as the target's is, and only what it adds to every step is fixed. An engine without a drafter is
another engine, with costs of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import sqrt
from typing import TYPE_CHECKING, NamedTuple

from pydantic import NonNegativeFloat

from slipstream.records import Record

if TYPE_CHECKING:
    from numpy import float64
    from numpy.typing import NDArray

    Array = NDArray[float64]

FAR = 1.5
ABSOLUTE_ROUNDS = 40
SQUARE_ROUNDS = 4
SMALLEST_RESIDUAL = 1e-4
SMALLEST_SHARE = 1e-3
SMALLEST_SINGULAR = 3e-4
OUTLYING_SPREADS = 5.0
OUTLYING_SHARE = 0.1
MOST_SET_ASIDE = 0.25
MEDIAN_TO_SPREAD = 1.4826
COSTS = ("fixed", "per_sequence", "per_token")


class StepCost(Record):
    """Seconds of a step, with the largest steps that they were fitted to.

    A plain step verifies one token per sequence, which counts as the sequence's. `covariance` is
    that of the three costs for errors of spread 1; a cost that was not fitted has none.
    """

    fixed: NonNegativeFloat
    per_sequence: NonNegativeFloat = 0.0
    per_token: NonNegativeFloat = 0.0
    covariance: tuple[tuple[float, ...], ...] = ((0.0,) * 3,) * 3
    points: int = 0
    set_aside: int = 0
    most_sequences: NonNegativeFloat | None = None
    most_tokens: NonNegativeFloat | None = None

    def predict(self, sequences: float, draft_length: float) -> float:
        """Return the seconds of a step in which every sequence decodes."""
        return self.fixed + sequences * self.marginal(draft_length)

    def marginal(self, draft_length: float) -> float:
        """Return what one more sequence adds to a step."""
        return self.per_sequence + self.per_token * (draft_length + 1)

    def find_error(self, sequences: float, draft_length: float) -> float:
        """Return the predicted time's own error as a share of it, if errors had a spread of 1."""
        row = (1.0, sequences, sequences * (draft_length + 1))
        pairs = product(enumerate(row), repeat=2)
        variance = sum(self.covariance[i][j] * one * other for (i, one), (j, other) in pairs)
        return sqrt(max(variance, 0.0)) / self.predict(sequences, draft_length)

    def list_costs(self, spread: float) -> list[tuple[float, float]]:
        """Return the three costs, each with its standard error for errors of this spread."""
        return [
            (getattr(self, name), spread * sqrt(self.covariance[place][place]))
            for place, name in enumerate(COSTS)
        ]

    def is_far(self, sequences: float, draft_length: float) -> bool:
        """Return whether such a step is much larger than all that were measured."""
        tokens = sequences * (draft_length + 1)
        pairs = ((sequences, self.most_sequences), (tokens, self.most_tokens))
        return any(most is not None and size > FAR * most for size, most in pairs)

    def stretch(self, factor: float) -> "StepCost":
        """Return the costs of an engine whose every step takes so many times as long."""
        return self.model_copy(update={name: getattr(self, name) * factor for name in COSTS})


class StepRow(NamedTuple):
    """Steps alike and their time; `prompt_tokens` were read in them besides."""

    sequences: float
    draft_length: float
    seconds: float
    steps: float = 1.0
    prompt_tokens: float = 0.0

    def describe(self) -> tuple[float, float, float, float]:
        """Return how often each cost counts: the three of a step, and a prompt's token."""
        sequences = self.steps * self.sequences
        return self.steps, sequences, sequences * (self.draft_length + 1), self.prompt_tokens


@dataclass(frozen=True, slots=True)
class StepFit:
    """What was fitted; `residuals` are shares of the fitted times of the rows that were kept.

    `columns` are the costs that could be told apart, of fixed, sequence, token and prompt token.
    """

    cost: StepCost
    per_prompt_token: float
    columns: list[int]
    residuals: list[float]

    @property
    def degrees_of_freedom(self) -> int:
        return len(self.residuals) - len(self.columns)

    @property
    def squares(self) -> float:
        return sum(share**2 for share in self.residuals)


def fit_steps(rows: Sequence[StepRow]) -> StepFit | None:
    """Fit the costs that these rows can tell apart; None if they do not determine them.

    Errors are shares of the time, and no cost is negative. Rows that lie far out are set aside, but
    never more than a quarter: where much does not fit, it is the line that is wrong. Drafts of one
    length do not tell a sequence from its tokens: then all is the tokens'.
    """
    import numpy

    lengths = [row.draft_length for row in rows] or [0.0]
    columns = [0, 1] if not any(lengths) else [0, 2]
    if max(lengths) - min(lengths) >= 1:
        columns = [0, 1, 2]
    prompts = [3] if any(row.prompt_tokens for row in rows) else []
    table = numpy.array([row.describe() for row in rows]).reshape(-1, 4)
    for chosen in ([*columns, *prompts], columns):
        if _is_determined(table[:, chosen]):
            return _fit_columns(rows, table[:, chosen], chosen)
    return None


def _fit_columns(rows: Sequence[StepRow], table: "Array", columns: list[int]) -> StepFit:
    """Fit some of the costs; one that comes out at nothing is not more certain for that."""
    import numpy

    times = numpy.array([row.seconds for row in rows])
    kept = _list_kept(table, times)
    costs, fitted = _solve(table[kept], times[kept])
    shares = table[kept] / fitted[:, None]
    every, covariance = numpy.zeros(4), numpy.zeros((4, 4))
    every[columns] = costs
    covariance[numpy.ix_(columns, columns)] = numpy.linalg.inv(shares.T @ shares)
    near = [rows[number] for number in kept]
    return StepFit(
        cost=StepCost(
            **dict(zip(COSTS, every.tolist(), strict=False)),
            covariance=covariance[:3, :3].tolist(),
            points=len(near),
            set_aside=len(rows) - len(near),
            most_sequences=max(row.sequences for row in near),
            most_tokens=max(row.sequences * (row.draft_length + 1) for row in near),
        ),
        per_prompt_token=float(every[3]),
        columns=columns,
        residuals=(times[kept] / fitted - 1).tolist(),
    )


def _is_determined(table: "Array") -> bool:
    from numpy.linalg import norm, svd

    lengths = norm(table, axis=0)
    if len(table) < len(lengths) or not lengths.all():
        return False
    return bool(svd(table / lengths, compute_uv=False)[-1] > SMALLEST_SINGULAR)


def _list_kept(table: "Array", times: "Array") -> list[int]:
    """List the rows near the fit with the least absolute errors.

    As many as there are costs are met exactly, and say nothing about the errors.
    """
    import numpy

    off = abs(times / _solve(table, times, absolute=True)[1] - 1)
    free = numpy.sort(off)[table.shape[1] :]
    spread = MEDIAN_TO_SPREAD * numpy.median(free) if free.size else 0.0
    near = numpy.flatnonzero(off <= max(OUTLYING_SHARE, OUTLYING_SPREADS * spread))
    enough = len(near) >= (1 - MOST_SET_ASIDE) * len(off) and _is_determined(table[near])
    return near.tolist() if enough else list(range(len(off)))


def _solve(table: "Array", times: "Array", *, absolute: bool = False) -> tuple["Array", "Array"]:
    """Return the costs with the least squared or absolute errors, and the fitted times.

    Errors are shares of the fitted times, which are kept above nothing where the rows are wild.
    """
    import numpy
    from scipy.optimize import nnls

    costs, fitted, off = times, times, numpy.ones(len(times))
    lengths = numpy.linalg.norm(table, axis=0)
    for _ in range(ABSOLUTE_ROUNDS if absolute else SQUARE_ROUNDS):
        weights = 1 / fitted
        if absolute:
            weights /= numpy.sqrt(numpy.maximum(off, SMALLEST_RESIDUAL))
        costs = nnls(table / lengths * weights[:, None], times * weights)[0] / lengths
        fitted = numpy.maximum(table @ costs, SMALLEST_SHARE * times)
        off = abs(times / fitted - 1)
    return costs, fitted


@cache
def t_quantile(degrees_of_freedom: int) -> float:
    """Return how many standard errors hold 95 % of a Student t, on both sides."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees_of_freedom, 0.975))


PILOT_REQUESTS = 100
# Times of what is expected: a stall says nothing about the others.
MOST_OFF = 4.0
_UNKNOWN = 1e6


class ExpectedTime:
    """The expected time of a request from its features, of which the first is 1, learnt online.

    Load, draft length and prompts change all the time, and with them every time; a drift is what
    they do not explain. Recursive least squares of relative errors; nothing is forgotten, since a
    slower engine must stay one.
    """

    def __init__(self, features: int) -> None:
        self._count = 0
        self._least = float("inf")
        self._weights = [0.0] * features
        self._covariance = [
            [_UNKNOWN if row == column else 0.0 for column in range(features)]
            for row in range(features)
        ]

    def predict(self, features: tuple[float, ...]) -> float | None:
        """Return the time to expect, None during the pilot."""
        return self._predict(features) if self._count >= PILOT_REQUESTS else None

    def learn(self, features: tuple[float, ...], seconds: float) -> None:
        if self._count >= PILOT_REQUESTS:
            expected = self._predict(features)
            seconds = min(MOST_OFF * expected, max(expected / MOST_OFF, seconds))
        if not seconds > 0:
            return
        self._count += 1
        self._least = min(self._least, seconds)
        row = [feature / seconds for feature in features]
        gain = [sum(map(float.__mul__, line, row)) for line in self._covariance]
        scale = 1 + sum(map(float.__mul__, row, gain))
        error = 1 - sum(map(float.__mul__, self._weights, row))
        for place, one in enumerate(gain):
            self._weights[place] += one / scale * error
            line = self._covariance[place]
            for column, other in enumerate(gain):
                line[column] -= one * other / scale

    def _predict(self, features: tuple[float, ...]) -> float:
        """Return the model's time, kept within reason where it has seen nothing like it."""
        return max(self._least / 2, sum(map(float.__mul__, self._weights, features)))
