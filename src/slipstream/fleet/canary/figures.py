"""What a request says about its arm, and which requests of two arms are comparable.

Speed is tokens per second of step time. Step time grows with the batch, so requests are compared
within a kind and a range of batches, and what the batch still differs by is taken out by a model of
step time, fitted to the requests before the trial. The draft length is not taken out: how long a
controller drafts with a drafter is part of what the drafter is worth.
"""

from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from math import log2
from statistics import fmean, median
from typing import NamedTuple

from slipstream.serving.supervision.watching.steering_watch import OWN_KEY
from slipstream.steering.expected_time import PILOT_REQUESTS, ExpectedTime
from slipstream.steering.ledger import LedgerLine
from slipstream.steering.streams import FEATURES, LEAST_DRAFTS, solve_acceptance
from slipstream.steering.swap_test import MOST_CACHED_SHARE

# By tokens and not by steps: a better drafter answers the same text in fewer of those.
LEAST_TOKENS = 24
# Draft lengths of one request in 50 at either end count as unseen.
RARE_SHARE = 50
NEAR_LENGTHS = 0.5
# Of each stratum and arm: older ones saw another hour of the machine.
MOST_WAITING = 64


class Figures(NamedTuple):
    """A request's figures in octaves (logarithms to the base 2), at the usual load.

    `speed` is tokens per second of step time. `expected_speed` is the same if each step took what
    it is expected to take with its batch, draft length and context, and `step_seconds` by how much
    it took longer: the first is the drafter's doing, the second the machine's. They are None for a
    draft length of which nothing is known.
    """

    kind: str
    batch: int
    speed: float
    expected_speed: float | None
    step_seconds: float | None
    acceptance: float | None


class Difference(NamedTuple):
    """A canary's request less the mean of comparable ones of the other groups."""

    kind: str
    speed: float
    expected_speed: float | None
    step_seconds: float | None
    acceptance: float | None
    other_acceptance: float | None


class LoadModel:
    """What a step takes by batch, draft length and context, learnt from the requests before."""

    def __init__(self, before: Iterable[LedgerLine]) -> None:
        self._time = ExpectedTime(FEATURES)
        batches, contexts, lengths = [], [], []
        self.requests = 0
        for line in before:
            self.requests += 1
            batch, length, context, seconds = _read_steps(line)
            self._time.learn(_list_features(batch, length, context), seconds)
            batches.append(batch)
            contexts.append(context)
            lengths.append(length)
        self.batch = median(batches) if batches else 1.0
        self._context = median(contexts) if contexts else 0.0
        self._lengths = sorted(lengths)

    @property
    def is_known(self) -> bool:
        """Whether enough requests were seen."""
        return self.requests >= PILOT_REQUESTS

    def describe(self, line: LedgerLine) -> Figures | None:
        """Return a request's figures, None if nothing is known about steps."""
        batch, length, context, seconds = _read_steps(line)
        own = self._time.predict(_list_features(batch, length, context))
        usual = self._time.predict(_list_features(self.batch, length, self._context))
        if own is None or usual is None or seconds <= 0:
            return None
        expected = log2((line.tokens - 1) / (line.steps - 1) / usual)
        slower = log2(seconds / own)
        is_known = self._knows_length(length)
        acceptance = None
        if line.drafts >= LEAST_DRAFTS:
            mean = sum(line.accepted) / line.drafts
            acceptance = solve_acceptance(mean, line.drafted / line.drafts)
        bucket = round(batch).bit_length()
        return Figures(
            line.kind,
            bucket,
            expected - slower,
            expected if is_known else None,
            slower if is_known else None,
            acceptance,
        )

    def _knows_length(self, length: float) -> bool:
        """Say whether enough drafts of about this length were seen to know what they cost."""
        few = len(self._lengths) // RARE_SHARE
        low, high = self._lengths[few], self._lengths[-1 - few]
        return low - NEAR_LENGTHS <= length <= high + NEAR_LENGTHS


class Matching:
    """Pairs a canary's requests with those of the others; every request is used once.

    A canary's request is compared with up to `ratio` others: there are as many more of them.
    """

    def __init__(self, ratio: int) -> None:
        self._ratio = ratio
        self._canary = defaultdict[tuple[str, int], deque[Figures]](_make_queue)
        self._others = defaultdict[tuple[str, int], deque[Figures]](_make_queue)

    def add(self, figures: Figures, *, is_canary: bool) -> Difference | None:
        """Take a request, and return the difference that it completes."""
        stratum = figures.kind, figures.batch
        canary, others = self._canary[stratum], self._others[stratum]
        (canary if is_canary else others).append(figures)
        if not canary or not others:
            return None
        chosen = [others.pop() for _ in range(min(self._ratio, len(others)))]
        return _subtract(canary.popleft(), chosen)


@dataclass(frozen=True, slots=True)
class Filter:
    """Which lines of a ledger are compared at all.

    Where a prompt was in the prefix cache, the drafter before may have computed the drafter's part
    of it, which costs a new drafter acceptance; an engine that was started anew has no such cache.
    """

    most_cached_share: float = MOST_CACHED_SHARE

    def takes(self, line: LedgerLine) -> bool:
        """Say whether a line tells anything about speed."""
        return (
            line.key != OWN_KEY
            and line.tokens >= LEAST_TOKENS
            and line.steps >= 2
            and line.first_seconds is not None
            and line.cached_tokens <= self.most_cached_share * line.prompt_tokens
        )


def _read_steps(line: LedgerLine) -> tuple[float, float, float, float]:
    """Return a request's batch, draft length, context in thousands and seconds per step."""
    seconds = max(0.0, line.seconds - (line.first_seconds or 0.0)) / (line.steps - 1)
    return line.batch or 1.0, line.drafted / line.steps, line.context_tokens / 1024, seconds


def _list_features(batch: float, length: float, context: float) -> tuple[float, ...]:
    return 1.0, batch, batch * length, context


def _subtract(canary: Figures, others: list[Figures]) -> Difference:
    return Difference(
        kind=canary.kind,
        speed=canary.speed - fmean(one.speed for one in others),
        expected_speed=_differ(canary.expected_speed, [one.expected_speed for one in others]),
        step_seconds=_differ(canary.step_seconds, [one.step_seconds for one in others]),
        acceptance=canary.acceptance,
        other_acceptance=_average([one.acceptance for one in others]),
    )


def _differ(ours: float | None, theirs: list[float | None]) -> float | None:
    usual = _average(theirs)
    return None if ours is None or usual is None else ours - usual


def _average(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _make_queue() -> deque[Figures]:
    return deque(maxlen=MOST_WAITING)
