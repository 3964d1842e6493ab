"""`EngineSpeed` fitted to a ledger, in which every request has its steps, their time and its batch.

A request's time after its first token is its steps, times a fixed part, a part by sequence, a part
by verified token, plus the prompts that others had read in between. The first token of a request
that was alone is one step and its own prompt.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import sqrt

from slipstream.errors import InvalidInputError
from slipstream.sizing.engine_speed import (
    DERIVED_PROMPTS,
    DraftYield,
    EngineSpeed,
    StepCost,
    make_yield,
)
from slipstream.steering.ledger import LedgerLine
from slipstream.tuning.least_squares import Fit, fit_shares, t_quantile

SUPERVISOR = "supervisor"
LEAST_STEPS = 4
LEAST_LINES = 20
LEAST_APART = 1.5
_HINT = "a ledger of a run under several loads, or the file of slipstream tune --json"


@dataclass(frozen=True, slots=True)
class _Row:
    """One request: steps after its first token, mean batch, drafted per step, others' prompts."""

    steps: int
    batch: float
    draft_length: float
    prompts: int
    seconds: float


def take_ledger(lines: Sequence[LedgerLine], source: str) -> EngineSpeed:
    """Fit the speed of the engine, or engines, that wrote these lines; order does not matter."""
    served = [line for line in lines if line.key != SUPERVISOR and line.first_seconds is not None]
    rows = _list_rows(served)
    drafting = [row for row in rows if row.draft_length >= 1]
    plain = [row for row in rows if not row.draft_length]
    fits = {
        name: _fit(own)
        for name, own in (("drafting", drafting), ("plain", plain))
        if len(own) >= LEAST_LINES
    }
    if not fits:
        raise InvalidInputError(
            f"{source} has too few requests of several tokens to estimate the cost of a step",
            hint=_HINT,
        )
    prompts = [cost for _, cost in fits.values() if cost > 0]
    yields = _list_yields(served)
    derived = max(
        cost.by_token if name == "drafting" else cost.by_sequence
        for name, (cost, _) in fits.items()
    )
    most = max(row.batch for row in rows)
    return EngineSpeed(
        source=source,
        drafting=fits["drafting"][0] if "drafting" in fits and yields else None,
        plain=fits["plain"][0] if "plain" in fits else None,
        yields=yields if "drafting" in fits else (),
        by_prompt_token=min(prompts) if prompts else derived,
        prompt_source="fitted to the ledger" if prompts else DERIVED_PROMPTS,
        error=max(_find_error(own) for own in (drafting, plain) if len(own) >= LEAST_LINES),
        max_sequences=max(1, round(most)),
        cautions=("first tokens are those of the engine's core, without its API server",),
    )


def _list_rows(lines: Sequence[LedgerLine]) -> list[_Row]:
    read = sorted(
        ((line.at - line.seconds + (line.first_seconds or 0), line) for line in lines),
        key=lambda pair: pair[0],
    )
    times = [time for time, _ in read]
    before = [0, *accumulate(line.uncached_tokens for _, line in read)]
    rows: list[_Row] = []
    for time, line in read:
        if line.steps <= LEAST_STEPS or line.batch is None:
            continue
        prompts = before[bisect_right(times, line.at)] - before[bisect_right(times, time)]
        drafted = line.drafted / (line.steps - 1)
        seconds = line.seconds - (line.first_seconds or 0.0)
        if seconds > 0:
            rows.append(_Row(line.steps - 1, line.batch, drafted, prompts, seconds))
    return rows + _list_lone_prompts(lines)


def _list_lone_prompts(lines: Sequence[LedgerLine]) -> list[_Row]:
    """List the first steps of requests that met no other one."""
    spans = sorted(
        ((line.at - line.seconds, line.at, line) for line in lines), key=lambda span: span[:2]
    )
    busy_until, rows = 0.0, list[_Row]()
    for number, (began, ended, line) in enumerate(spans):
        next_began = spans[number + 1][0] if number + 1 < len(spans) else float("inf")
        first = line.first_seconds or 0.0
        if began > busy_until and next_began > began + first and first > 0:
            length = line.drafted / line.drafts if line.drafts else 0.0
            rows.append(_Row(1, 1.0, length, line.uncached_tokens, first))
        busy_until = max(busy_until, ended)
    return rows


def _describe(row: _Row, columns: Sequence[int]) -> list[float]:
    sequences = row.steps * row.batch
    every = (row.steps, sequences, sequences * (1 + row.draft_length), row.prompts)
    return [float(every[column]) for column in columns]


def _choose_columns(rows: Sequence[_Row]) -> list[int]:
    """Return the columns that these rows can separate."""
    lengths = [row.draft_length for row in rows]
    batches = [row.batch for row in rows]
    if max(batches) < LEAST_APART * min(batches):
        raise InvalidInputError(
            "all requests of the ledger had about the same batch: "
            "the cost of a sequence cannot be estimated",
            hint=_HINT,
        )
    by_batch = [1] if not max(lengths) else [2] if max(lengths) - min(lengths) < 1 else [1, 2]
    return [0, *by_batch, *([3] if any(row.prompts for row in rows) else [])]


def _solve(rows: Sequence[_Row]) -> tuple[Fit, list[int]]:
    columns = _choose_columns(rows)
    while True:
        table = [_describe(row, columns) for row in rows]
        fit = fit_shares(table, [row.seconds for row in rows])
        if fit is not None:
            return fit, columns
        if len(columns) == 1:
            raise InvalidInputError("the ledger's times lie on no line", hint=_HINT)
        columns.pop(-2 if len(columns) > 2 else -1)


def _fit(rows: Sequence[_Row]) -> tuple[StepCost, float]:
    """Return a step's costs, and that of a prompt's token; 0 if it cannot be estimated."""
    fit, columns = _solve(rows)
    costs = dict(zip(columns, fit.coefficients, strict=True))
    step = StepCost(
        fixed=costs.get(0, 0.0),
        by_sequence=costs.get(1, 0.0),
        by_token=costs.get(2, 0.0),
        most_sequences=max(row.batch for row in rows),
    )
    return step, costs.get(3, 0.0)


def _find_error(rows: Sequence[_Row]) -> float:
    """Return half of the 95 % interval of a request's step time."""
    fit, _ = _solve(rows)
    freedom = max(1, fit.degrees_of_freedom)
    spread = sqrt(sum(left**2 for left in fit.residuals) / freedom)
    return min(1.0, t_quantile(freedom) * spread)


def _list_yields(lines: Iterable[LedgerLine]) -> tuple[DraftYield, ...]:
    by_kind: dict[str, list[LedgerLine]] = {}
    for line in lines:
        if line.drafts:
            by_kind.setdefault(line.kind, []).append(line)
    yields: list[DraftYield] = []
    for kind, own in sorted(by_kind.items()):
        longest = max(round(line.drafted / line.drafts) for line in own)
        whole = [line for line in own if line.drafted / line.drafts > longest - 0.5]
        drafts = sum(line.drafts for line in whole)
        for length in range(1, longest + 1):
            places = tuple(
                sum(line.accepted[place] for line in whole if place < len(line.accepted)) / drafts
                for place in range(length)
            )
            rates = [(line.drafts, 1 + sum(line.accepted[:length]) / line.drafts) for line in whole]
            yields.append(make_yield(kind, length, places, rates))
    return tuple(yields)
