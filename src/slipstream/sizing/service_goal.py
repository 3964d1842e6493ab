"""What a fleet has to hold: times that a share of the requests must not exceed."""

import re
from collections.abc import Sequence
from typing import Literal

from slipstream.errors import UsageError
from slipstream.records import Record

_LIMIT = re.compile(r"(ttft|tpot)\s*<=?\s*(\d+(?:\.\d+)?)\s*(ms|s)\s*@\s*p(\d+(?:\.\d+)?)")
_SECONDS = {"ms": 1e-3, "s": 1.0}
_HINT = "'ttft<1s@p95', 'tpot<30ms@p95' or throughput"
# A replica that is busier than this has a queue that grows with every burst.
THROUGHPUT_SHARE = 0.85

Figure = Literal["ttft", "tpot"]


class TimeLimit(Record):
    """A time to the first token, or per token after it, that this share must not exceed."""

    figure: Figure
    seconds: float
    share: float

    def __str__(self) -> str:
        """Write the limit as it is typed."""
        short = self.seconds < 1
        time = f"{1000 * self.seconds:g}ms" if short else f"{self.seconds:g}s"
        return f"{self.figure}<{time}@p{100 * self.share:g}"


class ServiceGoal(Record):
    """Limits that hold together; without any, nothing but the throughput counts."""

    limits: tuple[TimeLimit, ...] = ()

    def __str__(self) -> str:
        """Write the goal as it is typed."""
        return ", ".join(map(str, self.limits)) or "throughput"


def parse_service_goal(words: Sequence[str]) -> ServiceGoal:
    """Read limits such as `ttft<1s@p95`, or `throughput`."""
    texts = [word.strip().lower() for word in words]
    if texts == ["throughput"] or not texts:
        return ServiceGoal()
    return ServiceGoal(limits=tuple(_parse_limit(text) for text in texts))


def _parse_limit(text: str) -> TimeLimit:
    found = _LIMIT.fullmatch(text)
    if found is None:
        raise UsageError(f"the goal {text!r} is none that a fleet can be sized for", hint=_HINT)
    seconds, share = float(found[2]) * _SECONDS[found[3]], float(found[4]) / 100
    if seconds == 0 or not 0 < share < 1:
        raise UsageError(
            f"the goal {text} has a time of 0 or a percentile outside 0 and 100", hint=_HINT
        )
    return TimeLimit.model_validate({"figure": found[1], "seconds": seconds, "share": share})
