"""Drafts that copy: the continuation of an earlier match in a request's own tokens.

`CopyIndex` finds the match, `CopyRates` says how likely its continuation is right. The tokens at
hand when an index is built are sorted once by a hash of what ends there; later ones go into a
table, until there are enough of them to sort again. So a token costs 12 bytes and, on average,
constant time, whatever the text.
"""

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

MOST_COPIED = 31
LEAST_MATCHED = 2
MOST_MATCHED = 32
# Of matches that agree in their last eight tokens, so many of the latest are compared.
MOST_COMPARED = 64
# So many tokens, and this share of the sorted ones, wait in the table.
LEAST_WAITING = 2048
WAITING_SHARE = 8

# A key is a hash of the last two tokens, then of the two before them, then of the four before.
_MULTIPLIERS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93)
_PARTS = ((0, 2, 24), (2, 4, 20), (4, 8, 20))
_WORD = (1 << 64) - 1
# Of eight, four and two tokens: the bits of a key that differ among equal ones.
_LOOSE_BITS = ((8, 0), (4, 20), (2, 40))


class Copy(NamedTuple):
    """Tokens that may come, and the length of the match before them, at most `MOST_MATCHED`."""

    tokens: list[int]
    matched: int


class CopyIndex:
    """The tokens of one request, and where the last of them came before."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = array("i", tokens[:])
        self._source: int | None = None
        self._matched = 0
        self._searched = False
        self._sort()

    def follow(self, tokens: Sequence[int]) -> None:
        """Take the tokens that came since; a match goes on as long as they are its own."""
        known, source = self._tokens, self._source
        for token in tokens:
            if source is not None and known[source] == token:
                source += 1
                self._matched += 1
            else:
                source = None
            known.append(token)
            self._remember(len(known) - 1)
        self._source, self._searched = source, self._searched and not tokens
        if self._waiting > max(LEAST_WAITING, len(self._keys) // WAITING_SHARE):
            self._sort()

    def propose(self, most: int) -> Copy | None:
        """Return up to `most` tokens after the longest earlier match, of equals the latest."""
        if self._source is None and not self._searched:
            self._search()
        if (source := self._source) is None:
            return None
        copied = self._tokens[source : source + most].tolist()
        while len(copied) < most:  # A copy that reaches its own beginning repeats itself.
            copied += copied[: most - len(copied)]
        return Copy(copied, min(self._matched, MOST_MATCHED))

    @property
    def _waiting(self) -> int:
        return len(self._tokens) - len(self._keys)

    def _sort(self) -> None:
        """Sort the ends of all tokens but the last by key; equal keys stay in their order."""
        keys = _hash_all(np.array(self._tokens, dtype=np.int64)[:-1])
        order = np.argsort(keys, kind="stable")
        self._keys: Any = memoryview(keys[order])  # A bisection reads it faster than an array.
        self._order = order.astype(np.int32)
        self._latest: dict[int, int] = {}
        self._before: list[int] = []

    def _remember(self, end: int) -> None:
        """Put the end before `end` into the table, since now its continuation is known."""
        end -= 1
        if end < len(self._keys):
            return
        key = self._join(end)
        self._before.append(self._latest.get(key, -1))
        self._latest[key] = end

    def _join(self, end: int) -> int:
        return (self._tokens[end - 1] if end else -1) << 32 | self._tokens[end]

    def _search(self) -> None:
        self._searched = True
        if len(self._tokens) <= LEAST_MATCHED:
            return
        end, matched = self._search_table()
        if matched < MOST_MATCHED:
            sorted_end, sorted_matched = self._search_sorted()
            if sorted_matched > matched:
                end, matched = sorted_end, sorted_matched
        if matched >= LEAST_MATCHED:
            self._source, self._matched = end + 1, matched

    def _search_table(self) -> tuple[int, int]:
        """Return the best of the latest matches in the table: its end and its length."""
        sorted_ends = len(self._keys)
        end = self._latest.get(self._join(len(self._tokens) - 1), -1)
        best, best_matched = -1, 0
        for _ in range(MOST_COMPARED):
            if end < 0 or best_matched == MOST_MATCHED:
                break
            matched = self._compare(end, best_matched)
            if matched > best_matched:
                best, best_matched = end, matched
            end = self._before[end - sorted_ends]
        return best, best_matched

    def _search_sorted(self) -> tuple[int, int]:
        """Return the best match among the sorted ends, of those with the most equal bits."""
        keys, key = self._keys, _hash_last(self._tokens)
        at = bisect_left(keys, key)
        for sure, bits in _LOOSE_BITS:
            first, last = key >> bits << bits, (key >> bits) + 1 << bits
            if (at < len(keys) and keys[at] < last) or (at and keys[at - 1] >= first):
                begin = bisect_left(keys, first, 0, at)
                end = bisect_left(keys, last, at) if last <= _WORD else len(keys)
                best = self._narrow(self._order[begin:end], sure)
                if best[1] >= sure:
                    return best
        return -1, 0

    def _narrow(self, ends: Any, sure: int) -> tuple[int, int]:
        """Return the longest match at these ends, then the latest."""
        if sure == 8:
            return self._choose(ends[-MOST_COMPARED:][::-1].tolist())
        known = np.frombuffer(self._tokens, dtype=np.int32)
        for matched in range(2 * sure):
            longer = ends[ends >= matched]
            longer = longer[known[longer - matched] == known[len(known) - 1 - matched]]
            if not len(longer):
                return int(ends.max()), matched
            ends = longer
        return int(ends.max()), 2 * sure

    def _choose(self, ends: list[int]) -> tuple[int, int]:
        best, best_matched = -1, 0
        for end in ends:
            matched = self._compare(end, best_matched)
            if matched > best_matched:
                best, best_matched = end, matched
            if matched == MOST_MATCHED:
                break
        return best, best_matched

    def _compare(self, end: int, longer_than: int) -> int:
        """Return how many tokens up to `end` are the last ones, or 0 if not more than before."""
        known, last = self._tokens, len(self._tokens) - 1
        if end < longer_than or known[end - longer_than] != known[last - longer_than]:
            return 0
        most, matched = min(MOST_MATCHED, end + 1), 0
        while matched < most and known[end - matched] == known[last - matched]:
            matched += 1
        return matched


def _hash_all(tokens: Any) -> Any:
    """Return a key for every end; before the first token there are tokens -1."""
    padded = np.concatenate([np.full(7, -1, np.int64), tokens]).view(np.uint64)
    keys = np.zeros(len(tokens), np.uint64)
    for first, last, bits in _PARTS:
        part = np.zeros(len(tokens), np.uint64)
        for back in range(first, last):
            part += padded[7 - back : len(padded) - back] * np.uint64(_MULTIPLIERS[back - first])
        keys = keys << np.uint64(bits) | part >> np.uint64(64 - bits)
    return keys


def _hash_last(tokens: "array[int]") -> int:
    """Return the key of the last token's end, as `_hash_all` does for all."""
    last = tokens[-8:].tolist()[::-1]
    last += [-1] * (8 - len(last))
    key = 0
    for first, end, bits in _PARTS:
        part = sum(last[back] * _MULTIPLIERS[back - first] for back in range(first, end))
        key = key << bits | (part & _WORD) >> (64 - bits)
    return key


# The least match of each bucket, and the chance before anything is known that the next token is
# right: without a draft, where the drafter's first token is the copy's, and where it is not.
BUCKETS = (2, 3, 4, 6, 9, 16)
PRIORS = (
    (0.35, 0.75, 0.15),
    (0.50, 0.85, 0.20),
    (0.65, 0.90, 0.30),
    (0.80, 0.93, 0.45),
    (0.88, 0.95, 0.60),
    (0.93, 0.97, 0.75),
)
PRIOR_TOKENS = 16.0
MOST_COUNTED = 512.0
_BUCKET = [
    max((place for place, least in enumerate(BUCKETS) if least <= matched), default=0)
    for matched in range(MOST_MATCHED + MOST_COPIED + 1)
]
_COLUMN = {None: 0, True: 1, False: 2}


class CopyRates:
    """How often a copied token was right, by the match before it and by what the drafter says.

    The drafter's first token speaks for the first copied token only; a later one counts as one
    without a draft. Old counts fade, so that the rates follow what is served.
    """

    def __init__(self) -> None:
        self._right = [[prior * PRIOR_TOKENS for prior in priors] for priors in PRIORS]
        self._seen = [[PRIOR_TOKENS] * len(priors) for priors in PRIORS]

    def rate(self, matched: int, agrees: bool | None) -> float:
        """Return the chance that the next copied token is right."""
        bucket, column = _BUCKET[matched], _COLUMN[agrees]
        return self._right[bucket][column] / self._seen[bucket][column]

    def list_survival(self, matched: int, agrees: bool | None, count: int) -> list[float]:
        """List the chance of each of `count` copied tokens that it and all before are right."""
        survival, chance = [], 1.0
        for place in range(matched, matched + count):
            chance *= self.rate(place, agrees)
            survival.append(chance)
            agrees = None
        return survival

    def learn(self, matched: int, agrees: bool | None, right: int, wrong: bool) -> None:
        """Learn from a copy of which `right` tokens came, and then a wrong one or its end."""
        for place in range(right + wrong):
            bucket, column = _BUCKET[matched + place], 0 if place else _COLUMN[agrees]
            seen, rights = self._seen[bucket], self._right[bucket]
            seen[column] += 1
            rights[column] += place < right
            if seen[column] > MOST_COUNTED:
                seen[column] /= 2
                rights[column] /= 2
