"""`Verdict`: whether one arm is faster than the other, for what, up to where, and how sure.

`docs/comparing.md` tells how it comes about and how often it errs.
"""

from typing import Literal

from slipstream.measuring.comparing.cautions import Caution
from slipstream.records import Record

EVEN = 0.05

Measure = Literal["time per token", "wall time per task"]
Outcome = Literal["faster", "slower", "even", "unclear"]
Answer = Literal["use", "use for some", "do not use", "cannot tell"]


class SpeedRatio(Record):
    """A ratio, above 1 if B is faster, with an interval that holds together with all others."""

    ratio: float
    low: float
    high: float


class SpeedFinding(Record):
    """What was found for a kind of prompt at a concurrency; of all kinds if `kind` is None.

    `speed_up` is of the verdict's measure and stands for any prompts or tasks of the kind;
    `throughput` is of the tokens or tasks per second and stands for these. `noise` is the ratio
    by which an arm differs from itself after a restart. Even is known to differ by less than 5 %.
    """

    kind: str | None
    concurrency: int
    prompts: int
    speed_up: SpeedRatio
    throughput: SpeedRatio
    noise: float
    outcome: Outcome


class BreakEven(Record):
    """The concurrency at which the speed-up falls below 1, with its interval.

    0 is below the smallest concurrency that was measured, None beyond `largest`.
    """

    kind: str | None
    concurrency: float | None
    low: float | None
    high: float | None
    largest: int


class Verdict(Record):
    """Whether arm B is faster than arm A; of `arms`, A is the first."""

    schema_version: Literal[1] = 1
    measure: Measure = "time per token"
    arms: tuple[str, str]
    blocks: int
    findings: tuple[SpeedFinding, ...]
    break_evens: tuple[BreakEven, ...]
    cautions: tuple[Caution, ...]
    answer: Answer
    more_blocks: int | None
    sentence: str
