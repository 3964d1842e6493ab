"""`Percentiles` under the name that measuring has for it."""

from slipstream.steering.percentiles import Percentiles, rank

__all__ = ["Percentiles", "rank"]
