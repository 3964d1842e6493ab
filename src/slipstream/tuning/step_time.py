"""How long a step takes: fixed, by sequence and by verified token, fitted to measured loads.

vLLM 0.32 runs a DFlash drafter over 1 + k places a sequence and not over its block
(v1/spec_decode/dflash.py, v1/worker/gpu/spec_decode/dflash/speculator.py), so its cost is by token
as the target's is, and only what it adds to every step is fixed. An engine without a drafter is
another engine, with a line of its own; both share their noise.
"""

from collections.abc import Sequence
from math import sqrt

from slipstream.errors import InvalidInputError
from slipstream.records import Record
from slipstream.tuning.least_squares import Fit, find_leverage, fit_shares, t_quantile

FAR = 1.5
LEAST_FREEDOM = 2
LARGE_SPREAD = 0.06
_HINT = "slipstream tune with --concurrency 1 4 16, or other figures that lie apart"


class StepPoint(Record):
    """One load: its sequences in a step and tokens in a draft, both on average, and a step's time.

    A draft length of 0 is an engine without a drafter.
    """

    kind: str
    concurrency: int
    sequences: float
    draft_length: float
    seconds_per_step: float


class FigureWithError(Record):
    """A figure and one standard error."""

    value: float
    error: float


class StepLine(Record):
    """The seconds of a step, with the largest steps that were measured.

    A plain step verifies one token a sequence, which counts by sequence. `covariance` is that of
    the three for a spread of 1; a cost that was not asked for has none.
    """

    fixed: FigureWithError
    by_sequence: FigureWithError
    by_token: FigureWithError
    covariance: tuple[tuple[float, ...], ...]
    points: int
    set_aside: int
    most_sequences: float
    most_tokens: float


class StepTime(Record):
    """The lines with and without drafts; `spread` is the relative error of a load."""

    drafting: StepLine
    plain: StepLine | None
    spread: float
    degrees_of_freedom: int
    cautions: tuple[str, ...] = ()

    def predict(self, sequences: float, draft_length: int) -> tuple[float, float]:
        """Return the seconds of a step, and the share by which a load may be off: one spread."""
        line = self.find_line(draft_length)
        costs = (line.fixed.value, line.by_sequence.value, line.by_token.value)
        row = (1.0, sequences, sequences * (draft_length + 1))
        seconds = sum(cost * times for cost, times in zip(costs, row, strict=True))
        leverage = find_leverage(row, line.covariance) / seconds**2
        return seconds, self.spread * sqrt(1 + leverage)

    def is_far(self, sequences: float, draft_length: int) -> bool:
        """Return whether such a step is much larger than all that were measured."""
        line = self.find_line(draft_length)
        tokens = sequences * (draft_length + 1)
        return sequences > FAR * line.most_sequences or tokens > FAR * line.most_tokens

    def find_line(self, draft_length: int) -> StepLine:
        """Return the line of an engine with this draft length."""
        line = self.drafting if draft_length else self.plain
        if line is None:
            raise InvalidInputError(
                "no engine without a drafter was measured",
                hint="slipstream tune with room for a plain start",
            )
        return line

    @property
    def student(self) -> float:
        """Return how many spreads hold 95 %."""
        return t_quantile(self.degrees_of_freedom)


def fit_step_time(points: Sequence[StepPoint]) -> StepTime:
    """Fit both lines robustly against a few bad loads; too few loads are refused."""
    drafting = [point for point in points if point.draft_length > 0]
    plain = [point for point in points if point.draft_length == 0]
    _require_batches(drafting, "with drafts")
    cautions: list[str] = []
    lengths = [point.draft_length for point in drafting]
    if max(lengths) - min(lengths) < 1:
        cautions.append(
            "one draft length was measured: a step is taken to cost by its tokens, "
            "none by its sequences"
        )
        fits = [_fit_columns(drafting, (0, 2))]
    else:
        fits = [_fit_columns(drafting, (0, 1, 2))]
    if plain:
        _require_batches(plain, "without drafts")
        fits.append(_fit_columns(plain, (0, 1)))
    degrees_of_freedom = sum(one.degrees_of_freedom for one in fits)
    if degrees_of_freedom < LEAST_FREEDOM:
        raise InvalidInputError(
            f"{len(points)} loads are too few to tell a step's time from noise", hint=_HINT
        )
    squares = sum(left**2 for one in fits for left in one.residuals)
    spread = sqrt(squares / degrees_of_freedom)
    if spread > LARGE_SPREAD:
        cautions.append(f"loads are off the fitted step time by {spread:.0%}")
    lines = [_make_line(one, of, spread) for one, of in zip(fits, (drafting, plain), strict=False)]
    aside = sum(line.set_aside for line in lines)
    if aside:
        cautions.append(f"{aside} of {len(points)} loads fit no line and were set aside")
    return StepTime(
        drafting=lines[0],
        plain=lines[1] if plain else None,
        spread=spread,
        degrees_of_freedom=degrees_of_freedom,
        cautions=tuple(cautions),
    )


def _describe(point: StepPoint) -> tuple[float, float, float]:
    return 1.0, point.sequences, point.sequences * (point.draft_length + 1)


def _require_batches(points: Sequence[StepPoint], arm: str) -> None:
    sizes = [point.sequences for point in points]
    if not sizes or max(sizes) < FAR * min(sizes):
        raise InvalidInputError(
            f"the loads {arm} have one batch size, or none: nothing tells what a sequence costs",
            hint=_HINT,
        )


def _fit_columns(points: Sequence[StepPoint], columns: tuple[int, ...]) -> Fit:
    """Fit some of the three costs, and set the others to zero."""
    rows = [[_describe(point)[column] for column in columns] for point in points]
    fit = fit_shares(rows, [point.seconds_per_step for point in points])
    if fit is None:
        raise InvalidInputError(
            f"{len(points)} loads do not tell {len(columns)} costs of a step apart", hint=_HINT
        )
    coefficients, covariance = [0.0] * 3, [[0.0] * 3 for _ in range(3)]
    for i, column in enumerate(columns):
        coefficients[column] = fit.coefficients[i]
        for j, other in enumerate(columns):
            covariance[column][other] = fit.covariance[i][j]
    wide = tuple(coefficients), tuple(map(tuple, covariance))
    return Fit(*wide, fit.residuals, fit.kept, fit.degrees_of_freedom)


def _make_line(fit: Fit, points: Sequence[StepPoint], spread: float) -> StepLine:
    fixed, by_sequence, by_token = (
        FigureWithError(value=value, error=spread * sqrt(fit.covariance[i][i]))
        for i, value in enumerate(fit.coefficients)
    )
    kept = [points[number] for number in fit.kept]
    return StepLine(
        fixed=fixed,
        by_sequence=by_sequence,
        by_token=by_token,
        covariance=fit.covariance,
        points=len(kept),
        set_aside=len(points) - len(kept),
        most_sequences=max(point.sequences for point in kept),
        most_tokens=max(point.sequences * (point.draft_length + 1) for point in kept),
    )
