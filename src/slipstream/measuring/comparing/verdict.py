"""`Verdict`: which arm is fastest for what, up to where, and how sure.

`docs/worth-it.md` explains it, `docs/measurements.md` has its error rates.
"""

from typing import Literal

from slipstream.measuring.comparing.cautions import Caution
from slipstream.records import Record

EVEN = 0.05
PLAIN = "plain"
"""What an arm without speculation is called."""

Measure = Literal["time per token", "wall time per task"]
Outcome = Literal["faster", "slower", "even", "unclear"]
Answer = Literal[
    # Of two arms, whether to use the second instead of the first.
    "use",
    "use for some",
    "do not use",
    # Of more arms.
    "one winner",
    "it depends",
    "cannot tell",
]


class SpeedRatio(Record):
    """A ratio, above 1 if the second arm is faster, with a simultaneous confidence interval."""

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


class PairFindings(Record):
    """The speed of the second of two arms relative to the first, in every row.

    The break-evens of each kind are there if the first is the first of all arms.
    """

    arms: tuple[str, str]
    findings: tuple[SpeedFinding, ...]
    break_evens: tuple[BreakEven, ...] = ()


class Place(Record):
    """Who may be fastest for a kind of prompt at a concurrency; of all kinds if `kind` is None.

    `contenders` are the arms than which none was shown to be faster, the fastest first: a single
    one is the winner. `even` says that they are known to differ by less than 5 %. `speed_up` is of
    the first contender against the first arm, None if that is the same.
    """

    kind: str | None
    concurrency: int
    contenders: tuple[str, ...]
    even: bool
    speed_up: SpeedRatio | None

    @property
    def winner(self) -> str | None:
        return self.contenders[0] if len(self.contenders) == 1 else None


class Verdict(Record):
    """Which of two or more arms is fastest for what; ratios are against the first of `arms`."""

    schema_version: Literal[2] = 2
    measure: Measure = "time per token"
    arms: tuple[str, ...]
    blocks: int
    pairs: tuple[PairFindings, ...]
    places: tuple[Place, ...]
    cautions: tuple[Caution, ...]
    answer: Answer
    more_blocks: int | None
    sentence: str

    @property
    def is_disturbed(self) -> bool:
        """Return whether the machine was too busy for any outcome."""
        return any(caution.code == "busy-machine" for caution in self.cautions)

    @property
    def against_first(self) -> tuple[PairFindings, ...]:
        return tuple(pair for pair in self.pairs if pair.arms[0] == self.arms[0])

    def find(self, arm: str) -> tuple[SpeedFinding, ...]:
        return next(pair.findings for pair in self.against_first if pair.arms[1] == arm)
