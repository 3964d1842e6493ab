"""Drafts that copy: the continuation of an earlier match in a request's own tokens.

`CopyIndex` finds the match, `CopyRates` says how likely its continuation is right. The tokens at
hand when an index is built are sorted once by a hash of what ends there; later ones go into a
table, until there are enough of them to sort again. So a token costs 16 bytes and, on average,
constant time, whatever the text.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
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

# A key has 21 bits of hash for the last two tokens, then seven for each of the six before them.
_PAIR_BITS, _TOKEN_BITS, _KEY_TOKENS = 21, 7, 8
_PAIR_FACTORS, _PAIR_SHIFT = (0x5E3779B1, 0x42B2AE3D), 24
_TOKEN_FACTOR, _TOKEN_SHIFT = 40503, 9


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
        latest, before = self._latest, self._before
        first = max(len(self._tokens) - 1, self._sorted)
        self._extend(tokens)
        for end in range(first, len(self._tokens) - 1):
            pair = self._join(end)
            before.append(latest.get(pair, -1))
            latest[pair] = end
        if len(before) > max(LEAST_WAITING, self._sorted // WAITING_SHARE):
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

    def _extend(self, tokens: Sequence[int]) -> None:
        known, source = self._tokens, self._source
        for token in tokens:
            if source is not None:
                source = source + 1 if known[source] == token else None
                self._matched += 1
            known.append(token)
        self._source, self._searched = source, self._searched and not tokens

    def _sort(self) -> None:
        """Sort the ends of all tokens but the last by key; equal keys stay in their order."""
        keys = _hash_all(np.array(self._tokens, dtype=np.int64)[:-1])
        order = np.argsort(keys, kind="stable")
        self._sorted = len(keys)
        self._keys: Any = memoryview(keys[order])  # A bisection reads it faster than an array.
        self._order = order.astype(np.int32)
        self._latest: dict[int, int] = {}
        self._before: list[int] = []

    def _join(self, end: int) -> int:
        return (self._tokens[end - 1] if end else -1) << 32 | self._tokens[end]

    def _search(self) -> None:
        self._searched = True
        if len(self._tokens) <= LEAST_MATCHED:
            return
        end, matched = self._choose(self._list_waiting(), 0)
        if matched < MOST_MATCHED and self._sorted:
            sorted_end, sorted_matched = self._search_sorted(matched)
            if sorted_matched > matched:
                end, matched = sorted_end, sorted_matched
        if matched >= LEAST_MATCHED:
            self._source, self._matched = end + 1, matched

    def _list_waiting(self) -> Iterator[int]:
        """Yield the latest ends in the table that have the last two tokens."""
        end = self._latest.get(self._join(len(self._tokens) - 1), -1)
        for _ in range(MOST_COMPARED):
            if end < 0:
                return
            yield end
            end = self._before[end - self._sorted]

    def _search_sorted(self, longer_than: int) -> tuple[int, int]:
        """Return the longest match among the sorted ends: its keys are those next to the key."""
        keys, key = self._keys, _hash_last(self._tokens)
        at = bisect_left(keys, key)
        loose = (key ^ keys[at - 1 if at else 0]).bit_length()
        if at < self._sorted:
            loose = min(loose, (key ^ keys[at]).bit_length())
        equal = _KEY_TOKENS - -(-loose // _TOKEN_BITS)
        while equal >= LEAST_MATCHED and (equal > longer_than or equal == _KEY_TOKENS):
            bits = (_KEY_TOKENS - equal) * _TOKEN_BITS
            first = key >> bits << bits
            begin = bisect_left(keys, first, 0, at)
            ends = self._order[begin : bisect_left(keys, first + (1 << bits), at)]
            best = self._find_best(ends, equal, longer_than)
            if best[1] >= equal:
                return best
            equal -= 1
        return -1, 0

    def _find_best(self, ends: Any, equal: int, longer_than: int) -> tuple[int, int]:
        """Return the best match at ends whose last `equal` tokens have the same hashes."""
        if equal == _KEY_TOKENS:
            return self._choose(ends[-MOST_COMPARED:][::-1].tolist(), longer_than)
        latest = int(ends.max()) if len(ends) > 1 else int(ends[0])
        if (matched := self._compare(latest, 0)) >= equal or len(ends) == 1:
            return latest, matched
        known = np.frombuffer(self._tokens, dtype=np.int32)
        ends = ends[ends >= equal - 1]
        for back in reversed(range(equal if len(ends) else 0)):
            ends = ends[known[ends - back] == known[len(known) - 1 - back]]
        return (int(ends.max()), equal) if len(ends) else (-1, 0)

    def _choose(self, ends: Iterable[int], longer_than: int) -> tuple[int, int]:
        """Return the first of the longest matches at these ends, if it is longer."""
        best, best_matched = -1, longer_than
        for end in ends:
            matched = self._compare(end, best_matched)
            if matched > best_matched:
                best, best_matched = end, matched
                if matched == MOST_MATCHED:
                    break
        return best, best_matched if best >= 0 else 0

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
    ahead = _KEY_TOKENS - 1
    padded = np.concatenate([np.full(ahead, -1, np.int64), tokens])
    pairs = padded[ahead:] * _PAIR_FACTORS[0] + padded[ahead - 1 : -1] * _PAIR_FACTORS[1]
    keys = pairs >> _PAIR_SHIFT & (1 << _PAIR_BITS) - 1
    hashes = padded * _TOKEN_FACTOR >> _TOKEN_SHIFT & (1 << _TOKEN_BITS) - 1
    for back in range(2, _KEY_TOKENS):
        keys = keys << _TOKEN_BITS | hashes[ahead - back : len(hashes) - back]
    return keys


def _hash_last(tokens: "array[int]") -> int:
    """Return the key of the last token's end, as `_hash_all` does for all."""
    last = tokens[-_KEY_TOKENS:].tolist()
    if len(last) < _KEY_TOKENS:
        last = [-1] * (_KEY_TOKENS - len(last)) + last
    pair = last.pop() * _PAIR_FACTORS[0] + last.pop() * _PAIR_FACTORS[1]
    key = pair >> _PAIR_SHIFT & (1 << _PAIR_BITS) - 1
    mask = (1 << _TOKEN_BITS) - 1
    for token in reversed(last):
        key = key << _TOKEN_BITS | token * _TOKEN_FACTOR >> _TOKEN_SHIFT & mask
    return key


# The least match of each bucket, and the chance before anything is known that the next token is
# right: without a draft, where the drafter's first token is the copy's, and where it is not.
# Seen in answers of the proving ground's model: six kinds of task with drafts, four without.
BUCKETS = (2, 3, 4, 6, 9, 16, 32)
PRIORS = (
    (0.52, 0.87, 0.35),
    (0.66, 0.93, 0.52),
    (0.74, 0.93, 0.66),
    (0.78, 0.95, 0.74),
    (0.87, 0.97, 0.82),
    (0.93, 0.98, 0.91),
    (0.98, 0.99, 0.96),
)
PRIOR_TOKENS = 32.0
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
        if not count:
            return []
        later = [right[0] / seen[0] for right, seen in zip(self._right, self._seen, strict=True)]
        chance = self.rate(matched, agrees)
        survival = [chance]
        for bucket in _BUCKET[matched + 1 : matched + count]:
            chance *= later[bucket]
            survival.append(chance)
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
