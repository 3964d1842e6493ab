"""The core's report in steering.json, validated before it is shown.

Another process writes the file. Whatever it holds, what is returned is bounded and nothing raises.
"""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KINDS = ("code", "prose", "structured", "tools", "translation", "other")
FRESH_SECONDS = 10.0
MOST_BYTES = 2**18
MOST_POSITIONS = 64
SCHEMA_VERSION = 1

# Broken in any way: not JSON, nested too deep, not UTF-8, a part missing or of another type.
_FAULTS = (ValueError, TypeError, LookupError, AttributeError, RecursionError, OverflowError)


@dataclass(frozen=True, slots=True)
class KindCounts:
    """The requests of one kind since the engine's start; `accepted` by position."""

    requests: int
    tokens: int
    steps: int
    drafts: int
    drafted: int
    accepted: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LengthEstimate:
    """The estimated cost and yield of a draft length for the current batch."""

    draft_length: int
    step_seconds: float | None
    tokens_per_step: float | None
    tokens_per_second: float | None
    steps: int


@dataclass(frozen=True, slots=True)
class SteeringReport:
    """The core's report; `least` and `most` are the bounds of an order."""

    steers: bool
    plain_pays: bool
    draft_length: int | None
    longest: int | None
    least: int | None
    most: int | None
    running: int
    waiting: int
    kv_usage: float | None
    steps: int
    step_seconds: float | None
    tokens: int
    tokens_per_second: float | None
    kinds: dict[str, KindCounts]
    lengths: tuple[LengthEstimate, ...]


def read_report(path: str | None, *, now: float | None = None) -> SteeringReport | None:
    """Return the report; None if it is missing, broken or old: the core writes every second."""
    if path is None:
        return None
    try:
        with Path(path).open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        document: dict[str, Any] = json.loads(content if len(content) <= MOST_BYTES else b"")
        age = abs((time.time() if now is None else now) - _read_number(document["at"]))
        return _make_report(document) if age <= FRESH_SECONDS else None
    except (OSError, *_FAULTS):
        return None


def _make_report(document: dict[str, Any]) -> SteeringReport:
    if document["schema_version"] != SCHEMA_VERSION:
        raise ValueError("another schema")
    kinds = document["kinds"]
    return SteeringReport(
        steers=document["steers"] is True,
        plain_pays=document["plain_pays"] is True,
        draft_length=_read_length(document["draft_length"]),
        longest=_read_length(document["longest"]),
        least=_read_length(document["least"]),
        most=_read_length(document["most"]),
        running=_read_count(document["running"]),
        waiting=_read_count(document["waiting"]),
        kv_usage=_read_known(document["kv_usage"]),
        steps=_read_count(document["steps"]),
        step_seconds=_read_known(document["step_seconds"]),
        tokens=_read_count(document["tokens"]),
        tokens_per_second=_read_known(document["tokens_per_second"]),
        kinds={kind: _make_counts(kinds[kind]) for kind in KINDS if kind in kinds},
        lengths=tuple(map(_make_estimate, document["lengths"][: MOST_POSITIONS + 1])),
    )


def _make_counts(counts: dict[str, Any]) -> KindCounts:
    names = ("requests", "tokens", "steps", "drafts", "drafted")
    accepted = tuple(map(_read_count, counts["accepted"][:MOST_POSITIONS]))
    return KindCounts(**{name: _read_count(counts[name]) for name in names}, accepted=accepted)


def _make_estimate(estimate: dict[str, Any]) -> LengthEstimate:
    names = ("step_seconds", "tokens_per_step", "tokens_per_second")
    return LengthEstimate(
        draft_length=_read_count(estimate["draft_length"]),
        steps=_read_count(estimate["steps"]),
        **{name: _read_known(estimate[name]) for name in names},
    )


def _read_count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError("not a count")
    return value


def _read_length(value: Any) -> int | None:
    return None if value is None else _read_count(value)


def _read_number(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value < 2**63:
        raise ValueError("not a number from zero on")
    return float(value)


def _read_known(value: Any) -> float | None:
    return None if value is None else _read_number(value)
