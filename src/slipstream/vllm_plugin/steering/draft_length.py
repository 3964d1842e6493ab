"""The controller of the draft length: the best for the current batch, tried at a bounded cost.

It chooses the length with the most tokens per second by its own model, and now and then tries
another one that could be better for all that is known. What trying costs stays below a share of
the time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

from slipstream.vllm_plugin.steering.goodput import StepCosts, Yield, bucket

BETTER_BY = 1.02
# Steps of a try: the first still verifies drafts of the old length.
TRY_STEPS = 4
STEPS_BETWEEN_TRIES = 12
STEPS_BETWEEN_LOOKS = 4
TRY_COST_SHARE = 0.01
# In steps of the batch at hand: what may be spent at the start, when nothing is known.
FIRST_TRIES = 24.0
# How far beyond its estimate a length may be: not measured at all, and not measured lately.
UNKNOWN_BY = 0.35
STALE_BY = 0.2
STALE_STEPS = 1500.0
# After so many steps without a draft, nothing is known of what drafts would bring.
UNSEEN_STEPS = 1500
UNSEEN_BY = 10.0


@dataclass(frozen=True, slots=True)
class Estimate:
    """The expected cost and yield of a length at a batch."""

    length: int
    step_seconds: float
    tokens_per_step: float
    steps: int
    tokens_per_second: float


class DraftLength:
    """Chooses among `lengths` for each step, within `least` and `most`: orders from outside.

    `planned` is the length to begin with by number of sequences; without it the longest is.
    """

    def __init__(self, lengths: Sequence[int], planned: Sequence[int] | None = None) -> None:
        self._planned = planned
        self.lengths = tuple(sorted(set(lengths)))
        self.costs = StepCosts()
        self.gains = Yield(self.lengths[-1])
        self.least: int | None = None
        self.most: int | None = None
        self.chosen = self.lengths[-1]
        self._by_batch: dict[int, int] = {}
        self._trying: int | None = None
        self._left = self._since = self._drafted = 0
        self._batch = 0
        self._spent = self._seconds = 0.0

    def choose(self, sequences: int) -> int:
        batch = bucket(sequences)
        if batch != self._batch:
            self._batch, self._trying = batch, None
        if self._trying in self.allowed and self._left > 0:
            self._left -= 1
            return self.chosen
        self._trying = None
        self._since += 1
        usual_length = self._by_batch.get(batch)
        if self._since % STEPS_BETWEEN_LOOKS and usual_length in self.allowed:
            self.chosen = usual_length
            return self.chosen
        self.gains.learn()
        estimates = self.estimate(sequences)
        best = max(estimates, key=lambda one: one.tokens_per_second)
        usual = self._settle(batch, best, estimates)
        if self._since >= STEPS_BETWEEN_TRIES and self._may_spend(sequences, usual):
            self._try_another(sequences, usual, estimates)
        self.chosen = usual.length if self._trying is None else self._trying
        return self.chosen

    def observe(self, sequences: int, length: int, seconds: float) -> None:
        """Learn from a step in which every sequence verified and drafted this length."""
        self.costs.observe(sequences, length, seconds)
        self._seconds += seconds
        if length != (usual := self._by_batch.get(bucket(sequences), length)):
            ratio = self._estimate(sequences, length).tokens_per_second / (
                self._estimate(sequences, usual).tokens_per_second
            )
            self._spent += seconds * max(0.0, 1 - ratio)

    def observe_draft(self, drafted: int, accepted: int) -> None:
        """Learn from the accepted tokens of one sequence's draft."""
        self.gains.observe(drafted, accepted)
        self._drafted = self.costs.steps

    def forget_drafts(self) -> None:
        """Forget the yield of drafts, since another drafter makes them."""
        self.gains = Yield(self.lengths[-1])
        self._by_batch, self._trying = {}, None

    def estimate(self, sequences: int) -> list[Estimate]:
        return [self._estimate(sequences, length) for length in self.allowed]

    @property
    def allowed(self) -> tuple[int, ...]:
        """The lengths within the order, or else the shortest."""
        least = 0 if self.least is None else self.least
        most = self.lengths[-1] if self.most is None else self.most
        within = tuple(length for length in self.lengths if least <= length <= most)
        return within or self.lengths[:1]

    def _estimate(self, sequences: int, length: int) -> Estimate:
        seconds, tokens = self.costs.expect(sequences, length), self.gains.expect(length)
        steps = self.costs.count(sequences, length)
        return Estimate(length, seconds, tokens, steps, sequences * tokens / seconds)

    def _settle(self, batch: int, best: Estimate, estimates: list[Estimate]) -> Estimate:
        """Change the batch's usual length only for one that is clearly better."""
        before = self._by_batch.get(batch)
        if before is None and self._planned is not None:
            before = self._planned[min(batch, len(self._planned) - 1)]
        usual = next((one for one in estimates if one.length == before), estimates[-1])
        if best.tokens_per_second > BETTER_BY * usual.tokens_per_second:
            usual = best
        self._by_batch[batch] = usual.length
        return usual

    def _may_spend(self, sequences: int, usual: Estimate) -> bool:
        first = FIRST_TRIES * usual.step_seconds
        return self._spent < TRY_COST_SHARE * self._seconds + first

    def _try_another(self, sequences: int, usual: Estimate, estimates: list[Estimate]) -> None:
        """Try the length that could be the best, if it is another one."""
        hopes = [
            (one.tokens_per_second * (1 + self._doubt(sequences, one)), one.length)
            for one in estimates
            if one.length != usual.length
        ]
        hope, length = max(hopes, default=(0.0, 0))
        if hope > usual.tokens_per_second:
            self._trying, self._left, self._since = length, TRY_STEPS - 1, 0

    def _doubt(self, sequences: int, one: Estimate) -> float:
        """Return by what share a length may be better than estimated."""
        if one.length and self.costs.steps - self._drafted > UNSEEN_STEPS:
            return UNSEEN_BY
        age = self.costs.age(sequences, one.length)
        if age is None:
            return UNKNOWN_BY
        stale: float = STALE_BY * (1 - 0.5 ** (age / STALE_STEPS))
        return UNKNOWN_BY / sqrt(1 + one.steps) + stale
