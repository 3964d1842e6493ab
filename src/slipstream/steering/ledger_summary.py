"""`LedgerSummary`: the sums of a ledger's requests, by kind, key, route or context length."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

from slipstream.records import Record
from slipstream.steering.ledger import LedgerLine

Grouping = Literal["kind", "key", "route", "context"]
# Acceptance that collapses with the context does so by factors of it (vllm#50021: at 14.5k).
CONTEXT_BOUNDS = (1 << 10, 1 << 12, 1 << 14, 1 << 16)
NONE = "none"


class LedgerGroup(Record):
    """The requests of one kind, key, route or context length, added up.

    `acceptance` is the share of drafts whose token at each position was accepted,
    `seconds_per_token` that of a token after the first, `first_seconds` the mean time to that one.
    """

    name: str
    requests: int
    aborted: int
    prompt_tokens: int
    cached_tokens: int
    tokens: int
    token_share: float | None
    steps: int
    drafts: int
    drafted: int
    accepted: tuple[int, ...]
    acceptance: tuple[float, ...]
    tokens_per_step: float | None
    seconds: float
    seconds_per_token: float | None
    first_seconds: float | None


class LedgerSummary(Record):
    """All groups, the one with the most tokens first, and their sum."""

    schema_version: Literal[1] = 1
    by: Grouping
    groups: tuple[LedgerGroup, ...]
    total: LedgerGroup


@dataclass(slots=True)
class _Sums:
    counts: dict[str, int] = field(default_factory=dict)
    accepted: list[int] = field(default_factory=list)
    seconds: float = 0.0
    first_seconds: float = 0.0
    begun: int = 0

    def add(self, line: LedgerLine) -> None:
        for name in _COUNTED:
            self.counts[name] = self.counts.get(name, 0) + getattr(line, name)
        self.counts["requests"] = self.counts.get("requests", 0) + 1
        self.counts["aborted"] = self.counts.get("aborted", 0) + (line.ended == "aborted")
        self.accepted += [0] * (len(line.accepted) - len(self.accepted))
        for position, count in enumerate(line.accepted):
            self.accepted[position] += count
        self.seconds += line.seconds
        self.first_seconds += line.first_seconds or 0.0
        self.begun += line.first_seconds is not None

    def describe(self, name: str, all_tokens: int) -> LedgerGroup:
        counts = {key: self.counts.get(key, 0) for key in ("requests", "aborted", *_COUNTED)}
        drafts, later = counts["drafts"], counts["tokens"] - self.begun
        return LedgerGroup(
            name=name,
            **counts,
            token_share=_divide(counts["tokens"], all_tokens),
            accepted=tuple(self.accepted),
            acceptance=tuple(count / drafts for count in self.accepted) if drafts else (),
            tokens_per_step=_divide(counts["tokens"], counts["steps"]),
            seconds=self.seconds,
            seconds_per_token=_divide(self.seconds - self.first_seconds, later),
            first_seconds=_divide(self.first_seconds, self.begun),
        )


_COUNTED = ("prompt_tokens", "cached_tokens", "tokens", "steps", "drafts", "drafted")


def summarize(lines: Iterable[LedgerLine], by: Grouping) -> LedgerSummary:
    """Add up requests by what they have in common."""
    groups, total = dict[str, _Sums](), _Sums()
    for line in lines:
        groups.setdefault(_NAMES[by](line), _Sums()).add(line)
        total.add(line)
    tokens = total.counts.get("tokens", 0)
    described = [sums.describe(name, tokens) for name, sums in groups.items()]
    return LedgerSummary(
        by=by,
        groups=tuple(sorted(described, key=lambda group: (-group.tokens, group.name))),
        total=total.describe("all", tokens),
    )


def name_context(tokens: int) -> str:
    """Return the name of the range of context lengths that holds this one."""
    names = ["0", *(f"{bound >> 10}k" for bound in CONTEXT_BOUNDS)]
    place = sum(tokens >= bound for bound in CONTEXT_BOUNDS)
    return f"{names[place]} to {names[place + 1]}" if place < len(CONTEXT_BOUNDS) else "64k on"


def _divide(whole: float, parts: int) -> float | None:
    return whole / parts if parts > 0 else None


_NAMES: dict[Grouping, Callable[[LedgerLine], str]] = {
    "kind": lambda line: line.kind,
    "key": lambda line: line.key or NONE,
    "route": lambda line: line.route or NONE,
    "context": lambda line: name_context(line.context_tokens),
}
