"""`EngineSpeed` from a recipe's published figures: tokens per second by concurrency.

A load of c requests takes c / rate seconds per token and request, which is a step's time over its
tokens: (a + b c (k + 1)) / E. Rates alone determine a / E and b / a. What E is, and with it what a
plain engine would do, comes from published acceptance lengths, or from how long the weights take to
read.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean

from slipstream.errors import InvalidInputError
from slipstream.hardware import list_machines, load_host
from slipstream.recipes.recipe import Evidence, Recipe
from slipstream.sizing.engine_speed import (
    DERIVED_PROMPTS,
    USUAL_BATCHED_TOKENS,
    DraftYield,
    EngineSpeed,
    make_geometric,
)
from slipstream.steering.step_time import StepCost, StepRow, fit_steps

PUBLISHED_ERROR = 0.15
STEEPEST = 1.0


@dataclass(frozen=True, slots=True)
class RatePoint:
    """Tokens per second of one kind of prompt at one concurrency."""

    kind: str
    concurrency: int
    tokens_per_second: float
    acceptance_length: float | None = None

    @property
    def seconds(self) -> float:
        return self.concurrency / self.tokens_per_second


@dataclass(frozen=True, slots=True)
class RateFit:
    """Seconds per token at concurrency 0 by kind, and what each verified token adds to them.

    `fixed` is a step's fixed time, None where it is unknown.
    """

    draft_length: int
    by_kind: dict[str, float]
    slope: float
    fixed: float | None

    def predict(self, kind: str, concurrency: int) -> float:
        """Return the tokens per second of all requests together."""
        load = concurrency * (self.draft_length + 1)
        return concurrency / (self.by_kind[kind] * (1 + self.slope * load))

    def find_error(self, points: Sequence[RatePoint]) -> float:
        """Return half of the 95 % interval, as a share."""
        off = [
            self.predict(one.kind, one.concurrency) / one.tokens_per_second - 1 for one in points
        ]
        degrees_of_freedom = max(1, len(points) - len(self.by_kind) - 1)
        return 2 * sqrt(sum(share**2 for share in off) / degrees_of_freedom)


def fit_rates(points: Sequence[RatePoint], draft_length: int) -> RateFit:
    """Fit a rate for each kind and one slope for all."""
    if len({point.concurrency for point in points}) < 2:
        raise InvalidInputError(
            "rates of one concurrency do not show the cost of a larger batch",
            hint="to see which recipes have several: slipstream models --json",
        )
    if all(point.acceptance_length for point in points):
        return _fit_steps(points, draft_length)
    from scipy.optimize import minimize_scalar

    def level(slope: float) -> tuple[dict[str, float], float]:
        by_kind = defaultdict[str, list[float]](list)
        for point in points:
            load = 1 + slope * point.concurrency * (draft_length + 1)
            by_kind[point.kind].append(point.seconds / load)
        # Least squares of relative errors: the mean of squares over the mean.
        levels = {kind: sum(v * v for v in own) / sum(own) for kind, own in by_kind.items()}
        off = sum((v / levels[kind] - 1) ** 2 for kind, own in by_kind.items() for v in own)
        return levels, off

    found = minimize_scalar(
        lambda slope: level(slope)[1], bounds=(0.0, STEEPEST), options={"xatol": 1e-9}
    )
    return RateFit(draft_length, level(found.x)[0], float(found.x), None)


def _fit_steps(points: Sequence[RatePoint], draft_length: int) -> RateFit:
    """Fit a step's time, where acceptance lengths are published."""
    tokens = defaultdict[str, list[float]](list)
    rows: list[StepRow] = []
    for point in points:
        length = point.acceptance_length or 1.0
        rows.append(StepRow(point.concurrency, draft_length, point.seconds * length))
        tokens[point.kind].append(length)
    fit = fit_steps(rows)
    if fit is None or not fit.cost.fixed:
        raise InvalidInputError("the published rates fit no line", hint="slipstream tune TARGET")
    fixed = fit.cost.fixed
    by_kind = {kind: fixed / fmean(own) for kind, own in tokens.items()}
    return RateFit(draft_length, by_kind, fit.cost.per_token / fixed, fixed)


def take_recipe(recipe: Recipe) -> EngineSpeed:
    """Return the speed that a recipe's evidence implies, with a wide interval."""
    length = recipe.settings.draft_length
    points = choose_points(recipe.evidence)
    if not length or not points:
        raise InvalidInputError(
            f"the recipe {recipe.name} has no published rates of several concurrencies",
            hint="to see which have: slipstream models --json",
        )
    fit = fit_rates(points, length)
    reading = _find_reading(recipe)
    plain_points = [one for one in recipe.evidence if one.plain_tokens_per_s is not None]
    fixed, why = _find_fixed(fit, reading, plain_points)
    per_token = fit.slope * fixed
    plain, plain_why = _fit_plain(plain_points, fixed, per_token, reading)
    most = max(point.concurrency for point in points)
    sources = sorted({f"{one.by} ({one.source})" for one in recipe.evidence if one.concurrency})
    yields: list[DraftYield] = []
    for kind, level in fit.by_kind.items():
        shares = make_geometric(min(max(1.0, fixed / level), length + 1.0), length)
        yields += [
            DraftYield(kind=kind, draft_length=short, by_position=shares[:short])
            for short in range(1, length + 1)
        ]
    return EngineSpeed(
        source=f"recipe {recipe.name}: {', '.join(sources)}",
        drafting=StepCost(fixed=fixed, per_token=per_token, most_sequences=most),
        plain=plain,
        yields=tuple(yields),
        per_prompt_token=per_token,
        prompt_source=DERIVED_PROMPTS,
        error=max(PUBLISHED_ERROR, fit.find_error(points)),
        max_sequences=recipe.settings.sequences or most,
        batched_tokens=recipe.settings.batched_tokens or USUAL_BATCHED_TOKENS,
        cautions=(
            "published rates are of other prompts and another engine version",
            why,
            plain_why,
            f"drafts shorter than {length} are derived: every position after the last is "
            "assumed to be accepted as often",
        ),
    )


def choose_points(evidence: Sequence[Evidence]) -> list[RatePoint]:
    """Choose the rates of one author and one setting that cover most loads."""
    groups: dict[tuple[str, str, str], list[RatePoint]] = {}
    for one in evidence:
        # More than a word says under what conditions, and is no kind of prompt.
        if one.concurrency and one.tokens_per_s and " " not in one.workload:
            name = one.workload.lower()
            point = RatePoint(name, one.concurrency, one.tokens_per_s, one.acceptance_length)
            groups.setdefault((one.by, one.source, one.settings), []).append(point)
    best = max(groups.values(), key=len, default=[])
    return best if len({point.concurrency for point in best}) > 1 else []


def _find_reading(recipe: Recipe) -> tuple[float, float] | None:
    """Return the seconds in which one machine reads the target's weights, and the drafter's."""
    target, drafter = recipe.target_facts, recipe.drafter_facts
    machine = next((name for name in recipe.machines if name in list_machines()), None)
    if machine is None or recipe.nodes > 1 or not (target and target.weights):
        return None
    accelerators = load_host(machine).accelerators
    bandwidth = accelerators[0].memory_bandwidth_bytes_per_s if accelerators else None
    if not bandwidth:
        return None
    beside = drafter.weights.total_bytes if drafter and drafter.weights else 0
    return target.weights.total_bytes / bandwidth, beside / bandwidth


def _find_fixed(
    fit: RateFit, reading: tuple[float, float] | None, plain: Sequence[Evidence]
) -> tuple[float, str]:
    if fit.fixed is not None:
        return fit.fixed, "tokens per step are the published acceptance lengths"
    if reading is not None:
        return sum(reading), "tokens per step follow from how long the weights take to read"
    alone = [one.plain_tokens_per_s for one in plain if (one.concurrency or 1) == 1]
    if alone and alone[0]:
        return 1 / alone[0], "tokens per step follow from the published plain rate"
    raise InvalidInputError(
        "neither acceptance lengths nor a plain rate nor the size of the weights is published",
        hint="to measure all of them: slipstream tune TARGET",
    )


def _fit_plain(
    evidence: Sequence[Evidence],
    fixed: float,
    per_token: float,
    reading: tuple[float, float] | None,
) -> tuple[StepCost, str]:
    """Return the line of an engine without a drafter, and how it was found."""
    points = [(one.concurrency or 1, one.plain_tokens_per_s or 0.0) for one in evidence]
    fit = fit_steps([StepRow(load, 0, load / rate) for load, rate in points])
    if fit is not None:
        return fit.cost, "plain rates are published"
    if points:
        step = max(load / rate for load, rate in points)
        cost = StepCost(fixed=max(0.0, step - per_token), per_sequence=per_token)
        return (
            cost,
            "plain is published at one concurrency: a sequence is assumed to cost a token",
        )
    share = reading[0] / sum(reading) if reading else 1.0
    cost = StepCost(fixed=fixed * share, per_sequence=per_token)
    return cost, "no plain rate is published: plain steps are drafted ones without the drafter"
