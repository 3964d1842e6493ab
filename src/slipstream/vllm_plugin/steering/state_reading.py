"""What the engine's core reports of its steps in steering.json, checked before anybody shows it.

Another process writes the file. Whatever it holds, what is returned is bounded and nothing raises.
"""

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KINDS = ("code", "prose", "structured", "tools", "translation", "other")
FRESH_SECONDS = 10.0
MOST_BYTES = 2**18
MOST_POSITIONS = 64
MOST_CHARACTERS = 200
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
    """What a draft length would cost and bring for the batch at hand."""

    draft_length: int
    step_seconds: float | None
    tokens_per_step: float | None
    tokens_per_second: float | None
    steps: int


@dataclass(frozen=True, slots=True)
class SteeringReport:
    """The core's report; `fresh` says whether it is of the last seconds or of an idle engine."""

    fresh: bool
    steers: bool
    draft_length: int | None
    longest: int | None
    reason: str
    running: int
    waiting: int
    kv_usage: float | None
    steps: int
    step_seconds: float | None
    tokens: int
    tokens_per_second: float | None
    kinds: dict[str, KindCounts]
    lengths: tuple[LengthEstimate, ...]

    @property
    def plain_pays(self) -> bool | None:
        """Whether a step without drafts is the fastest; None without an estimate of one."""
        speeds = {
            one.draft_length: one.tokens_per_second
            for one in self.lengths
            if one.tokens_per_second is not None
        }
        return max(speeds, key=lambda length: speeds[length]) == 0 if 0 in speeds else None


def read_report(path: str | None, *, now: float | None = None) -> SteeringReport | None:
    """Return the report; None if it is missing or broken, or old and its writer gone."""
    if path is None:
        return None
    try:
        with Path(path).open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        document: dict[str, Any] = json.loads(content if len(content) <= MOST_BYTES else b"")
        age = abs((time.time() if now is None else now) - _read_number(document["at"]))
        if age > FRESH_SECONDS and not _is_of_this_engine(_read_count(document["pid"])):
            return None
        return _make_report(document, fresh=age <= FRESH_SECONDS)
    except (OSError, *_FAULTS):
        return None


def _is_of_this_engine(pid: int) -> bool:
    """Say whether a process runs in this one's session, as the core of this API server does."""
    try:
        return pid > 0 and os.getsid(pid) == os.getsid(0)
    except OSError:
        return False


def _make_report(document: dict[str, Any], *, fresh: bool) -> SteeringReport:
    if document["schema_version"] != SCHEMA_VERSION:
        raise ValueError("another schema")
    kinds = document["kinds"]
    return SteeringReport(
        fresh=fresh,
        steers=document["steers"] is True,
        draft_length=_read_length(document["draft_length"]),
        longest=_read_length(document["longest"]),
        reason=_clean(document["reason"]),
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


def _clean(text: Any) -> str:
    """Return a text that harms no terminal and no page."""
    if not isinstance(text, str):
        raise ValueError("not a text")
    return "".join(sign if sign.isprintable() else "?" for sign in text[:MOST_CHARACTERS])
