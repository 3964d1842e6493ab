"""`SteeringState` and `SteeringOrder`: what the engine's core reports, and what it is ordered.

The core reports about once a second, idle or not (`slipstream.vllm_plugin.steering.steering`): an
older report is of a core that hangs or is gone.
"""

from typing import Annotated, Literal, get_args

from pydantic import ConfigDict, Field, NonNegativeFloat, NonNegativeInt

from slipstream.records import Record
from slipstream.steering.drafts import ServedSteps
from slipstream.steering.ledger import LONGEST_DRAFT

FRESH_SECONDS = 10.0

Kind = Literal["code", "prose", "structured", "tools", "translation", "other"]
KINDS: tuple[Kind, ...] = get_args(Kind)


class SteeringOrder(Record):
    """The shortest and the longest draft allowed: 0 for none, None for any.

    `drafter` counts the drafters that have served: after another one was loaded, what was learnt
    of the yield of drafts no longer holds.
    """

    schema_version: Literal[1] = 1
    least: NonNegativeInt | None = None
    most: NonNegativeInt | None = None
    drafter: NonNegativeInt = 0


class _Reported(Record):
    """A part of the core's report."""

    model_config = ConfigDict(allow_inf_nan=False)


class KindCounts(ServedSteps, _Reported):
    """The requests of one kind since the engine's start."""

    accepted: Annotated[tuple[NonNegativeInt, ...], Field(max_length=LONGEST_DRAFT)] = ()
    requests: NonNegativeInt
    aborted: NonNegativeInt

    def since(self, before: "KindCounts | None") -> "KindCounts":
        """Return what was counted in between; all of it after the engine was started anew."""
        if before is None or before.steps > self.steps or before.drafts > self.drafts:
            return self
        earlier = before.accepted + (0,) * (len(self.accepted) - len(before.accepted))
        return KindCounts(
            **{
                name: max(0, getattr(self, name) - getattr(before, name))
                for name in KindCounts.model_fields
                if name != "accepted"
            },
            accepted=tuple(
                max(0, now - then) for now, then in zip(self.accepted, earlier, strict=False)
            ),
        )


class Calibration(_Reported):
    """How often drafted tokens of a kind and position are accepted: predicted and measured."""

    kind: Kind
    position: NonNegativeInt
    tokens: NonNegativeFloat
    predicted: NonNegativeFloat
    measured: NonNegativeFloat


class LengthEstimate(_Reported):
    """The estimated cost and yield of a draft length for the current batch."""

    draft_length: NonNegativeInt
    step_seconds: NonNegativeFloat | None
    tokens_per_step: NonNegativeFloat | None
    tokens_per_second: NonNegativeFloat | None
    steps: NonNegativeInt


class SteeringState(_Reported):
    """The core's report; counts are since the engine's start, what is unknown is None."""

    schema_version: Literal[1] = 1
    # Of several cores (data parallel) each reports by itself.
    rank: NonNegativeInt = 0
    pid: int
    at: NonNegativeFloat
    # What went wrong in our part of a step within the last minutes.
    fault: str | None = None
    steers: bool
    draft_length: NonNegativeInt | None
    longest: NonNegativeInt | None
    least: NonNegativeInt | None
    most: NonNegativeInt | None
    plain_pays: bool
    # What a draft token's chance must exceed to be verified, and the share of time lost to tries.
    price: NonNegativeFloat | None = None
    spent_share: float | None = None
    calibration: tuple[Calibration, ...] = ()
    running: NonNegativeInt
    waiting: NonNegativeInt
    kv_usage: NonNegativeFloat | None
    memory_mib: NonNegativeInt
    steps: NonNegativeInt
    step_seconds: NonNegativeFloat | None
    tokens: NonNegativeInt
    tokens_per_second: NonNegativeFloat | None
    kinds: dict[Kind, KindCounts]
    lengths: Annotated[tuple[LengthEstimate, ...], Field(max_length=LONGEST_DRAFT + 1)]

    def is_fresh(self, now: float) -> bool:
        """Return whether the report is of this moment, in seconds since 1970."""
        return abs(now - self.at) <= FRESH_SECONDS
