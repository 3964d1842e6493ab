"""Which tokens of a request are verified next: the drafter's, a copy of earlier ones, or none.

A token is worth verifying if its chance to survive exceeds the price: the tokens that the engine
makes elsewhere in the seconds that it takes. Of drafter and copy the one with more to gain is
taken; what all requests gain together has to be worth the fixed part of verifying. Text is the
target's in any case: it accepts only what it would have predicted itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp
from typing import NamedTuple

import numpy as np

from slipstream.vllm_plugin.steering.copying import Copy, CopyIndex, CopyRates
from slipstream.vllm_plugin.steering.survival import NO_PROBABILITY, Survival

# How fast a request's own factor follows what is accepted of its drafts, and how far.
FACTOR_SHARE = 0.15
LEAST_FACTOR, MOST_FACTOR = 0.2, 1.25
# The drafter's pass is left out if every copy is whole with this chance.
WHOLE = 0.5
# Drafts of a step that are learnt from, where none is seen before it is verified.
MOST_LEARNT = 64


@dataclass(slots=True)
class Drafting:
    """What is known of an open request's drafts.

    Of the drafter's last row, copied over or not: `first` is the calibrated chance of its first
    token, and `predicted[n - 1]` of its first n tokens are accepted by its own probabilities.
    """

    kind: int
    plain: bool = False
    # It is the supervisor's, who asks whether the drafter's own tokens are accepted.
    proves: bool = False
    index: CopyIndex | None = None
    known: int = 0
    copy: Copy | None = None
    agrees: bool | None = None
    is_copy: bool = False
    bins: Sequence[int] = ()
    survival: Sequence[float] = ()
    factor: float = 1.0
    first: float = 0.0
    predicted: Sequence[float] = ()


class Generating(NamedTuple):
    """A request between two steps: its tokens so far, and how many may be copied."""

    name: str
    tokens: list[int]
    most_copied: int


class DraftChooser:
    """Chooses every request's draft between two steps, and learns what became of it."""

    def __init__(self, survival: Survival) -> None:
        self._survival = survival
        self.rates = CopyRates()
        self.requests: dict[str, Drafting] = {}
        # Requests, if every one of them copies.
        self.copies_all = 0
        self._proving = 0
        self._has_probabilities = self._chooses = False

    def begin(self, request: str, kind: int, *, plain: bool, proves: bool = False) -> None:
        self.end(request)
        self.requests[request] = Drafting(kind, plain, proves)
        self._proving += proves
        self._survival.open[kind] += 1

    def end(self, request: str) -> None:
        if (state := self.requests.pop(request, None)) is not None:
            self._survival.open[state.kind] -= 1
            self._proving -= state.proves

    @property
    def proves(self) -> bool:
        """Whether every open request is the supervisor's."""
        return 0 < self._proving == len(self.requests)

    def choose(
        self,
        requests: Sequence[Generating],
        rows: Sequence[list[int]],
        chances: Sequence[list[float]] | None,
        *,
        price: float,
        entry: float,
        most: int | None,
        whole: bool,
    ) -> list[list[int]]:
        """Return each request's draft, given its tokens so far, the drafter's row and chances.

        With `whole` the drafter's tokens are all verified, whatever their chances.
        """
        self._chooses = True
        states = [self.requests.get(name) or Drafting(0) for name, _, _ in requests]
        self._assess(states, rows, chances)
        chosen: list[list[int]] = []
        gains = 0.0
        for state, (_, tokens, longest), row in zip(states, requests, rows, strict=True):
            if state.plain:
                state.survival, state.is_copy, state.first = (), False, 0.0
                chosen.append([])
                continue
            longest = longest if most is None else min(most, longest)
            copy = None
            if longest and not state.proves:
                copy = self._follow(state, tokens, longest)
            draft, gain = self._pick(state, row, copy, price, whole=whole or state.proves)
            chosen.append(draft)
            gains += gain
        if gains < entry and not whole and not self._proving:
            chosen = [[] for _ in states]
            for state in states:
                state.survival, state.is_copy = (), False
        sure = all(state.is_copy and state.survival[-1] > WHOLE for state in states)
        self.copies_all = len(states) if sure else 0
        return chosen

    def see_step(
        self, requests: Sequence[str], drafted: Sequence[int], accepted: Sequence[int]
    ) -> tuple[list[bool], list[float], list[float]]:
        """Learn from a step; return what the ledger takes: copied, expected, first.

        The last two are empty if the drafter gives no probabilities.
        """
        if not self._chooses:
            self._learn_lengths(requests, drafted, accepted)
            return [False] * len(requests), [], []
        copied, expected, first, own = [], [], [], []
        for place, (name, verified) in enumerate(zip(requests, drafted, strict=True)):
            state = self.requests.get(name)
            is_copy = state is not None and state.is_copy
            copied.append(is_copy)
            hoped = sum(state.survival[:verified]) if state is not None and verified else 0.0
            is_predicted = state is not None and 0 < verified <= len(state.predicted)
            expected.append(
                state.predicted[verified - 1] if state is not None and is_predicted else 0.0
            )
            first.append(0.0 if state is None else state.first)
            if state is not None:
                state.first = 0.0
            # The supervisor's requests are no traffic, and all alike.
            if verified and state is not None and not is_copy and not state.proves:
                own.append((place, state))
                if hoped:
                    error = (accepted[place] - hoped) / (1 + hoped)
                    factor = state.factor * exp(FACTOR_SHARE * error)
                    state.factor = min(max(factor, LEAST_FACTOR), MOST_FACTOR)
        if own:
            self._learn(own, drafted, accepted)
        return (copied, expected, first) if self._has_probabilities else (copied, [], [])

    def _learn_lengths(
        self, requests: Sequence[str], drafted: Sequence[int], accepted: Sequence[int]
    ) -> None:
        """Learn from some of a step's drafts where an asynchronous scheduler shows none of them."""
        some = slice(None, None, 1 + len(requests) // MOST_LEARNT)
        states = map(self.requests.get, requests[some])
        kinds = np.array([-1 if one is None or one.proves else one.kind for one in states])
        verified, right = np.array(drafted[some]), np.array(accepted[some])
        own = (kinds >= 0) & (verified > 0)
        if own.any():
            bins = np.full((int(own.sum()), self._longest), NO_PROBABILITY)
            verified = np.minimum(verified[own], self._longest)
            self._survival.learn(kinds[own], bins, verified, right[own])

    @property
    def _longest(self) -> int:
        return self._survival.longest

    def _learn(
        self, own: list[tuple[int, Drafting]], drafted: Sequence[int], accepted: Sequence[int]
    ) -> None:
        """Learn from the drafter's own drafts."""
        longest = self._longest
        bins = np.full((len(own), longest), NO_PROBABILITY)
        for row, (_, state) in enumerate(own):
            bins[row, : len(state.bins)] = state.bins
        places = [place for place, _ in own]
        self._survival.learn(
            np.array([state.kind for _, state in own]),
            bins,
            np.array([min(drafted[place], longest) for place in places]),
            np.array([accepted[place] for place in places]),
        )

    def _assess(
        self,
        states: list[Drafting],
        rows: Sequence[list[int]],
        chances: Sequence[list[float]] | None,
    ) -> None:
        """Find the survival of the drafter's tokens; a drafter may give no probabilities."""
        for state in states:
            state.survival = state.bins = state.predicted = ()
            state.first = 0.0
        self._has_probabilities |= chances is not None
        if not states or not rows[0]:
            return
        if chances is None and self._has_probabilities:
            return  # Not a draft: vLLM fills in zeros where the drafter cannot go on.
        shape = (len(rows), len(rows[0]))
        predicted = np.full(shape, np.nan) if chances is None else np.array(chances)
        kinds = [state.kind for state in states]
        factors = [state.factor for state in states]
        survival, bins = self._survival.calibrate(kinds, factors, predicted)
        if chances is not None:
            self._survival.remember(kinds, survival)
        for state, one, these in zip(states, survival.tolist(), bins.tolist(), strict=True):
            state.survival, state.bins = one, these
        if chances is not None:
            sums = predicted.cumprod(axis=1).cumsum(axis=1).tolist()
            for state, row, own in zip(states, survival[:, 0].tolist(), sums, strict=True):
                state.first, state.predicted = row, own

    def _follow(self, state: Drafting, tokens: list[int], longest: int) -> Copy | None:
        """Learn whether the last copy was right, and return the next."""
        if state.index is None:
            state.index, state.known = CopyIndex(tokens), len(tokens)
        new = tokens[state.known :]
        if state.copy is not None and new:
            right = _count_equal(new, state.copy.tokens)
            wrong = right < min(len(new), len(state.copy.tokens))
            self.rates.learn(state.copy.matched, state.agrees, right, wrong)
        state.index.follow(new)
        state.known += len(new)
        state.copy = state.index.propose(longest)
        return state.copy

    def _pick(
        self, state: Drafting, row: list[int], copy: Copy | None, price: float, *, whole: bool
    ) -> tuple[list[int], float]:
        """Take the drafter's tokens or the copied ones, as far as they are worth it."""
        count, gain = _cut(state.survival, price)
        count = len(row) if whole else count
        state.is_copy = False
        if copy is None:
            return row[:count], gain
        state.agrees = row[0] == copy.tokens[0] if row and state.survival else None
        survival = self.rates.list_survival(copy.matched, state.agrees, len(copy.tokens))
        copied, copy_gain = _cut(survival, price)
        if copy_gain <= gain:
            return row[:count], gain
        state.is_copy, state.survival = True, survival[:copied]
        return copy.tokens[:copied], copy_gain


def find_most_constrained(seats: int, length: int, constrained: int) -> int:
    """Return the longest draft of a request with a grammar, of which so many run.

    vLLM has masks for `length` tokens and one more of every seat, and a request that joins takes
    one: beyond these xgrammar raises, and the engine ends.
    """
    masks = seats * (1 + length) - (seats - constrained)
    return masks // max(1, constrained) - 1


def _cut(survival: Sequence[float], price: float) -> tuple[int, float]:
    """Return how many tokens are worth the price, and what they bring beyond it."""
    gain = 0.0
    for count, chance in enumerate(survival):
        if chance <= price:
            return count, gain
        gain += chance - price
    return len(survival), gain


def _count_equal(one: Sequence[int], other: Sequence[int]) -> int:
    for place, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return place
    return min(len(one), len(other))
