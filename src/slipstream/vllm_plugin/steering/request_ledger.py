"""The ledger: one line per ended request with its drafts, accepted tokens and times.

The core sees every step of every API, also of requests whose client left. The gate's tag tells it
whose request it is and of what kind; no text of a client is in it.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from itertools import accumulate

from slipstream.steering.state import KINDS, Kind, KindCounts

ROUTES = ("chat", "completions", "messages", "responses")
TAG = "slipstream"
_TAG_CHARACTERS = 200
_ID_CHARACTERS = 64


@dataclass(frozen=True, slots=True)
class Tag:
    """The gate's information about a request."""

    id: str | None = None
    key: str | None = None
    kind: Kind = "other"
    route: str | None = None
    # Neither drafts nor copies are verified for it.
    plain: bool = False


def read_tag(arguments: object) -> Tag:
    """Read a request's tag; one that the gate did not write says nothing."""
    text = arguments.get(TAG) if isinstance(arguments, dict) else None
    words = text[:_TAG_CHARACTERS].split(" ") if isinstance(text, str) else []
    words += ["-"] if len(words) == 4 else []
    if len(words) != 5 or not all(word.isascii() and word.isprintable() for word in words):
        return Tag()
    name, key, kind, route, how = words
    return Tag(
        id=name[:_ID_CHARACTERS],
        key=None if key == "-" else key[:_ID_CHARACTERS],
        kind=next((one for one in KINDS if one == kind), "other"),
        route=route if route in ROUTES else None,
        plain=how == "plain",
    )


@dataclass(slots=True)
class Entry:
    """An open request; `accepted` counts drafts by their number of accepted tokens."""

    tag: Tag
    temperature: float | None
    accepted: list[int]
    began: float = field(default_factory=time.monotonic)
    first: float | None = None
    steps: int = 0
    drafts: int = 0
    drafted: int = 0
    sequences: int = 0
    cached: int = 0


@dataclass(slots=True)
class Totals:
    """All requests of a kind since the engine's start; `accepted` is as in an entry."""

    accepted: list[int]
    requests: int = 0
    aborted: int = 0
    tokens: int = 0
    steps: int = 0
    drafts: int = 0
    drafted: int = 0


class RequestLedger:
    """Counts drafts by request and by kind, and calls `add` with a line when a request ends."""

    def __init__(self, longest: int, add: Callable[[dict[str, object]], object]) -> None:
        self._longest, self._add = longest, add
        self._entries: dict[str, Entry] = {}
        self.kinds: dict[Kind, Totals] = {}
        self.tokens = 0

    def begin(self, request: str, arguments: object, temperature: float | None) -> None:
        tag = read_tag(arguments)
        self._entries[request] = Entry(tag, temperature, [0] * (self._longest + 1))
        if tag.kind not in self.kinds:
            self.kinds[tag.kind] = Totals([0] * (self._longest + 1))

    def see_draft(self, request: str, drafted: int, accepted: int) -> None:
        """Count one verified draft; what a grammar forbade is not in `drafted`."""
        if (entry := self._entries.get(request)) is None:
            return
        accepted = min(accepted, self._longest)
        for counts in (entry, self.kinds[entry.tag.kind]):
            counts.drafts += 1
            counts.drafted += drafted
            counts.accepted[accepted] += 1

    def see_cached(self, request: str, tokens: int) -> None:
        """Record how much of a prompt was in the prefix cache."""
        if (entry := self._entries.get(request)) is not None:
            entry.cached = tokens

    def see_tokens(self, request: str, tokens: int, sequences: int, now: float) -> None:
        if not tokens or (entry := self._entries.get(request)) is None:
            return
        if entry.first is None:
            entry.first = now
        entry.steps += 1
        entry.sequences += sequences
        totals = self.kinds[entry.tag.kind]
        totals.steps += 1
        totals.tokens += tokens
        self.tokens += tokens

    def end(self, request: str, ended: str, *, prompt: int, tokens: int) -> None:
        if (entry := self._entries.pop(request, None)) is None:
            return
        totals, now = self.kinds[entry.tag.kind], time.monotonic()
        totals.requests += 1
        totals.aborted += ended == "aborted"
        steps = entry.steps
        self._add(
            {
                "schema_version": 1,
                "at": round(time.time(), 3),
                "id": entry.tag.id,
                "key": entry.tag.key,
                "route": entry.tag.route,
                "kind": entry.tag.kind,
                "ended": ended,
                "prompt_tokens": prompt,
                "cached_tokens": entry.cached,
                "tokens": tokens,
                "steps": steps,
                "drafts": entry.drafts,
                "drafted": entry.drafted,
                "accepted": _by_position(entry.accepted),
                "seconds": round(now - entry.began, 4),
                "first_seconds": entry.first and round(entry.first - entry.began, 4),
                "temperature": entry.temperature,
                "batch": round(entry.sequences / steps, 2) if steps else None,
                "draft_length": round(entry.drafted / steps, 2) if steps else None,
            }
        )

    def describe_kinds(self) -> dict[Kind, KindCounts]:
        return {
            kind: KindCounts(**asdict(totals) | {"accepted": tuple(_by_position(totals.accepted))})
            for kind, totals in list(self.kinds.items())
        }


def _by_position(accepted: list[int]) -> list[int]:
    """Return how many drafts had each position accepted, from how many had so many."""
    return list(accumulate(reversed(accepted[1:])))[::-1]
