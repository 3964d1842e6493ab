"""The first answer: a replica as a queue whose speed depends on how many share it.

With arrivals at a rate r per replica, S steps per request and a step of a + b n seconds for n
sequences, requests end at the rate n / (S (a + b n)), less the share of time that prompts take.
That is a birth-death process: the chance of n sequences follows from the chance of n - 1, up to
the engine's limit, and from there on the others wait. It holds for any spread of lengths, since
sequences of a step share it evenly.

Replicas count as independent, as they are if requests are distributed at random. A router that
takes the emptier of two keeps them more even.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import inf

from slipstream.sizing.demand import Demand, KindDemand, list_lengths
from slipstream.sizing.engine_speed import EngineSpeed
from slipstream.sizing.service_goal import THROUGHPUT_SHARE, Figure, ServiceGoal

_SAMPLED_LENGTHS = 40
_PARTS_OF_A_STEP = (1 / 6, 1 / 2, 5 / 6)
_SMALLEST = 1e-9
_LONGEST_QUEUE = 20_000
_LONGEST_SECONDS = 1e6
_HALVINGS = 30
# Fuller, and a queue that empties takes longer than a busy hour lasts.
FULL_SHARE = 0.98
MOST_REPLICAS = 1_000_000


@dataclass(frozen=True)
class PoolLoad:
    """One replica's part of a demand, at one draft length."""

    speed: EngineSpeed
    draft_length: int
    demand: Demand
    replicas: int

    @property
    def arrivals(self) -> float:
        """Requests per second of one replica."""
        return self.demand.requests_per_second / self.replicas

    @cached_property
    def steps(self) -> float:
        """Steps of a request, with the one that reads its prompt."""
        return 1 + self._mean(lambda kind: (kind.output_tokens - 1) / self._tokens(kind))

    @cached_property
    def prompt_share(self) -> float:
        """The share of a replica's time that goes into prompts' tokens."""
        tokens = self._mean(lambda kind: kind.uncached_tokens)
        return self.arrivals * tokens * self.speed.by_prompt_token

    @property
    def busy_share(self) -> float:
        """The load over the largest that does not queue without end."""
        most = self.speed.max_sequences
        left = 1 - self.prompt_share
        if left <= 0:
            return inf
        return self.arrivals * self.steps * self._step(most) / most / left

    @cached_property
    def chances(self) -> Sequence[float]:
        """The chance of each number of requests in a replica; empty if they only grow."""
        if self.busy_share >= 1:
            return ()
        most, left = self.speed.max_sequences, 1 - self.prompt_share
        weights = [1.0]
        while len(weights) < _LONGEST_QUEUE:
            number = len(weights)
            sharing = min(number, most)
            weights.append(
                weights[-1] * self.arrivals * self.steps * self._step(sharing) / sharing / left
            )
            if number > most and weights[-1] < _SMALLEST * max(weights):
                break
        whole = sum(weights)
        return [weight / whole for weight in weights]

    @cached_property
    def mean_sequences(self) -> float:
        """Requests in a replica, on average."""
        return sum(number * chance for number, chance in enumerate(self.chances))

    def find_share(self, figure: Figure, seconds: float) -> float:
        """Return the share of requests whose time does not exceed these seconds."""
        share_of = self._share_per_token if figure == "tpot" else self._share_first
        share = 0.0
        for number, chance in enumerate(self.chances):
            within = share_of(number, seconds)
            if not within:
                break
            share += chance * within
        return share

    def find_time(self, figure: Figure, share: float) -> float:
        """Return the time that this share of requests does not exceed."""
        if not self.chances:
            return inf
        low, high = 0.0, 1.0
        while self.find_share(figure, high) < share:
            low, high = high, 2 * high
            if high > _LONGEST_SECONDS:
                return inf
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            if self.find_share(figure, middle) < share:
                low = middle
            else:
                high = middle
        return high

    def meets(self, goal: ServiceGoal) -> bool:
        """Say whether all limits hold; without one, that queues stay short is enough."""
        if self.busy_share >= (FULL_SHARE if goal.limits else THROUGHPUT_SHARE):
            return False
        return all(
            self.find_share(limit.figure, limit.seconds) >= limit.share for limit in goal.limits
        )

    def _share_per_token(self, number: int, seconds: float) -> float:
        """Return the share of requests that meet so many others and are fast enough."""
        step = self._step(min(number + 1, self.speed.max_sequences)) / (1 - self.prompt_share)
        return sum(weight for rate, weight in self._rates if step <= seconds * rate)

    def _share_first(self, number: int, seconds: float) -> float:
        most = self.speed.max_sequences
        step = self._step(min(number + 1, most))
        waiting = max(0, number - most + 1) * self.steps * self._step(most)
        left = seconds - step - self.speed.overhead_seconds
        left -= waiting / most / (1 - self.prompt_share)
        parts = _PARTS_OF_A_STEP if number else (0.0,)
        return sum(self._count_prompts(left - part * step) for part in parts) / len(parts)

    def _count_prompts(self, seconds: float) -> float:
        """Return the share of prompts that are read in so many seconds."""
        if seconds < 0:
            return 0.0
        by_token = self.speed.by_prompt_token
        place = (
            bisect_right(self._prompts[0], seconds / by_token)
            if by_token
            else len(self._prompts[0])
        )
        return self._prompts[1][place]

    @cached_property
    def _rates(self) -> list[tuple[float, float]]:
        """Requests' tokens per step and how many have them."""
        rates: list[tuple[float, float]] = []
        for kind in self.demand.kinds:
            drafts = self.speed.find_yield(kind.kind, self.draft_length)
            weight = kind.requests_per_second / self.demand.requests_per_second
            factors = drafts.factors if drafts else (1.0,)
            mean = self._tokens(kind)
            rates += [(max(1.0, mean * one), weight / len(factors)) for one in factors]
        return rates

    @cached_property
    def _prompts(self) -> tuple[list[int], list[float]]:
        """Prompts in the order of their length, and the share of those before each."""
        prompts: list[tuple[int, float]] = []
        for kind in self.demand.kinds:
            lengths = list_lengths(kind, self.demand.length_variation, _SAMPLED_LENGTHS)
            weight = kind.requests_per_second / self.demand.requests_per_second / len(lengths)
            prompts += [(length.prompt_tokens, weight) for length in lengths]
        prompts.sort()
        return [tokens for tokens, _ in prompts], [0.0, *accumulate(part for _, part in prompts)]

    def _tokens(self, kind: KindDemand) -> float:
        return self.speed.count_tokens_per_step(kind.kind, self.draft_length)

    def _step(self, sequences: float) -> float:
        return self.speed.find_cost(self.draft_length).predict(sequences, self.draft_length)

    def _mean(self, read: Callable[[KindDemand], float]) -> float:
        kinds = self.demand.kinds
        total = self.demand.requests_per_second
        return sum(kind.requests_per_second * read(kind) for kind in kinds) / total


def count_replicas(
    speed: EngineSpeed,
    draft_length: int,
    demand: Demand,
    goal: ServiceGoal,
    *,
    fewer_than: int = MOST_REPLICAS,
) -> int | None:
    """Return the fewest replicas that hold the goal, None if no number below the given one does."""

    def holds(replicas: int) -> bool:
        return PoolLoad(speed, draft_length, demand, replicas).meets(goal)

    high = fewer_than - 1
    if high < 1 or not holds(high):
        return None
    low, step = 0, 1
    # From below by doubling: most fleets are far smaller than what is allowed.
    while step < high and not holds(step):
        low, step = step, 2 * step
    high = min(high, step)
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle
    return high
