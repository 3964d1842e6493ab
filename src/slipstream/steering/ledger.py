"""The ledger of a run: one line per request that ended, as the engine's core writes it, and sums.

The file is rotated by its size. A reader holds on to the file it has open, so what was added to it
before the rotation is still read.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Annotated, BinaryIO, Literal

from pydantic import Field, ValidationError, field_validator

from slipstream.records import Record
from slipstream.steering.drafts import ServedSteps

LONGEST_LINE_BYTES = 1 << 16
LONGEST_DRAFT = 128  # vLLM's MAX_SPEC_LEN
# Acceptance that collapses with the context does so by factors of it (vllm#50021: at 14.5k).
CONTEXT_BOUNDS = (1 << 10, 1 << 12, 1 << 14, 1 << 16)
SUPERVISOR_KEY = "supervisor"
"""The key of the supervisor's own requests: the same few texts over and over."""

Count = Annotated[int, Field(ge=0, lt=1 << 53)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Name = Annotated[str, Field(min_length=1, max_length=128)]


class LedgerLine(ServedSteps):
    """One request: its drafts, accepted tokens by position, and times.

    `id`, `key` and `route` are None for a request without the gate's tag, `first_seconds` for one
    that ended before its first token. `batch` and `draft_length` are means over its steps.
    `expected` is how many verified tokens the drafter expected to be accepted, None where it does
    not say. `proposals` are its drafts, verified or not, and `first_expected` the chances of the
    first tokens of those that were not.
    """

    schema_version: Literal[1] = 1
    at: Amount
    id: Name | None
    key: Name | None
    route: Name | None
    kind: Name
    ended: Literal["stop", "length", "aborted", "other"]
    prompt_tokens: Count
    cached_tokens: Count
    tokens: Count
    steps: Count
    drafts: Count
    drafted: Count
    accepted: Annotated[tuple[Count, ...], Field(max_length=LONGEST_DRAFT)]
    proposals: Count = 0
    expected: Amount | None = None
    first_expected: Amount = 0.0
    copies: Count = 0
    copied: Count = 0
    copied_accepted: Count = 0
    seconds: Amount
    first_seconds: Amount | None
    temperature: Amount | None
    batch: Amount | None
    draft_length: Amount | None

    @field_validator("accepted")
    @classmethod
    def _never_rises(cls, accepted: tuple[int, ...]) -> tuple[int, ...]:
        if any(later > earlier for earlier, later in pairwise(accepted)):
            raise ValueError("a position is accepted more often than the one before it")
        return accepted

    @property
    def context_tokens(self) -> int:
        return self.prompt_tokens + self.tokens

    @property
    def uncached_tokens(self) -> int:
        """The prompt's tokens that had to be computed."""
        return max(0, self.prompt_tokens - self.cached_tokens)


class LedgerReader:
    """Reads a growing ledger from the last position; foreign lines are counted."""

    def __init__(self) -> None:
        self.skipped_lines = 0
        self._file: BinaryIO | None = None
        self._is_skipping = False

    def read(self, path: Path, most_lines: int) -> list[LedgerLine]:
        """Return up to so many new lines; a last line without its end is left for the next time."""
        lines: list[LedgerLine] = []
        seen = 0
        while seen < most_lines and (raw := self.read_raw(path)) is not None:
            seen += 1
            if (line := self.parse(raw)) is not None:
                lines.append(line)
        return lines

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def read_raw(self, path: Path) -> bytes | None:
        """Return the next whole line, None if there is none yet."""
        while self._file is not None or self._open(path):
            assert self._file is not None
            begin = self._file.tell()
            raw = self._file.readline(LONGEST_LINE_BYTES)
            if raw.endswith(b"\n"):
                whole, self._is_skipping = not self._is_skipping, False
                if whole:
                    return raw
            elif len(raw) == LONGEST_LINE_BYTES:
                self.skipped_lines += not self._is_skipping
                self._is_skipping = True
            elif not self._is_replaced(path):
                self._file.seek(begin)
                return None
            else:
                # What was added while we looked for another file is still read from this one.
                self._file.seek(begin)
                if len(self._file.readline(LONGEST_LINE_BYTES)) > len(raw):
                    self._file.seek(begin)
                    continue
                self.skipped_lines += bool(raw)
                self.close()
        return None

    def _open(self, path: Path) -> bool:
        try:
            self._file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb")
        except FileNotFoundError:
            return False
        self._is_skipping = False
        return True

    def _is_replaced(self, path: Path) -> bool:
        """Return whether the path holds another file than the open one, or that one begun anew."""
        assert self._file is not None
        try:
            there = path.stat()
        except FileNotFoundError:
            return False
        ours = os.fstat(self._file.fileno())
        return there.st_ino != ours.st_ino or there.st_size < self._file.tell()

    def parse(self, raw: bytes) -> LedgerLine | None:
        """Return the line that these bytes are, None if they are none of the ledger's."""
        if not raw.strip():
            return None
        try:
            return LedgerLine.model_validate_json(raw)
        except ValidationError:
            self.skipped_lines += 1
            return None


def read_ledger(files: Iterable[Path]) -> Iterator[LedgerLine]:
    """Yield the lines that a ledger's files have by now; what is no line of it is left out."""
    for file in files:
        with closing(LedgerReader()) as reader:
            while (raw := reader.read_raw(file)) is not None:
                if (line := reader.parse(raw)) is not None:
                    yield line


Grouping = Literal["kind", "key", "route", "context"]


class LedgerGroup(ServedSteps):
    """The requests of one kind, key, route or context length, added up.

    `seconds_per_token` is that of a token after the first, `first_seconds` the mean time to that
    one.
    """

    name: str
    requests: int
    aborted: int
    prompt_tokens: int
    cached_tokens: int
    token_share: float | None
    seconds: float
    seconds_per_token: float | None
    first_seconds: float | None


class LedgerSummary(Record):
    """All groups, the one with the most tokens first, and their sum."""

    schema_version: Literal[2] = 2
    by: Grouping
    groups: tuple[LedgerGroup, ...]
    total: LedgerGroup


_COUNTED = (
    *("prompt_tokens", "cached_tokens", "tokens", "steps", "drafts", "drafted"),
    *("copies", "copied", "copied_accepted"),
)


@dataclass(slots=True)
class _Sums:
    counts: Counter[str] = field(default_factory=Counter)
    accepted: Counter[int] = field(default_factory=Counter)
    seconds: float = 0.0
    first_seconds: float = 0.0

    def add(self, line: LedgerLine) -> None:
        self.counts.update({name: getattr(line, name) for name in _COUNTED})
        aborted, begun = line.ended == "aborted", line.first_seconds is not None
        self.counts.update(requests=1, aborted=aborted, begun=begun)
        self.accepted.update(dict(enumerate(line.accepted)))
        self.seconds += line.seconds
        self.first_seconds += line.first_seconds or 0.0

    def describe(self, name: str, all_tokens: int) -> LedgerGroup:
        counts, begun = self.counts, self.counts["begun"]
        later = counts["tokens"] - begun
        return LedgerGroup(
            name=name,
            **{name: counts[name] for name in ("requests", "aborted", *_COUNTED)},
            accepted=tuple(self.accepted.values()),
            token_share=_divide(counts["tokens"], all_tokens),
            seconds=self.seconds,
            seconds_per_token=_divide(self.seconds - self.first_seconds, later),
            first_seconds=_divide(self.first_seconds, begun),
        )


def summarize(lines: Iterable[LedgerLine], by: Grouping) -> LedgerSummary:
    """Add up requests by what they have in common; the run's own count only as those of a key."""
    groups, total = dict[str, _Sums](), _Sums()
    for line in lines:
        if line.key == SUPERVISOR_KEY and by != "key":
            continue
        groups.setdefault(_NAMES[by](line), _Sums()).add(line)
        total.add(line)
    tokens = total.counts["tokens"]
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
    "key": lambda line: line.key or "none",
    "route": lambda line: line.route or "none",
    "context": lambda line: name_context(line.context_tokens),
}
