"""What simulated requests got, in histograms that take the same memory for a minute and a day."""

from math import exp, log

from slipstream.records import Record

_BUCKETS = 100
SHOWN_SHARES = (0.5, 0.9, 0.95, 0.99)


class Histogram:
    """Counts of values by their logarithm."""

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.total = 0

    def add(self, value: float) -> None:
        """Count a value."""
        place = int(_BUCKETS * log(max(value, 1e-6)) + 2000)
        self.counts[place] = self.counts.get(place, 0) + 1
        self.total += 1

    def find_quantile(self, share: float) -> float | None:
        """Return the value that this share does not exceed, None of nothing."""
        left = share * self.total
        for place in sorted(self.counts):
            left -= self.counts[place]
            if left <= 0:
                return exp((place + 0.5 - 2000) / _BUCKETS)
        return None


class TimeQuantiles(Record):
    """Seconds by the share of requests that took no longer; None of no request."""

    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None


class ServedFigures(Record):
    """What the requests of a simulation got; a request without a second token has no `tpot`.

    `lost` were cut off by a failure, `busy_share` is how much of the replicas' time was steps.
    """

    requests: int
    lost: int
    tokens: int
    seconds: float
    tokens_per_second: float
    ttft: TimeQuantiles
    tpot: TimeQuantiles
    busy_share: float
    mean_in_flight: float
    machine_hours: float
    most_replicas: int
    fewest_replicas: int


def describe_times(histogram: Histogram) -> TimeQuantiles:
    """Return the shares that are shown."""
    quantiles = {f"p{100 * share:.0f}": histogram.find_quantile(share) for share in SHOWN_SHARES}
    return TimeQuantiles.model_validate(quantiles)
