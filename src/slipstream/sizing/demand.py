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


class Arrival(NamedTuple):
    """One request: its second, its kind, the prompt's tokens to compute, the answer's tokens.

    `cached_tokens` of the prompt are those that need not be computed.
    """

    at: float
    kind: str
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0


class RequestLength(NamedTuple):
    """A recorded request's tokens: the prompt's that were not cached, and the answer's."""

    prompt_tokens: int
    output_tokens: int


class KindDemand(Record):
    """The requests of one kind in the busiest hour.

    `prompt_tokens` and `output_tokens` are means; `cached_share` of a prompt is in the prefix cache
    already. `lengths` are recorded requests, without what was cached; drawn ones have none.
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


class Demand(Record):
    """All kinds of requests; `length_variation` is the spread of lengths over their mean."""

    schema_version: Literal[1] = 1
    source: str
    kinds: tuple[KindDemand, ...]
    length_variation: Annotated[float, Field(ge=0, le=3)] = 0.5
    hours: tuple[Share, ...] = ()

    @property
    def requests_per_second(self) -> float:
        """All requests of the busiest hour, per second."""
        return sum(kind.requests_per_second for kind in self.kinds)

    @property
    def tokens_per_second(self) -> float:
        """All answers' tokens of the busiest hour, per second."""
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

    def find_share(self, at: float) -> float:
        """Return an instant's share of the busiest hour: that of its hour, all through."""
        return self.hours[int(at // HOUR) % len(self.hours)] if self.hours else 1.0


def draw_requests(demand: Demand, seconds: float, seed: int) -> Iterator[Arrival]:
    """Draw the arrivals of so many seconds; a day's course thins those of its busiest hour."""
    random = Random(seed)
    total, at, variation = demand.requests_per_second, 0.0, demand.length_variation
    bounds = list(accumulate(kind.requests_per_second for kind in demand.kinds))
    while (at := at + random.expovariate(total)) < seconds:
        if demand.hours and random.random() > demand.find_share(at):
            continue
        place = bisect_right(bounds, random.random() * total)
        kind = demand.kinds[min(place, len(bounds) - 1)]
        if kind.lengths:
            length = kind.lengths[int(random.random() * len(kind.lengths))]
            yield Arrival(at, kind.kind, length.prompt_tokens, length.output_tokens)
        else:
            prompt = draw_length(kind.uncached_tokens, variation, random)
            answer = draw_length(kind.output_tokens, variation, random)
            yield Arrival(at, kind.kind, prompt, answer)


def draw_length(mean: float, variation: float, random: Random) -> int:
    """Draw a length from a log-normal distribution with this mean and relative spread."""
    if not variation:
        return max(1, round(mean))
    spread = sqrt(log(1 + variation**2))
    return max(1, round(mean * exp(spread * random.gauss(0, 1) - spread**2 / 2)))


@lru_cache(maxsize=64)
def list_lengths(kind: KindDemand, variation: float, count: int) -> Sequence[RequestLength]:
    """List lengths that stand for a kind's: recorded ones, or drawn ones, always the same."""
    if kind.lengths:
        step = max(1, len(kind.lengths) // count)
        return kind.lengths[::step][:count]
    random = Random(0)
    return [
        RequestLength(
            draw_length(kind.uncached_tokens, variation, random),
            draw_length(kind.output_tokens, variation, random),
        )
        for _ in range(count)
    ]
