"""`Percentiles`: seconds by the share of requests that took no longer."""

import math
from collections.abc import Mapping, Sequence

from slipstream.records import Record


class Percentiles(Record):
    """Seconds, by the share of requests that took no longer."""

    p50: float
    p90: float
    p95: float
    p99: float


def rank(values: Sequence[float | None]) -> Percentiles | None:
    """Return the nearest-rank percentile, which is always a measured value."""
    found = sorted(value for value in values if value is not None)
    if not found:
        return None
    ranks: Mapping[str, float] = {
        name: found[math.ceil(share * len(found)) - 1]
        for name, share in (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99))
    }
    return Percentiles(**ranks)
