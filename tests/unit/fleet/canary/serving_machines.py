"""Machines that serve drafters of some quality: their ledgers grow at every look."""

import json
from dataclasses import dataclass, field
from random import Random

from slipstream.fleet.canary.answers import AnswerRegret, AnswerSample
from slipstream.fleet.canary.ledgers import GroupLedger
from slipstream.fleet.record import Fleet
from slipstream.fleet.transport import Answer
from slipstream.serving.swaps import Swap
from slipstream.steering.ledger import LedgerLine
from tests.unit.fleet.far_machines import say
from tests.unit.serving.kept_runs import AT
from tests.unit.steering.lines import make

FLEET = Fleet.model_validate(
    {
        "name": "lab",
        "model": {"target": "m", "drafter": "old"},
        "machines": {"one": {}, "two": {}, "three": {}},
        "groups": {name: {"machines": [name]} for name in ("one", "two", "three")},
    }
)
QUALITY = {"old": 0.6, "good": 0.85, "bad": 0.25, "same": 0.6}
LENGTH = 7
REQUESTS_PER_LOOK = 4
TEMPLATE = make(cached_tokens=0, key="k")


@dataclass
class ServingMachine:
    """A run whose drafter can be swapped."""

    name: str
    run: str = "run"
    requests_before: int = 120
    refuses: bool = False
    returns_at: int | None = None
    faulty: frozenset[str] = frozenset()
    now: float = 1000.0
    drafters: list[tuple[str, float]] = field(default_factory=lambda: [("old", 0.0)])
    lines: list[LedgerLine] = field(default_factory=list)
    last_swap: Swap | None = None

    def __post_init__(self) -> None:
        self._chance = Random(self.name)
        self.serve(self.requests_before)

    def serve(self, requests: int) -> None:
        """End so many requests."""
        for _ in range(requests):
            self.now += 1.0
            self.lines.append(self._draw())
        served = sum(line.at > self.drafters[-1][1] for line in self.lines)
        if self.returns_at is not None and len(self.drafters) > 1 and served >= self.returns_at:
            self.swap(self.drafters[-2][0], "swapped-back", "it is worse")

    def swap(self, drafter: str, outcome: str, message: str) -> Swap:
        """Have another drafter serve from now on."""
        self.drafters.append((drafter, self.now))
        known = {"order": "1", "at": AT, "drafter": drafter, "serves": drafter}
        self.last_swap = Swap.model_validate({**known, "outcome": outcome, "message": message})
        return self.last_swap

    def restart(self, drafter: str) -> None:
        """Begin another run, with another plan."""
        self.run, self.lines, self.drafters = "run-2", [], [(drafter, 0.0)]

    def reply(self, words: list[str]) -> Answer:
        """Answer as the command on the machine does."""
        if words[:2] == ["fleet", "ledger"]:
            after, most = float(words[5]), int(words[7])
            if most:
                self.serve(REQUESTS_PER_LOOK)
            return say(self._describe(after).to_json())
        if words[:2] == ["fleet", "answers"]:
            return say(self._answer(int(words[5])).to_json())
        assert words[:2] == ["swap", self.run]
        if words[2] == "--back":
            return say(self.swap(self.drafters[-2][0], "swapped", "back").to_json())
        if self.refuses:
            error = {"error": {"message": "swap_shape: it has \x1b[31manother shape"}}
            return say("", 1, json.dumps(error, indent=2).encode())
        return say(self.swap(words[2], "swapped", f"{words[2]} drafts").to_json())

    def _describe(self, after: float) -> GroupLedger:
        name, since = self.drafters[-1]
        return GroupLedger(
            run=self.run,
            state="ready",
            now=self.now,
            target="m",
            drafter=name,
            dtype="bfloat16",
            last_swap=self.last_swap,
            lines=tuple(
                line for line in self.lines if line.at > after and line.at - line.seconds >= since
            ),
        )

    def _draw(self) -> LedgerLine:
        chance = self._chance
        rate = min(0.95, max(0.02, chance.gauss(QUALITY[self.drafters[-1][0]], 0.08)))
        steps, accepted = 20, [0] * LENGTH
        for _ in range(steps - 1):
            for position in range(LENGTH):
                if chance.random() >= rate:
                    break
                accepted[position] += 1
        counts = {"tokens": steps + sum(accepted), "steps": steps, "drafts": steps - 1}
        times = {"at": self.now, "seconds": 0.2 + 0.03 * (steps - 1) * chance.uniform(0.9, 1.1)}
        rest = {"drafted": LENGTH * (steps - 1), "first_seconds": 0.2, "batch": 2.0}
        return TEMPLATE.model_copy(update={**counts, **times, **rest, "accepted": tuple(accepted)})

    def _answer(self, number: int) -> AnswerSample:
        worst = 3.0 if self.drafters[-1][0] in self.faulty else 0.1
        return AnswerSample(
            answers=tuple(
                AnswerRegret(prompt_id=f"p{one}", tokens=48, worst=worst) for one in range(number)
            )
        )


def reply_of(
    machines: dict[str, ServingMachine], name: str, words: list[str], _: bytes | None
) -> Answer:
    """Answer for one of some machines."""
    return machines[name].reply(words)
