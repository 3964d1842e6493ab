"""`SteeringState`: the report of the engine's core on its steps, about once a second.

The core writes it (`slipstream.vllm_plugin.steering.steering`), idle or not: one that is older is
of a core that hangs or is gone, or of a full disk.
"""

from pathlib import Path
from typing import Literal, get_args

from pydantic import ConfigDict, NonNegativeFloat, NonNegativeInt, ValidationError

from slipstream.records import Record
from slipstream.steering.drafts import Drafts

FRESH_SECONDS = 10.0
MOST_BYTES = 2**18

Kind = Literal["code", "prose", "structured", "tools", "translation", "other"]
KINDS: tuple[Kind, ...] = get_args(Kind)


class _Reported(Record):
    """A part of the core's report."""

    model_config = ConfigDict(allow_inf_nan=False)


class KindCounts(Drafts, _Reported):
    """The requests of one kind since the engine's start."""

    requests: NonNegativeInt
    aborted: NonNegativeInt
    tokens: NonNegativeInt
    steps: NonNegativeInt

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
    pid: int
    at: NonNegativeFloat
    steers: bool
    draft_length: NonNegativeInt | None
    longest: NonNegativeInt | None
    least: NonNegativeInt | None
    most: NonNegativeInt | None
    plain_pays: bool
    running: NonNegativeInt
    waiting: NonNegativeInt
    kv_usage: NonNegativeFloat | None
    memory_mib: NonNegativeInt
    steps: NonNegativeInt
    step_seconds: NonNegativeFloat | None
    tokens: NonNegativeInt
    tokens_per_second: NonNegativeFloat | None
    kinds: dict[Kind, KindCounts]
    lengths: tuple[LengthEstimate, ...]


def read_state(path: Path, now: float) -> SteeringState | None:
    """Read the core's report; None if there is none of this moment that this version reads."""
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        state = SteeringState.model_validate_json(content if len(content) <= MOST_BYTES else b"")
    except (OSError, ValidationError):
        return None
    return state if abs(now - state.at) <= FRESH_SECONDS else None
