"""`EngineSpeed`: what one replica's steps cost and yield, with where each figure comes from.

It is what `tuning.profile.SpeedProfile` knows, plus what a prompt costs, in one form for every
source: a tuning, a ledger, published figures.
"""

from collections.abc import Sequence
from functools import cached_property
from math import ceil, sqrt
from random import Random
from statistics import fmean, harmonic_mean, pvariance
from typing import Literal

from pydantic import Field, NonNegativeFloat, PositiveInt

from slipstream.errors import InvalidInputError
from slipstream.records import Record
from slipstream.steering.drafts import Drafts, find_variance, solve_acceptance
from slipstream.steering.step_time import StepCost

USUAL_BATCHED_TOKENS = 2048
DERIVED_PROMPTS = "derived: a prompt's token costs no more than a verified one (--prompt-rate)"
MOST_FACTORS = 32


class DraftYield(Record):
    """Drafts of one length for one kind of prompt.

    `by_position` is the share of drafts accepted up to each position. `factors` are requests'
    tokens per step over their harmonic mean, since prompts of a kind differ: tokens over a factor
    are then steps whose mean is right.
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
        return find_variance(self.by_position)

    def draw_steps(self, tokens: int, random: Random) -> int:
        """Draw how many steps give so many tokens: the normal limit of a renewal process."""
        if tokens <= 0:
            return 0
        factor = self.factors[int(random.random() * len(self.factors))]
        rate = min(max(1.0, self.tokens_per_step * factor), self.draft_length + 1.0)
        spread = sqrt(tokens * self.variance / rate**3)
        drawn = tokens / rate + 0.5 + spread * random.gauss(0, 1)
        return min(tokens, max(ceil(tokens / (self.draft_length + 1)), round(drawn)))


class EngineSpeed(Record):
    """One replica; `error` is half of the 95 % interval of its step time, as a share of it.

    A prompt's token that is not cached adds `per_prompt_token` to the step that reads it, and
    `overhead_seconds` come before a first token outside of the engine's core.
    """

    schema_version: Literal[2] = 2
    source: str
    drafting: StepCost | None
    plain: StepCost | None
    yields: tuple[DraftYield, ...]
    per_prompt_token: NonNegativeFloat
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
        cost = self.drafting if draft_length else self.plain
        if cost is None:
            arm = "with" if draft_length else "without"
            raise InvalidInputError(
                f"{self.source} has no speed of an engine {arm} a drafter",
                hint="to measure both: slipstream tune TARGET",
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
        changes = {
            "drafting": self.drafting and self.drafting.stretch(1 + share),
            "plain": self.plain and self.plain.stretch(1 + share),
            "per_prompt_token": self.per_prompt_token * (1 + share),
        }
        return self.model_copy(update=changes)

    def find_speed_up(self, kind: str, draft_length: int, sequences: float) -> float | None:
        """Return how many times as fast drafts of this length make a step of so many sequences."""
        if self.plain is None:
            return None
        drafted = self.find_cost(draft_length).predict(sequences, draft_length)
        tokens = self.count_tokens_per_step(kind, draft_length)
        return tokens * self.plain.predict(sequences, 0) / drafted

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


def make_geometric(tokens_per_step: float, draft_length: int) -> tuple[float, ...]:
    """Return positions that are each accepted as often after the last, with this mean."""
    rate = solve_acceptance(tokens_per_step - 1, draft_length)
    return tuple(rate**place for place in range(1, draft_length + 1))


def make_yield(
    kind: str, length: int, requests: Sequence[Drafts], tokens_per_step: float | None = None
) -> DraftYield:
    """Return the drafts of a kind cut to a length, with how requests differ beyond few drafts.

    What requests differ by is shrunk to what the chance of few drafts does not explain. Positions
    are scaled to `tokens_per_step` where more is known than they say.
    """
    shares = (*Drafts.total(requests).by_position, *(0.0,) * length)[:length]
    if tokens_per_step is not None and any(shares):
        factor = (tokens_per_step - 1) / sum(shares)
        shares = tuple(min(1.0, share * factor) for share in shares)
    pooled = DraftYield(kind=kind, draft_length=length, by_position=shares)
    drafted = [one for one in requests if one.drafts]
    rates = [1 + sum(one.accepted[:length]) / one.drafts for one in drafted]
    if len(rates) < 2 or not (observed := pvariance(rates)):
        return pooled
    by_chance = fmean(pooled.variance / one.drafts for one in drafted)
    shrink = sqrt(max(0.0, 1 - by_chance / observed))
    mean = fmean(rates)
    own = sorted(mean + shrink * (rate - mean) for rate in rates)
    step = max(1, len(own) // MOST_FACTORS)
    own = own[step // 2 :: step]
    centre = harmonic_mean(own)
    return pooled.model_copy(update={"factors": tuple(rate / centre for rate in own)})
