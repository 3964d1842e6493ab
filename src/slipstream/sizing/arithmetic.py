"""The first answer: a replica as a queue whose speed depends on how many share it.

With arrivals at a rate r per replica, S steps per request and a step of a + b n seconds for n
sequences, requests end at the rate n / (S (a + b n)), less the share of time that prompts take.
That is a birth-death process: the chance of n sequences follows from the chance of n - 1, up to
the engine's limit, and from there on the others wait. It holds for any spread of lengths, since
sequences of a step share it evenly.

Replicas count as independent, as they are if requests are dealt at random. A router that takes the
emptier of two keeps them more even.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from slipstream.sizing.demand import Demand, KindDemand, list_lengths
from slipstream.sizing.engine_speed import EngineSpeed
from slipstream.sizing.service_goal import THROUGHPUT_SHARE, ServiceGoal, TimeLimit

_SAMPLED_LENGTHS = 9
_PARTS_OF_A_STEP = (1 / 6, 1 / 2, 5 / 6)
_SMALLEST = 1e-9
_LONGEST_QUEUE = 20_000
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
            return float("inf")
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

    def find_time(self, limit: TimeLimit) -> float:
        """Return the time that the limit's share of requests does not exceed."""
        if not self.chances:
            return float("inf")
        times = self._list_per_token() if limit.figure == "tpot" else self._list_first()
        times.sort()
        left = limit.share * sum(weight for _, weight in times)
        for time, weight in times:
            left -= weight
            if left <= 0:
                return time
        return times[-1][0]

    def meets(self, goal: ServiceGoal) -> bool:
        """Say whether all limits hold; without one, that queues stay short is enough."""
        if self.busy_share >= THROUGHPUT_SHARE and not goal.limits:
            return False
        return all(self.find_time(limit) <= limit.seconds for limit in goal.limits)

    def _list_per_token(self) -> list[tuple[float, float]]:
        left = 1 - self.prompt_share
        return [
            (self._step(min(number + 1, self.speed.max_sequences)) / left / rate, chance * weight)
            for number, chance in enumerate(self.chances)
            for rate, weight in self._rates
        ]

    def _list_first(self) -> list[tuple[float, float]]:
        most, left = self.speed.max_sequences, 1 - self.prompt_share
        leave = most * left / (self.steps * self._step(most))
        times: list[tuple[float, float]] = []
        for number, chance in enumerate(self.chances):
            waiting = max(0, number - most + 1) / leave
            step = self._step(min(number + 1, most))
            for prompt, weight in self._prompts:
                own = waiting + step + prompt * self.speed.by_prompt_token
                own += self.speed.overhead_seconds
                for part in _PARTS_OF_A_STEP if number else (0.0,):
                    share = chance * weight / (len(_PARTS_OF_A_STEP) if number else 1)
                    times.append((own + part * step, share))
        return times

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
    def _prompts(self) -> list[tuple[int, float]]:
        prompts: list[tuple[int, float]] = []
        for kind in self.demand.kinds:
            lengths = list_lengths(kind, self.demand.length_variation, _SAMPLED_LENGTHS)
            weight = kind.requests_per_second / self.demand.requests_per_second / len(lengths)
            prompts += [(length.prompt_tokens, weight) for length in lengths]
        return prompts

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
