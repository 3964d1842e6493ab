"""A recorded demand: a ledger, an access log, or a CSV in the form of public traces.

The CSVs are those of BurstGPT (`Timestamp`, `Request tokens`, `Response tokens`) and of Azure's LLM
inference traces (`TIMESTAMP`, `ContextTokens`, `GeneratedTokens`). They do not say what was asked,
so their kind is the caller's word. Lines of none of these forms are left out and counted.
"""

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import Any

from slipstream.errors import InvalidInputError
from slipstream.sizing.demand import HOUR, Arrival, Demand, KindDemand, RequestLength
from slipstream.steering.ledger import SUPERVISOR_KEY

MOST_REQUESTS = 5_000_000
MOST_LENGTHS = 500
MOST_TOKENS = 10_000_000
MOST_HOURS = 24 * 366
MOST_KINDS = 32
LEAST_HOURS = 12
DAY_HOURS = 24
_HINT = "a ledger.jsonl or access.jsonl of a run, or a CSV with Timestamp and token columns"

# As an access log names them.
_COLUMNS = {
    "timestamp": "at",
    "request tokens": "prompt_tokens",
    "contexttokens": "prompt_tokens",
    "response tokens": "completion_tokens",
    "generatedtokens": "completion_tokens",
}


@dataclass(frozen=True, slots=True)
class Recording:
    """What a file has: the demand of its busiest hour, and that hour's arrivals to replay."""

    demand: Demand
    arrivals: Sequence[Arrival]
    left_out: int


def read_recording(path: Path, kind: str) -> Recording:
    """Read a file of requests; `kind` is that of a file which does not say."""
    try:
        with path.open(encoding="utf-8", errors="replace", newline="") as file:
            lines = (line.replace("\0", "") for line in file)
            rows: Iterable[str | dict[str, str]] = (line for line in lines if line.strip())
            if path.suffix == ".csv":
                rows = _read_csv(lines)
            found = [_read_row(row, kind) for row in islice(rows, MOST_REQUESTS)]
    except (OSError, csv.Error) as fault:
        raise InvalidInputError(f"cannot read {path}: {fault}", hint=_HINT) from fault
    requests = sorted((one for one in found if one is not None), key=lambda one: one.at)
    if len(requests) < 2 or requests[-1].at <= requests[0].at:
        raise InvalidInputError(f"{path} has no two requests at different times", hint=_HINT)
    return _describe(requests, path.name, len(found) - len(requests))


def _read_csv(lines: Iterable[str]) -> Iterator[dict[str, str]]:
    rows = csv.reader(lines)
    header = [_COLUMNS.get(name.strip().lower(), "") for name in next(rows, [])]
    if {*_COLUMNS.values()} - set(header):
        raise InvalidInputError("the CSV has no columns of times and tokens", hint=_HINT)
    for row in rows:
        yield dict(zip(header, row, strict=False))


def _read_row(row: str | dict[str, str], kind: str) -> Arrival | None:
    """Read a line of a ledger, of an access log or of a CSV; None if it is no served request."""
    try:
        if isinstance(row, dict):
            tokens = {name: int(row[name]) for name in ("prompt_tokens", "completion_tokens")}
            return _read_fields({"at": row["at"], **tokens}, kind)
        return _read_fields(json.loads(row), kind)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        return None


def _read_fields(fields: dict[str, Any], kind: str) -> Arrival | None:
    if fields.get("key") == SUPERVISOR_KEY or fields.get("refused"):
        return None
    at, prompt = fields["at"], fields["prompt_tokens"]
    if isinstance(at, int | float):
        # A ledger's time is that of the end, an access log's that of the beginning.
        began, output = float(at) - float(fields["seconds"]), fields["tokens"]
        kind, cached = str(fields.get("kind") or kind), fields.get("cached_tokens")
    else:
        began, output, cached = _read_time(at), fields["completion_tokens"], None
    if not isfinite(began) or not all(
        isinstance(count, int) and 0 < count <= MOST_TOKENS for count in (prompt, output)
    ):
        return None
    known = min(cached, prompt) if isinstance(cached, int) and cached >= 0 else 0
    return Arrival(began, kind[:64], prompt - known, output, known)


def _read_time(text: str) -> float:
    """Read seconds, or a date with a time; without a zone it is UTC."""
    word = text.strip()
    try:
        return float(word)
    except ValueError:
        pass
    time = datetime.fromisoformat(word)
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def _describe(requests: Sequence[Arrival], source: str, left_out: int) -> Recording:
    begin = requests[0].at
    span = requests[-1].at - begin
    kinds = sorted({request.kind for request in requests})
    if span > MOST_HOURS * HOUR or len(kinds) > MOST_KINDS:
        raise InvalidInputError(
            f"{source} has requests of {span / HOUR:.0f} hours and {len(kinds)} kinds: its times "
            "or kinds were probably misread",
            hint=f"at most {MOST_HOURS} hours and {MOST_KINDS} kinds; times are in seconds",
        )
    hours: list[list[Arrival]] = [[] for _ in range(int(span // HOUR) + 1)]
    for request in requests:
        hours[int((request.at - begin) // HOUR)].append(request)
    busiest = max(hours, key=len)
    seconds = HOUR if span > HOUR else span * len(requests) / (len(requests) - 1)
    groups = {kind: [one for one in busiest if one.kind == kind] for kind in kinds}
    last_day = hours[-DAY_HOURS:] if len(hours) >= LEAST_HOURS else []
    demand = Demand(
        source=source,
        kinds=tuple(_describe_kind(kind, own, seconds) for kind, own in groups.items() if own),
        hours=tuple(len(hour) / len(busiest) for hour in last_day),
    )
    first = begin + hours.index(busiest) * HOUR
    arrivals = [one._replace(at=one.at - first) for one in busiest]
    return Recording(demand, arrivals, left_out)


def _describe_kind(kind: str, requests: Sequence[Arrival], seconds: float) -> KindDemand:
    cached = sum(one.cached_tokens for one in requests)
    prompts = sum(one.prompt_tokens for one in requests) + cached
    step = max(1, len(requests) // MOST_LENGTHS)
    return KindDemand(
        kind=kind,
        requests_per_second=len(requests) / seconds,
        prompt_tokens=max(1, round(prompts / len(requests))),
        output_tokens=max(1, round(sum(one.output_tokens for one in requests) / len(requests))),
        cached_share=cached / prompts,
        lengths=tuple(
            RequestLength(one.prompt_tokens, one.output_tokens) for one in requests[::step]
        ),
    )
