"""The first answer: a replica as a queue whose speed depends on how many share it.

With arrivals at a rate r per replica, S steps per request and a step of a + b n seconds for n
sequences, requests end at the rate n / (S (a + b n)), less the share of time that prompts take.
That is a birth-death process: the chance of n sequences follows from the chance of n - 1, up to
the engine's limit, and from there on the others wait. It holds for any spread of lengths, since
sequences of a step share it evenly.

Replicas count as independent, as they are if requests are distributed at random. A router that
takes the emptier of two keeps them more even.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import ceil, inf, log
from typing import TYPE_CHECKING, TypeVar

from slipstream.sizing.demand import Demand, KindDemand, list_prompts
from slipstream.sizing.engine_speed import EngineSpeed
from slipstream.tuning.goal import Figure, Goal

if TYPE_CHECKING:
    from numpy import float64
    from numpy.typing import NDArray

    Array = NDArray[float64]

Sequences = TypeVar("Sequences", float, "Array")

_SAMPLED_LENGTHS = 40
# Where in the step before it a request arrives that meets others.
_PARTS_OF_A_STEP = (1 / 6, 1 / 2, 5 / 6)
_SMALLEST = 1e-9
_LONGEST_QUEUE = 20_000
_LONGEST_SECONDS = 1e6
# A replica that is busier than this has a queue that grows with every burst.
THROUGHPUT_SHARE = 0.85
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
    def kinds(self) -> tuple[str, ...]:
        return tuple(kind.kind for kind in self.demand.kinds)

    @property
    def arrivals(self) -> float:
        return self.demand.requests_per_second / self.replicas

    @cached_property
    def steps(self) -> float:
        """Steps of a request, with the one that reads its prompt."""
        return 1 + self._mean(lambda kind: (kind.output_tokens - 1) / self._tokens(kind))

    @cached_property
    def prompt_share(self) -> float:
        """The share of a replica's time that goes into prompts' tokens."""
        tokens = self._mean(lambda kind: kind.uncached_tokens)
        return self.arrivals * tokens * self.speed.per_prompt_token

    @property
    def busy_share(self) -> float:
        """The load over the largest that does not queue without end."""
        most, left = self.speed.max_sequences, 1 - self.prompt_share
        if left <= 0:
            return inf
        return self.arrivals * self.steps * self.step(most) / most / left

    @cached_property
    def chances(self) -> "Array":
        """The chance of each number of requests in a replica; empty if they only grow."""
        import numpy

        busy, most = self.busy_share, self.speed.max_sequences
        if busy >= 1:
            return numpy.empty(0)
        # Beyond the engine's limit each chance is the busy share of the one before.
        waiting = min(_LONGEST_QUEUE, ceil(log(_SMALLEST) / log(busy)))
        sharing = numpy.minimum(numpy.arange(1, most + waiting), most)
        rate = self.arrivals * self.steps / (1 - self.prompt_share)
        ratios = numpy.log(rate * self.step(sharing) / sharing)
        logs = numpy.concatenate(([0.0], numpy.cumsum(ratios)))
        chances: Array = numpy.exp(logs - numpy.logaddexp.reduce(logs))
        return chances

    @property
    def mean_sequences(self) -> float:
        return float(self.chances @ range(len(self.chances)))

    def find_share(self, figure: Figure, seconds: float) -> float:
        """Return the share of requests whose time does not exceed these seconds."""
        import numpy

        most, left = self.speed.max_sequences, 1 - self.prompt_share
        number = numpy.arange(len(self.chances))
        step = self.step(numpy.minimum(number + 1, most))
        if figure == "tpot":
            rates, weights = self._rates
            within = (step[:, None] / left <= seconds * rates) @ weights
        else:
            waiting = numpy.maximum(0, number - most + 1) * self.steps * self.step(most)
            rest = seconds - step - self.speed.overhead_seconds - waiting / most / left
            parts = numpy.outer(step * (number > 0), _PARTS_OF_A_STEP)
            prompts, up_to = self._prompts
            read = (rest[:, None] - parts) / max(self.speed.per_prompt_token, 1e-12)
            within = up_to[numpy.searchsorted(prompts, read, side="right")].mean(axis=1)
        return float(within @ self.chances)

    def find_time(self, figure: Figure, share: float) -> float | None:
        """Return the time that this share of requests does not exceed, None without end."""
        from scipy.optimize import brentq

        high = 1.0
        while self.find_share(figure, high) < share:
            high *= 2
            if high > _LONGEST_SECONDS:
                return None
        return float(brentq(lambda time: self.find_share(figure, time) - share, 0.0, high))

    def meets(self, goal: Goal) -> bool:
        """Say whether all limits hold; without one, that queues stay short is enough."""
        if self.busy_share >= (FULL_SHARE if goal.limits else THROUGHPUT_SHARE):
            return False
        return all(
            self.find_share(limit.figure, limit.seconds) >= limit.share for limit in goal.limits
        )

    def step(self, sequences: Sequences) -> Sequences:
        """Return the seconds of a step of so many sequences."""
        cost = self.speed.find_cost(self.draft_length)
        return cost.fixed + sequences * cost.marginal(self.draft_length)

    @cached_property
    def _rates(self) -> "tuple[Array, Array]":
        """Requests' tokens per step, and the share of requests that have them."""
        import numpy

        pairs: list[tuple[float, float]] = []
        for kind in self.demand.kinds:
            drafts = self.speed.find_yield(kind.kind, self.draft_length)
            factors = drafts.factors if drafts else (1.0,)
            weight = kind.requests_per_second / self.demand.requests_per_second / len(factors)
            pairs += [(max(1.0, self._tokens(kind) * one), weight) for one in factors]
        rates, weights = numpy.array(pairs).T
        return rates, weights

    @cached_property
    def _prompts(self) -> "tuple[Array, Array]":
        """Prompts in the order of their length, and the share of those before each."""
        import numpy

        prompts: list[tuple[int, float]] = []
        for kind in self.demand.kinds:
            own = list_prompts(kind, _SAMPLED_LENGTHS)
            weight = kind.requests_per_second / self.demand.requests_per_second / len(own)
            prompts += [(tokens, weight) for tokens in own]
        tokens, weights = numpy.array(sorted(prompts)).T
        return tokens, numpy.concatenate(([0.0], numpy.cumsum(weights)))

    def _tokens(self, kind: KindDemand) -> float:
        return self.speed.count_tokens_per_step(kind.kind, self.draft_length)

    def _mean(self, read: Callable[[KindDemand], float]) -> float:
        kinds = self.demand.kinds
        total = self.demand.requests_per_second
        return sum(kind.requests_per_second * read(kind) for kind in kinds) / total


def count_replicas(
    speed: EngineSpeed,
    draft_length: int,
    demand: Demand,
    goal: Goal,
    *,
    fewer_than: int = MOST_REPLICAS,
) -> int | None:
    """Return the fewest replicas that hold the goal, None if no number below the given one does."""

    def holds(replicas: int) -> bool:
        return PoolLoad(speed, draft_length, demand, replicas).meets(goal)

    most = fewer_than - 1
    if most < 1 or not holds(most):
        return None
    return 1 + bisect_left(range(1, most), True, key=holds)
