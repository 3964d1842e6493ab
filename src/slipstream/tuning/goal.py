"""`Goal`: what `tune` and `size` work for, in words or as limits on times."""

import re
from collections.abc import Sequence
from typing import Literal

from slipstream.errors import UsageError
from slipstream.records import Record

Aim = Literal["latency", "throughput"]
Figure = Literal["ttft", "tpot"]
_LIMIT = re.compile(r"(ttft|tpot)\s*<=?\s*(\d+(?:\.\d+)?)\s*(ms|s)\s*@\s*p(\d+(?:\.\d+)?)")
_SECONDS = {"ms": 1e-3, "s": 1.0}
_EXAMPLES: dict[Figure, str] = {"ttft": "'ttft<1s@p95'", "tpot": "'tpot<30ms@p95'"}


class Limit(Record):
    """A time to the first token, or per token after it, that a share must not exceed."""

    figure: Figure
    seconds: float
    share: float

    def __str__(self) -> str:
        time = f"{1000 * self.seconds:g}ms" if self.seconds < 1 else f"{self.seconds:g}s"
        return f"{self.figure}<{time}@p{100 * self.share:g}"


class Goal(Record):
    """The measure to optimize, or limits that all have to be kept."""

    name: Literal["latency", "throughput", "limits"]
    limits: tuple[Limit, ...] = ()

    @property
    def limit(self) -> Limit | None:
        return self.limits[0] if self.limits else None

    def __str__(self) -> str:
        return ", ".join(map(str, self.limits)) or self.name


def parse_goal(
    words: Sequence[str],
    *,
    aims: Sequence[Aim] = ("latency", "throughput"),
    figures: Sequence[Figure] = ("tpot",),
) -> Goal:
    """Read one of the aims, or limits on these figures such as `tpot<30ms@p95`."""
    texts = [word.strip().lower() for word in words]
    for aim in aims:
        if texts == [aim]:
            return Goal(name=aim)
    hint = " or ".join((*aims, *(_EXAMPLES[figure] for figure in figures)))
    limits = []
    for text in texts:
        found = _LIMIT.fullmatch(text)
        if found is None or found[1] not in figures:
            raise UsageError(_explain(text, figures), hint=hint)
        seconds, share = float(found[2]) * _SECONDS[found[3]], float(found[4]) / 100
        if seconds == 0 or not 0 < share < 1:
            raise UsageError(
                f"the goal {text} has a time of 0 or a percentile outside 0 and 100", hint=hint
            )
        limits.append({"figure": found[1], "seconds": seconds, "share": share})
    return Goal.model_validate({"name": "limits", "limits": limits})


def _explain(text: str, figures: Sequence[Figure]) -> str:
    if text.startswith(tuple(figures)):
        return f"the goal {text} lacks a unit (ms or s) or a percentile (@p95)"
    if text.startswith(("ttft", "e2e")):
        return f"the goal {text} is not about the time per token, the only one that drafts change"
    return f"the goal {text!r} is unknown"
