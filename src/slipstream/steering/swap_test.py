"""`SwapTest`: whether a swapped-in drafter is worse than the previous one, by request.

Requests are the unit: the drafts of one continue the same text, so they are not independent. Each
request of the new drafter is paired with one that the old drafter served, of the same kind and at
about the same batch, and every request is used once. What is compared is accepted tokens per step,
and not per draft: a controller drafts less, or not at all, with a drafter that is worse.

A pair is a bet on the old drafter, which is fair at best as long as the new one yields at least
95 % as much. What all bets together have won of 1 is then a nonnegative supermartingale: it ever
reaches 100 with a probability of at most 1 % (Ville's inequality), however often it is looked at.
The stakes are a mixture, since nobody knows how much worse a drafter is.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from math import exp, log, log1p
from typing import Literal

from slipstream.steering.ledger import LedgerLine

FALSE_ALARMS = 0.01
# A loss below this share of the tokens is not worth another swap.
MARGIN = 0.05
STAKES = tuple(share / 10 for share in range(1, 10))
# Of the old drafter: fewer say too little about what is usual.
LEAST_BEFORE = 10
USUAL_SHARE = 0.75
# Of a prompt in the prefix cache: for those tokens the old drafter's keys may be there.
MOST_CACHED_SHARE = 0.25
# Of an old drafter that had hardly a token accepted: a tenth of one in each step is better.
LEAST_CAP = 0.1

SwapVerdict = Literal["worse", "as-good"]
Measure = Callable[[LedgerLine], float | None]


def count_accepted(line: LedgerLine) -> float | None:
    """Return the drafter's accepted tokens per step that was not a copy's, None without one."""
    steps = line.steps - line.copies
    return sum(line.accepted) / steps if steps > 0 else None


class SwapTest:
    """Compares the requests that a new drafter serves with those of the old one.

    The last of `before` are paired first. 'worse' says that the new drafter yields less than 95 %,
    'as-good' that it yields more than 90 %. Of another `measure`, None leaves a request out.
    """

    def __init__(
        self,
        before: Iterable[LedgerLine],
        *,
        measure: Measure = count_accepted,
        most_cached_share: float = MOST_CACHED_SHARE,
    ) -> None:
        self._measure, self._most_cached_share = measure, most_cached_share
        self._before = defaultdict[tuple[str, int], list[float]](list)
        yields = []
        for line in before:
            if (value := measure(line)) is not None:
                self._before[_group(line)].append(value)
                yields.append(value)
        self.can_decide = len(yields) >= LEAST_BEFORE
        # Capped where three of four requests end, so that one long copied text decides nothing.
        usual = sorted(yields)[int(USUAL_SHARE * len(yields))] if yields else 0.0
        self._cap = max(usual, LEAST_CAP)
        self._worse, self._as_good = _Bets(), _Bets()
        self._pairs: list[tuple[float, float]] = []

    @property
    def requests(self) -> int:
        return len(self._pairs)

    @property
    def means(self) -> tuple[float, float] | None:
        """The mean measure of the pairs, with the old drafter and with the new one."""
        if not self._pairs:
            return None
        old, new = zip(*self._pairs, strict=True)
        return sum(old) / len(old), sum(new) / len(new)

    @property
    def verdict(self) -> SwapVerdict | None:
        """The decision so far, None if there is none."""
        if self._worse.won >= 1 / FALSE_ALARMS:
            return "worse"
        return "as-good" if self._as_good.won >= 1 / FALSE_ALARMS else None

    def add(self, line: LedgerLine) -> None:
        """Compare a request of the new drafter with one of the old drafter, if any is left."""
        new = self._measure(line)
        if self.verdict or not self.can_decide or new is None:
            return
        is_cached = line.cached_tokens > self._most_cached_share * line.prompt_tokens
        if is_cached or not (waiting := self._before[_group(line)]):
            return
        old = waiting.pop()
        self._pairs.append((old, new))
        old, new = (min(one, self._cap) / self._cap for one in (old, new))
        self._worse.take((1 - MARGIN) * old - new)
        self._as_good.take(new - (1 - 2 * MARGIN) * old)


def _group(line: LedgerLine) -> tuple[str, int]:
    """Return what two requests must have in common: the kind, and the batch by powers of two."""
    return line.kind, round(line.batch or 1).bit_length()


class _Bets:
    """What a mixture of constant stakes has won of 1; a gain lies between -1 and 1."""

    def __init__(self) -> None:
        self._logs = [0.0] * len(STAKES)

    @property
    def won(self) -> float:
        most = max(self._logs)
        return exp(most + log(sum(exp(one - most) for one in self._logs) / len(STAKES)))

    def take(self, gain: float) -> None:
        self._logs = [
            one + log1p(stake * gain) for one, stake in zip(self._logs, STAKES, strict=True)
        ]
