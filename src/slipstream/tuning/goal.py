"""The goal of tuning: time per token, tokens per second, or a limit to keep."""

import re
from typing import Literal

from slipstream.errors import UsageError
from slipstream.records import Record

_LIMIT = re.compile(r"tpot\s*<=?\s*(\d+(?:\.\d+)?)\s*(ms|s)\s*@\s*p(\d+(?:\.\d+)?)")
_SECONDS = {"ms": 1e-3, "s": 1.0}
_HINT = "latency, throughput, or a limit such as 'tpot<30ms@p95'"


class Limit(Record):
    """A time per token that a share of requests must not exceed."""

    seconds_per_token: float
    share: float


class Goal(Record):
    """The measure to optimize at the given load or, for a limit, at the largest that keeps it."""

    name: Literal["latency", "throughput", "limit"]
    limit: Limit | None = None


def parse_goal(text: str) -> Goal:
    """Read `latency`, `throughput` or `tpot<30ms@p95`."""
    word = text.strip().lower()
    if word == "latency":
        return Goal(name="latency")
    if word == "throughput":
        return Goal(name="throughput")
    found = _LIMIT.fullmatch(word)
    if found is None:
        raise UsageError(_explain(word), hint=_HINT)
    seconds, share = float(found[1]) * _SECONDS[found[2]], float(found[3]) / 100
    if seconds == 0 or not 0 < share < 1:
        raise UsageError(
            f"the goal {word} has a time of 0 or a percentile outside 0 and 100", hint=_HINT
        )
    return Goal(name="limit", limit=Limit(seconds_per_token=seconds, share=share))


def _explain(word: str) -> str:
    if word.startswith(("ttft", "e2e")):
        return f"the goal {word} is not about the time per token, which is all that drafts change"
    if word.startswith("tpot"):
        return f"the goal {word} lacks a unit (ms or s) or a percentile (@p95)"
    return f"the goal {word!r} is none that a server can be tuned for"
