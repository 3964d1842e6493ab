"""The ledger: one line per ended request with its drafts, accepted tokens and times.

The core sees every step of every API, also of requests whose client left. The gate's tag tells it
whose request it is and of what kind; no text of a client is in it. Counts are columns of a table
with a slot per open request: a step is added in a few operations on arrays.
"""

import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, repeat
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.steering.state import KINDS, Kind, KindCounts

ROUTES = ("chat", "completions", "messages", "responses")
TAG = "slipstream"
_TAG_CHARACTERS = 200
_ID_CHARACTERS = 64
_SLOTS = 64
# Of requests without an entry.
_UNKNOWN_SLOT = 0
_COPY_NAMES = ("copies", "copied", "copied_accepted")
_COUNTED = ("tokens", "steps", "sequences", "drafts", "drafted")
_PREDICTED = ("proposals", "expected", "first_expected")
_NAMES = (*_COUNTED, *_COPY_NAMES, *_PREDICTED)
# After these there is a row per number of accepted tokens, and one for steps without a draft.
_ACCEPTED = len(_NAMES)
Slots = NDArray[np.intp]
Column = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Tag:
    """The gate's information about a request."""

    id: str | None = None
    key: str | None = None
    kind: Kind = "other"
    route: str | None = None
    # Neither drafts nor copies are verified for it.
    plain: bool = False
    # Its text may be kept to learn from.
    keep: bool = False


def read_tag(arguments: object) -> Tag:
    """Read a request's tag; one that the gate did not write says nothing."""
    text = arguments.get(TAG) if isinstance(arguments, dict) else None
    words = text[:_TAG_CHARACTERS].split(" ") if isinstance(text, str) else []
    words += ["-"] * (6 - len(words)) if len(words) in (4, 5) else []
    if len(words) != 6 or not all(word.isascii() and word.isprintable() for word in words):
        return Tag()
    name, key, kind, route, how, keep = words
    return Tag(
        id=name[:_ID_CHARACTERS],
        key=None if key == "-" else key[:_ID_CHARACTERS],
        kind=next((one for one in KINDS if one == kind), "other"),
        route=route if route in ROUTES else None,
        plain=how == "plain",
        keep=keep == "keep",
    )


@dataclass(slots=True)
class _Entry:
    """An open request; its counts are those of its slot."""

    tag: Tag
    temperature: float | None
    slot: int
    began: float
    cached: int = 0


class RequestLedger:
    """Counts drafts by request and by kind, and calls `add` with a line when a request ends.

    Drafts of the drafter and drafts that were copied are counted apart. One thread counts; another
    may call `describe_kinds`.
    """

    def __init__(self, longest: int, add: Callable[[dict[str, object]], object]) -> None:
        self._longest, self._add = longest, add
        rows = _ACCEPTED + longest + 2
        self._open, self._ended = np.zeros((rows, _SLOTS)), np.zeros((rows, len(KINDS)))
        self._first, self._slot_kinds = np.full(_SLOTS, np.inf), np.full(_SLOTS, -1)
        self._entries: dict[str, _Entry] = {}
        self._slots: dict[str, int] = {}
        self._free = list(range(_SLOTS - 1, _UNKNOWN_SLOT, -1))
        self._requests, self._aborted = Counter[Kind](), Counter[Kind]()
        self._batch: list[str] = []
        self._batch_slots = np.empty(0, np.intp)
        self._has_probabilities = False
        self._lock = threading.Lock()

    @property
    def tokens(self) -> int:
        """The tokens given out since the engine's start."""
        with self._lock:
            return int(self._ended[0].sum() + self._open[0, _UNKNOWN_SLOT + 1 :].sum())

    def begin(self, request: str, arguments: object, temperature: float | None) -> Tag:
        tag = read_tag(arguments)
        with self._lock:
            if request in self._entries:
                self._release(request)
            if not self._free:
                self._grow()
            slot = self._slots[request] = self._free.pop()
            self._entries[request] = _Entry(tag, temperature, slot, time.monotonic())
            self._slot_kinds[slot] = KINDS.index(tag.kind)
            self._requests[tag.kind] += 0
            self._batch = []
        return tag

    def see_cached(self, request: str, tokens: int) -> None:
        """Record how much of a prompt was in the prefix cache."""
        if (entry := self._entries.get(request)) is not None:
            entry.cached = tokens

    def see_step(
        self,
        requests: Sequence[str],
        tokens: Sequence[int],
        drafted: Sequence[int],
        accepted: Sequence[int],
        copied: Sequence[bool],
        now: float,
        *,
        expected: Sequence[float] = (),
        first: Sequence[float] = (),
    ) -> None:
        """Count a step of all its requests, each of which is there once.

        Of each: the tokens given out (0 for a part of a prompt), the draft tokens verified without
        those that a grammar forbade, how many were accepted, and whether the draft was a copy.
        Where the drafter gives probabilities: `expected` is how many of the verified tokens it
        expects to be accepted by its own word, and `first` the calibrated chance of the first token
        that it drafted, verified or not, 0 if it drafted none.
        """
        count = len(requests)
        given, verified, right = map(_read_counts, (tokens, drafted, accepted))
        gives, drew = given > 0, verified > 0
        with self._lock:
            slots, table = self._find_slots(requests), self._open
            if True in copied:
                copies = drew & _read_counts(copied).astype(bool)
                self._add_rows(_COPY_NAMES, slots, (copies, verified * copies, right * copies))
                drew &= ~copies
            self._add_rows(_COUNTED, slots, (given, gives, gives * count, drew, verified * drew))
            if len(first):
                predicted, chance = (np.frombuffer(array("d", one)) for one in (expected, first))
                self._add_rows(_PREDICTED, slots, (chance > 0, predicted * drew, chance * ~drew))
                self._has_probabilities = True
            reached = np.where(drew, np.minimum(right, self._longest), self._longest + 1)
            table[_ACCEPTED + reached, slots] += 1
            begun = slots[gives]
            self._first[begun] = np.minimum(self._first[begun], now)

    def end(self, request: str, ended: str, *, prompt: int, tokens: int) -> Tag:
        """Write a request's line, and return its tag."""
        if (entry := self._entries.get(request)) is None:
            return Tag()
        kind, began, now = entry.tag.kind, entry.began, time.monotonic()
        with self._lock:
            first = float(self._first[entry.slot])
            counts = _describe(self._release(request))
            self._requests[kind] += 1
            self._aborted[kind] += ended == "aborted"
        steps, sequences = counts["steps"], counts.pop("sequences")
        if not self._has_probabilities:
            counts = {name: value for name, value in counts.items() if name not in _PREDICTED}
        line = {
            "schema_version": 1,
            "at": round(time.time(), 3),
            "id": entry.tag.id,
            "key": entry.tag.key,
            "route": entry.tag.route,
            "kind": kind,
            "ended": ended,
            "prompt_tokens": prompt,
            "cached_tokens": entry.cached,
            **counts,
            "tokens": tokens,
            "seconds": round(now - began, 4),
            "first_seconds": round(first - began, 4) if isfinite(first) else None,
            "temperature": entry.temperature,
            "batch": round(sequences / steps, 2) if steps else None,
            "draft_length": round(counts["drafted"] / steps, 2) if steps else None,
        }
        self._add(line)
        return entry.tag

    def describe_kinds(self) -> dict[Kind, KindCounts]:
        with self._lock:
            totals = self._ended.copy()
            for place in range(len(KINDS)):
                totals[:, place] += self._open[:, self._slot_kinds == place].sum(axis=1)
            ended = {kind: (count, self._aborted[kind]) for kind, count in self._requests.items()}
        described = {}
        for kind, (requests, aborted) in ended.items():
            counts = _describe(totals[:, KINDS.index(kind)])
            counts = {name: counts[name] for name in KindCounts.model_fields.keys() & counts}
            described[kind] = KindCounts(requests=requests, aborted=aborted, **counts)
        return described

    def _find_slots(self, requests: Sequence[str]) -> Slots:
        """Return the requests' slots; a batch is mostly that of the step before."""
        if self._batch != requests:
            found = map(self._slots.get, requests, repeat(_UNKNOWN_SLOT))
            self._batch_slots = np.fromiter(found, np.intp, len(requests))
            self._batch = list(requests)
        return self._batch_slots

    def _add_rows(self, names: tuple[str, ...], slots: Slots, amounts: Iterable[Any]) -> None:
        first = _NAMES.index(names[0])
        for row, amount in enumerate(amounts, start=first):
            self._open[row][slots] += amount

    def _release(self, request: str) -> Column:
        """Free a request's slot, add its counts to those of its kind, and return them."""
        entry, slot = self._entries.pop(request), self._slots.pop(request)
        counts = self._open[:, slot].copy()
        self._ended[:, KINDS.index(entry.tag.kind)] += counts
        self._open[:, slot], self._first[slot] = 0, np.inf
        self._free.append(slot)
        self._batch = []
        return counts

    def _grow(self) -> None:
        """Double the slots."""
        slots = len(self._first)
        self._free = list(range(2 * slots - 1, slots - 1, -1))
        self._open = np.concatenate((self._open, np.zeros_like(self._open)), axis=1)
        self._first = np.concatenate((self._first, np.full(slots, np.inf)))
        self._slot_kinds = np.concatenate((self._slot_kinds, np.full(slots, -1)))


def _read_counts(counts: Sequence[int]) -> NDArray[Any]:
    """Return counts as an array; through bytes it takes a third of the time."""
    try:
        return np.frombuffer(bytes(counts), np.uint8)
    except ValueError:
        return np.array(counts)


def _describe(counts: Column) -> dict[str, Any]:
    """Return a slot's counts by name; `accepted` is how many drafts had each position accepted."""
    values = counts.round(3).tolist()
    named = dict(zip(_NAMES, values, strict=False))
    whole = {name: int(named[name]) for name in _NAMES if not name.endswith("expected")}
    by_number = values[_ACCEPTED + 1 : -1]
    accepted = [int(count) for count in accumulate(reversed(by_number))][::-1]
    return named | whole | {"accepted": accepted}
