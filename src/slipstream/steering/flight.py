"""`Flight`: the steps before an engine's end, and the format of the recorder in its core."""

import struct
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Literal, NamedTuple

from pydantic import AwareDatetime

from slipstream.records import Record

# Another form of STEP has another one, so that no version reads the file of another wrongly.
MAGIC = b"SLIPFLT2"
HEADER = struct.Struct("<8sII")
STEP = struct.Struct("<dIHHIIHHIIff")
MOST_STEPS = 1 << 16
_MINUTE = 60.0


class FlightStep(NamedTuple):
    """One step of the engine as STEP packs it.

    `verified` are the draft tokens of all its sequences, `copied` of these those that were copied,
    and `drafted` is the length of the drafts that were made in it.
    """

    at: float
    number: int
    running: int
    waiting: int
    prompt_tokens: int
    verified: int
    drafted: int
    copied: int
    tokens: int
    memory_mib: int
    seconds: float
    cache: float


class Flight(Record):
    """The last steps in figures; the usual step is the median of the last minute.

    `prompt_tokens`, `verified` and `copied` are tokens of the last step.
    """

    schema_version: Literal[2] = 2
    steps: int
    seconds: float
    last_at: AwareDatetime
    running: int
    waiting: int
    prompt_tokens: int
    draft_length: int
    verified: int
    copied: int
    step_seconds: float
    last_step_seconds: float
    cache: float
    memory_mib: int
    memory_grown_mib: int


def read_flight(path: Path) -> Flight | None:
    """Read what the recorder kept, None if there is nothing or it is not whole."""
    try:
        content = path.read_bytes()
        steps = list_steps(content)
    except (OSError, struct.error, ValueError):
        return None
    if not steps:
        return None
    last = steps[-1]
    lately = [one for one in steps if one.at >= last.at - _MINUTE]
    return Flight(
        steps=len(steps),
        seconds=max(0.0, last.at - steps[0].at),
        last_at=datetime.fromtimestamp(last.at, UTC),
        running=last.running,
        waiting=last.waiting,
        prompt_tokens=last.prompt_tokens,
        draft_length=last.drafted,
        verified=last.verified,
        copied=last.copied,
        step_seconds=median(one.seconds for one in lately),
        last_step_seconds=last.seconds,
        cache=last.cache,
        memory_mib=last.memory_mib,
        memory_grown_mib=last.memory_mib - lately[0].memory_mib,
    )


def list_steps(content: bytes) -> list[FlightStep]:
    """List the steps of a recorder's file in their order."""
    magic, size, count = HEADER.unpack_from(content)
    if magic != MAGIC or size != STEP.size or count > MOST_STEPS:
        raise ValueError("not the file of a flight recorder")
    places = range(HEADER.size, min(len(content), HEADER.size + size * count) - size + 1, size)
    steps = (FlightStep._make(STEP.unpack_from(content, place)) for place in places)
    return sorted((step for step in steps if step.at > 0), key=lambda step: step.number)
