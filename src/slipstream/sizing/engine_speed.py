"""`EngineSpeed`: what one replica's steps cost and yield, with where each figure comes from.

It is what `tuning.profile.SpeedProfile` knows, plus what a prompt costs, in one form for every
source: a tuning, a ledger, a running controller, published figures.
"""

from collections.abc import Sequence
from functools import cached_property
from math import ceil, sqrt
from random import Random
from statistics import fmean, pvariance
from typing import Literal

from pydantic import Field, NonNegativeFloat, PositiveInt

from slipstream.errors import InvalidInputError
from slipstream.records import Record

USUAL_BATCHED_TOKENS = 2048
DERIVED_PROMPTS = "derived: a prompt's token costs no more than a verified one (--prompt-rate)"
FAR = 1.5
MOST_FACTORS = 32


class StepCost(Record):
    """Seconds of a step: a fixed part, one per sequence and one per verified token."""

    fixed: NonNegativeFloat
    by_sequence: NonNegativeFloat
    by_token: NonNegativeFloat
    most_sequences: NonNegativeFloat | None = None

    def predict(self, sequences: float, draft_length: int) -> float:
        """Return the seconds of a step in which every sequence decodes."""
        return self.fixed + sequences * self.marginal(draft_length)

    def marginal(self, draft_length: int) -> float:
        """Return what one more sequence adds to a step."""
        return self.by_sequence + self.by_token * (draft_length + 1)


class DraftYield(Record):
    """Drafts of one length for one kind of prompt.

    `by_position` is the share of drafts accepted up to each position. `factors` are requests'
    tokens per step over their mean, since prompts of a kind differ.
    """

    kind: str
    draft_length: PositiveInt
    by_position: tuple[float, ...]
    factors: tuple[float, ...] = (1.0,)

    @cached_property
    def tokens_per_step(self) -> float:
        """The mean tokens of a step, with the one that is not drafted."""
        return 1 + sum(self.by_position)

    @cached_property
    def variance(self) -> float:
        """The variance of a step's tokens."""
        squares = sum((2 * place + 1) * share for place, share in enumerate(self.by_position))
        return max(0.0, squares - sum(self.by_position) ** 2)

    def draw_steps(self, tokens: int, random: Random) -> int:
        """Draw how many steps give so many tokens: the normal limit of a renewal process."""
        if tokens <= 0:
            return 0
        mean = self.tokens_per_step
        factor = self.factors[int(random.random() * len(self.factors))]
        rate = min(max(1.0, mean * factor), self.draft_length + 1.0)
        spread = sqrt(tokens * self.variance / rate**3)
        drawn = tokens / rate + 0.5 + spread * random.gauss(0, 1)
        return min(tokens, max(ceil(tokens / (self.draft_length + 1)), round(drawn)))


class EngineSpeed(Record):
    """One replica; `error` is half of the 95 % interval of its step time, as a share of it.

    A prompt's token that is not cached adds `by_prompt_token` to the step that reads it, and
    `overhead_seconds` come before a first token outside of the engine's core.
    """

    schema_version: Literal[1] = 1
    source: str
    drafting: StepCost | None
    plain: StepCost | None
    yields: tuple[DraftYield, ...]
    by_prompt_token: NonNegativeFloat
    prompt_source: str
    overhead_seconds: NonNegativeFloat = 0.0
    error: NonNegativeFloat
    max_sequences: PositiveInt
    batched_tokens: PositiveInt = USUAL_BATCHED_TOKENS
    start_seconds: NonNegativeFloat | None = None
    cautions: tuple[str, ...] = Field(default=())

    @property
    def lengths(self) -> tuple[int, ...]:
        """The draft lengths that every kind has; 0 is an engine without a drafter."""
        by_kind: dict[str, set[int]] = {}
        for one in self.yields:
            by_kind.setdefault(one.kind, set()).add(one.draft_length)
        common = set.intersection(*by_kind.values()) if by_kind and self.drafting else set()
        return (*((0,) if self.plain else ()), *sorted(common))

    def find_cost(self, draft_length: int) -> StepCost:
        """Return the step cost of an engine with this draft length."""
        cost = self.drafting if draft_length else self.plain
        if cost is None:
            arm = "with" if draft_length else "without"
            raise InvalidInputError(
                f"{self.source} does not say how fast an engine {arm} a drafter is",
                hint="slipstream tune measures both",
            )
        return cost

    def find_yield(self, kind: str, draft_length: int) -> DraftYield | None:
        """Return the drafts of a kind, None for a plain engine; unknown kinds are refused."""
        if not draft_length:
            return None
        for one in self.yields:
            if one.kind == kind and one.draft_length == draft_length:
                return one
        kinds = sorted({one.kind for one in self.yields})
        raise InvalidInputError(
            f"{self.source} has no acceptance for {kind} at {draft_length} drafted tokens",
            hint=f"use kinds that it has: {', '.join(kinds) or 'none'}",
        )

    def count_tokens_per_step(self, kind: str, draft_length: int) -> float:
        """Return the mean tokens of a step of this kind, 1 without drafts."""
        drafts = self.find_yield(kind, draft_length)
        return drafts.tokens_per_step if drafts else 1.0

    def slow_down(self, share: float) -> "EngineSpeed":
        """Return a replica whose every step takes longer by this share."""

        def stretch(cost: StepCost | None) -> StepCost | None:
            if cost is None:
                return None
            parts = {name: getattr(cost, name) * (1 + share) for name in _COSTS}
            return cost.model_copy(update=parts)

        return self.model_copy(
            update={
                "drafting": stretch(self.drafting),
                "plain": stretch(self.plain),
                "by_prompt_token": self.by_prompt_token * (1 + share),
            }
        )

    def find_break_even(self, kind: str, draft_length: int) -> float | None:
        """Return the batch from which drafts of this length cost more than they bring.

        None if there is no such batch, or no engine without a drafter to compare with.
        """
        if self.plain is None or self.drafting is None:
            return None
        tokens = self.count_tokens_per_step(kind, draft_length)
        saved = tokens * self.plain.fixed - self.drafting.fixed
        lost = self.drafting.marginal(draft_length) - tokens * self.plain.marginal(0)
        if saved <= 0:
            return 0.0
        return saved / lost if lost > 0 else None


_COSTS = ("fixed", "by_sequence", "by_token")


def scale_positions(by_position: tuple[float, ...], tokens_per_step: float) -> tuple[float, ...]:
    """Scale the positions so that a step has so many tokens."""
    whole = sum(by_position)
    factor = (tokens_per_step - 1) / whole if whole else 0.0
    return tuple(min(1.0, share * factor) for share in by_position)


def make_geometric(tokens_per_step: float, draft_length: int) -> tuple[float, ...]:
    """Return positions that are each accepted as often after the last, with this mean."""
    low, high = 0.0, 1.0
    for _ in range(60):
        rate = (low + high) / 2
        if 1 + sum(rate**place for place in range(1, draft_length + 1)) < tokens_per_step:
            low = rate
        else:
            high = rate
    return tuple(high**place for place in range(1, draft_length + 1))


def make_yield(
    kind: str, length: int, by_position: tuple[float, ...], rates: Sequence[tuple[int, float]]
) -> DraftYield:
    """Return the drafts of a kind, with how its requests differ beyond the chance of few drafts.

    `rates` are requests' drafts and tokens per step.
    """
    pooled = DraftYield(kind=kind, draft_length=length, by_position=by_position)
    values = [rate for _, rate in rates]
    if len(values) < 2 or not (observed := pvariance(values)):
        return pooled
    by_chance = fmean(pooled.variance / drafts for drafts, _ in rates)
    shrink = sqrt(max(0.0, 1 - by_chance / observed))
    mean = fmean(values)
    factors = sorted(1 + shrink * (value / mean - 1) for value in values)
    step = max(1, len(factors) // MOST_FACTORS)
    return pooled.model_copy(update={"factors": tuple(factors[step // 2 :: step])})
