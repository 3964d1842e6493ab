"""`Demand`: who asks for how much, and the arrivals that are drawn from it.

Rates are those of the busiest hour; `hours` are every hour's share of it. Arrivals are a Poisson
process unless a recording is replayed.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from math import exp, log, sqrt
from random import Random
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, PositiveFloat, PositiveInt

from slipstream.records import Record

Share = Annotated[float, Field(ge=0, le=1)]
HOUR = 3600.0
# The spread of drawn lengths over their mean.
LENGTH_VARIATION = 0.5
_SPREAD = sqrt(log(1 + LENGTH_VARIATION**2))


class Arrival(NamedTuple):
    """A request: its second, and the tokens of its prompt that are computed, and of its answer."""

    at: float
    kind: str
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0


class RequestLength(NamedTuple):
    """A request's tokens: the prompt's that were not cached, and the answer's."""

    prompt_tokens: int
    output_tokens: int


class KindDemand(Record):
    """The requests of one kind in the busiest hour.

    `prompt_tokens` and `output_tokens` are means; `cached_share` of a prompt is in the prefix cache
    already. `lengths` are recorded requests, without what was cached; without any they are drawn.
    """

    kind: str
    requests_per_second: PositiveFloat
    prompt_tokens: PositiveInt
    output_tokens: PositiveInt
    cached_share: Share = 0.0
    lengths: tuple[RequestLength, ...] = ()

    @property
    def uncached_tokens(self) -> float:
        """The prompt's tokens that are computed, on average."""
        return self.prompt_tokens * (1 - self.cached_share)

    def draw_length(self, random: Random) -> RequestLength:
        """Draw one of the recorded lengths, or log-normal ones with these means."""
        if self.lengths:
            return self.lengths[int(random.random() * len(self.lengths))]
        prompt, answer = (
            max(1, round(mean * exp(_SPREAD * random.gauss(0, 1) - _SPREAD**2 / 2)))
            for mean in (self.uncached_tokens, self.output_tokens)
        )
        return RequestLength(prompt, answer)


class Demand(Record):
    """All kinds of requests; rates are per second in the busiest hour."""

    schema_version: Literal[2] = 2
    source: str
    kinds: tuple[KindDemand, ...]
    hours: tuple[Share, ...] = ()

    @property
    def requests_per_second(self) -> float:
        return sum(kind.requests_per_second for kind in self.kinds)

    @property
    def tokens_per_second(self) -> float:
        """All answers' tokens."""
        return sum(kind.requests_per_second * kind.output_tokens for kind in self.kinds)

    @property
    def mean_share(self) -> float:
        """The day's mean over the busiest hour."""
        return sum(self.hours) / len(self.hours) if self.hours else 1.0

    def grow(self, factor: float) -> "Demand":
        """Return the same demand, so many times as large."""
        kinds = (
            kind.model_copy(update={"requests_per_second": kind.requests_per_second * factor})
            for kind in self.kinds
        )
        return self.model_copy(update={"kinds": tuple(kinds)})


def draw_requests(demand: Demand, seconds: float, seed: int) -> Iterator[Arrival]:
    """Draw the arrivals of so many seconds; in each hour of a day its share of the busiest."""
    random, hours = Random(seed), demand.hours
    total, at = demand.requests_per_second, 0.0
    bounds = list(accumulate(kind.requests_per_second for kind in demand.kinds))
    while (at := at + random.expovariate(total)) < seconds:
        if hours and random.random() > hours[int(at // HOUR) % len(hours)]:
            continue
        place = bisect_right(bounds, random.random() * total)
        kind = demand.kinds[min(place, len(bounds) - 1)]
        yield Arrival(at, kind.kind, *kind.draw_length(random))


@lru_cache(maxsize=64)
def list_prompts(kind: KindDemand, count: int) -> Sequence[int]:
    """List prompts that stand for a kind's: recorded ones, or drawn ones, always the same."""
    step, random = max(1, len(kind.lengths) // count), Random(0)
    lengths = kind.lengths[::step][:count] or [kind.draw_length(random) for _ in range(count)]
    return [length.prompt_tokens for length in lengths]
