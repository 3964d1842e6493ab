"""An engine whose costs and drafts are known: what is fitted to it is compared with the truth."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from slipstream.measuring.client.sample import Sample
from slipstream.tuning.acceptance import DraftAcceptance, RequestDrafts
from slipstream.tuning.experiment import EngineStart
from slipstream.tuning.speed_model import StepPoint

KINDS = {"code": 0.85, "prose": 0.6}


@dataclass(frozen=True)
class SyntheticEngine:
    """A step's costs in seconds, and how likely the next token of a draft is accepted."""

    fixed: float = 0.076
    per_sequence: float = 0.0004
    per_token: float = 0.00077
    plain_fixed: float = 0.070
    plain_per_sequence: float = 0.0009
    noise: float = 0.02
    kinds: Mapping[str, float] = field(default_factory=lambda: KINDS)
    prompts_differ: float = 0.03

    def take_seconds(self, sequences: float, length: float) -> float:
        if not length:
            return self.plain_fixed + self.plain_per_sequence * sequences
        return self.fixed + sequences * (self.per_sequence + self.per_token * (length + 1))

    def give_tokens(self, kind: str, length: int) -> float:
        """Return the mean over very many prompts."""
        return average(self.draft(kind, length, Random(7), prompts=1500, drafts=1), length)

    def token_seconds(self, shares: Mapping[str, float], length: int, sequences: int) -> float:
        seconds = self.take_seconds(sequences, length)
        if not length:
            return seconds
        return sum(
            share * seconds / self.give_tokens(kind, length) for kind, share in shares.items()
        )

    def measure(self, kind: str, sequences: float, length: float, chance: Random) -> StepPoint:
        exact = self.take_seconds(sequences, length)
        return StepPoint(
            kind=kind,
            concurrency=round(sequences),
            sequences=sequences,
            draft_length=length,
            seconds_per_step=exact * (1 + chance.gauss(0, self.noise)),
        )

    def run(self, starts: Sequence[EngineStart], chance: Random) -> list[StepPoint]:
        return [
            self.measure(kind, load, find_length(start, load), chance)
            for start in starts
            for load in start.concurrencies
            for kind in self.kinds
        ]

    def draft(
        self, kind: str, length: int, chance: Random, *, prompts: int = 12, drafts: int = 60
    ) -> DraftAcceptance:
        rows = []
        for number in range(prompts):
            likely = min(0.97, max(0.03, self.kinds[kind] + chance.gauss(0, self.prompts_differ)))
            reached = [0] * length
            for _ in range(drafts):
                for place in range(length):
                    if chance.random() >= likely:
                        break
                    reached[place] += 1
            name = f"{kind} {number}"
            rows.append(RequestDrafts(prompt_id=name, drafts=drafts, accepted=tuple(reached)))
        return DraftAcceptance(kind=kind, draft_length=length, requests=tuple(rows))

    def draft_all(self, length: int, chance: Random, *, prompts: int = 12) -> list[DraftAcceptance]:
        return [self.draft(kind, length, chance, prompts=prompts) for kind in self.kinds]


def find_length(start: EngineStart, load: int) -> int:
    for first, last, length in start.schedule:
        if first <= load <= last:
            return length
    return start.draft_length


def average(acceptance: DraftAcceptance, length: int) -> float:
    accepted = sum(sum(request.accepted[:length]) for request in acceptance.requests)
    return 1 + accepted / acceptance.total.drafts


def serve(
    engine: SyntheticEngine, kind: str, load: int, start: EngineStart, chance: Random
) -> list[Sample]:
    """Serve three requests per place that count, with every place busy, step by step."""
    lead_in = [_Served("", 120 * (place + 1) // load) for place in range(load if load > 1 else 0)]
    counted = [_Served(f"{kind} {number}", chance.randint(40, 120)) for number in range(3 * load)]
    waiting = [*lead_in, *counted]
    running: list[_Served] = []
    clock = 0.0
    while any(request.tokens < request.wanted for request in counted):
        while len(running) < load:
            running.append(waiting.pop(0) if waiting else _Served("", 120))
            running[-1].began = clock
        length = find_length(start, len(running))
        decoding = max(1, sum(request.tokens > 0 for request in running))
        clock += engine.take_seconds(decoding, length) * (1 + chance.gauss(0, engine.noise))
        for request in list(running):
            request.step(length, engine.kinds[kind], clock, chance)
            if request.tokens >= request.wanted:
                running.remove(request)
    return [request.as_sample(kind, load) for request in counted]


class _Served:
    def __init__(self, name: str, wanted: int) -> None:
        self.name, self.wanted = name, wanted
        self.began = self.first = self.last = 0.0
        self.tokens = self.drafts = self.drafted = 0
        self.reached = [0] * 16

    def step(self, length: int, likely: float, clock: float, chance: Random) -> None:
        """The first step is the prompt's, and gives one token."""
        self.last = clock
        if not self.tokens:
            self.tokens, self.first = 1, clock
            return
        accepted = 0
        while accepted < length and chance.random() < likely:
            self.reached[accepted] += 1
            accepted += 1
        self.tokens += accepted + 1
        self.drafts += bool(length)
        self.drafted += length

    def as_sample(self, kind: str, load: int) -> Sample:
        return Sample(
            prompt_id=self.name,
            kind=kind,
            concurrency=load,
            began_at=self.began,
            seconds=self.last - self.began,
            first_token_seconds=self.first - self.began,
            output_tokens=self.tokens,
            drafts=self.drafts,
            drafted=self.drafted,
            accepted=sum(self.reached),
            accepted_by_position=tuple(self.reached),
        )
