"""Simulated requests of a ledger: users in sessions, drifts from one request on.

A session has a kind of content and an acceptance of its own, so requests of a kind differ by far
more than their tokens would (beta-binomial), and neighbours are alike. Kinds, load and the
machine's speed change slowly.
"""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from slipstream.steering.ledger import LedgerLine

KINDS = {"code": 0.75, "prose": 0.5, "structured": 0.8, "tools": 0.7, "other": 0.55}
LONGEST = 7
SESSIONS = 8


@dataclass(frozen=True)
class Drift:
    """What changes: factors of acceptance and of a step's time, or the mix of kinds."""

    accepted: float = 1.0
    step: float = 1.0
    mix: bool = False
    kinds: tuple[str, ...] = tuple(KINDS)


QUIET = Drift()
DRIFTS = {
    "another mix of kinds": Drift(mix=True),
    "acceptance -10 %": Drift(accepted=0.9),
    "acceptance -25 %": Drift(accepted=0.75),
    "acceptance -50 %": Drift(accepted=0.5),
    "acceptance of code -25 %": Drift(accepted=0.75, kinds=("code",)),
    "engine slowed by 20 %": Drift(step=1.2),
    "noise drafter": Drift(accepted=0.01),
}


@dataclass(frozen=True)
class Session:
    """A user at work: alike requests, of which the later ones find their context in the cache."""

    key: str
    kind: str
    level: float
    prompt: float
    turn: int = 0


class Traffic:
    """Requests as a ledger has them."""

    def __init__(self, seed: int, concentration: float = 8.0, session: int = 6) -> None:
        self._chance = random.Random(seed)
        self._concentration, self._session = concentration, session
        self._weights = {kind: self._chance.uniform(0.5, 2) for kind in KINDS}
        self._load = self._pace = 0.0
        self._sessions = [self._begin() for _ in range(SESSIONS)]

    def generate(self, requests: int, drift_at: int, drift: Drift) -> Iterator[LedgerLine]:
        """Yield so many requests, with the drift from one of them on."""
        for number in range(requests):
            if drift.mix and number == drift_at:
                self._weights = {kind: weight**-3 for kind, weight in self._weights.items()}
            yield self._request(number, drift if number >= drift_at else QUIET)

    def _begin(self) -> Session:
        chance, concentration = self._chance, self._concentration
        kind = chance.choices(list(KINDS), [*self._weights.values()])[0]
        mean = KINDS[kind]
        level = chance.betavariate(mean * concentration, (1 - mean) * concentration)
        prompt = 400 * math.exp(chance.gauss(0, 0.8))
        return Session(f"k{chance.randrange(6)}", kind, level, prompt)

    def _request(self, number: int, drift: Drift) -> LedgerLine:
        chance = self._chance
        place = chance.randrange(SESSIONS)
        if chance.random() < 1 / self._session:
            self._sessions[place] = self._begin()
        session = self._sessions[place]
        self._sessions[place] = replace(session, turn=session.turn + 1)
        for kind in self._weights:
            self._weights[kind] *= math.exp(chance.gauss(0, 0.005))
        self._load = 0.999 * self._load + 0.045 * chance.gauss(0, 0.7)
        self._pace = 0.98 * self._pace + 0.2 * chance.gauss(0, 0.03)
        return self._describe(number, session, drift)

    def _describe(self, number: int, session: Session, drift: Drift) -> LedgerLine:
        chance = self._chance
        tokens = int(min(1000, max(8, 120 * math.exp(chance.gauss(0, 0.8)))))
        level = min(0.995, max(0.005, session.level))
        own = chance.betavariate(
            level * 3 * self._concentration, (1 - level) * 3 * self._concentration
        )
        factor = drift.accepted if session.kind in drift.kinds else 1.0
        length = LONGEST if chance.random() < 0.85 else chance.choice((4, 5, 6))
        expected = factor * sum(own**position for position in range(1, length + 1))
        drafts = max(1, round(tokens / (1 + expected)))
        accepted, left, rate = [], drafts, own * factor
        for _ in range(length):
            left = draw_binomial(chance, left, rate)
            accepted.append(left)
            rate = own
        batch = max(1.0, 3 * math.exp(self._load))
        prompt = int(session.prompt * (1 + 0.5 * session.turn))
        cached = int(prompt * chance.uniform(0.6, 0.9)) if session.turn else 0
        pace = math.exp(self._pace + chance.gauss(0, 0.08))
        step = 0.02 * (1 + 0.05 * batch) * (1 + prompt / 32768) * pace * drift.step
        queue = chance.expovariate(20 / batch)
        first = (0.03 + 0.0002 * (prompt - cached)) * pace * drift.step + queue
        return LedgerLine.model_construct(
            at=float(number),
            id=str(number),
            key=session.key,
            route="chat",
            kind=session.kind,
            ended="stop",
            prompt_tokens=prompt,
            cached_tokens=cached,
            tokens=drafts + sum(accepted),
            steps=drafts + 1,
            drafts=drafts,
            drafted=drafts * length,
            accepted=tuple(accepted),
            seconds=first + step * drafts,
            first_seconds=first,
            temperature=0.0,
            batch=batch,
            draft_length=float(length),
        )


class CutTraffic(Traffic):
    """The same with drafts that are cut where their survival falls below the load's price.

    The drafter is surer of itself than it should be (`SURENESS`), and calibration corrects that.
    `honest` says whether it knows of its drift. A copy takes the place of some drafts that are
    easy; then the drafter does not run.
    """

    SURENESS = 0.7
    SPREAD = 1.5

    def __init__(
        self, seed: int, prices: tuple[float, ...], requests: int, *, honest: bool = False
    ) -> None:
        super().__init__(seed)
        self._prices, self._requests, self._honest = prices, requests, honest
        self.copies = [0.0]

    def _describe(self, number: int, session: Session, drift: Drift) -> LedgerLine:
        line = super()._describe(number, session, drift)
        phase, level = number // self._requests, min(0.98, max(0.02, session.level))
        price = self._prices[phase % len(self._prices)]
        copied = self.copies[phase % len(self.copies)]
        factor = drift.accepted if session.kind in drift.kinds else 1.0
        drafts = [self._draft(level, factor, price, copied) for _ in range(line.drafts)]
        made = [one for one in drafts if one is not None]
        cut = [one for one in made if one.verified]
        accepted = [sum(one.accepted > place for one in cut) for place in range(LONGEST)]
        counts = {
            "steps": len(drafts) + 1,
            "drafts": len(cut),
            "drafted": sum(one.verified for one in cut),
            "accepted": tuple(accepted),
            "expected": sum(one.expected for one in cut),
            "proposals": len(made),
            "first_expected": sum(one.first for one in made if not one.verified),
            "copies": len(drafts) - len(made),
        }
        return line.model_copy(update=counts)

    def _draft(self, level: float, factor: float, price: float, copied: float) -> "Draft | None":
        chance, spread = self._chance, self.SPREAD
        survival, said, expected, verified, accepted, first = 1.0, 1.0, 0.0, 0, 0, 0.0
        while verified < LONGEST:
            own = chance.betavariate(level * spread, (1 - level) * spread)
            true, own = own * factor, own * factor if self._honest else own
            if not verified:
                first = true
                if true > 0.6 and chance.random() < copied:
                    return None
            survival, said = survival * true, said * own**self.SURENESS
            if survival < price:
                break
            expected += said
            accepted += accepted == verified and chance.random() < true
            verified += 1
        return Draft(verified, accepted, expected, first)


class Draft(NamedTuple):
    """A draft that was made: verified and accepted tokens, and what was expected of it."""

    verified: int
    accepted: int
    expected: float
    first: float


def draw_binomial(chance: random.Random, trials: int, rate: float) -> int:
    """Draw from a binomial distribution, by its normal limit where that is close."""
    if trials > 40 and 0.1 < rate < 0.9:
        mean, spread = trials * rate, math.sqrt(trials * rate * (1 - rate))
        return min(trials, max(0, round(chance.gauss(mean, spread))))
    return sum(chance.random() < rate for _ in range(trials))
