"""A made-up server, measured in rounds: each start, minute, prompt and request has its own luck."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from heapq import heapreplace
from math import exp, sin, tau
from random import Random

from slipstream.measuring.client.sample import Sample
from slipstream.measuring.comparing.blocks import Arm, Block

SpeedUp = Callable[[str, int], float]


@dataclass(frozen=True, kw_only=True)
class Server:
    """How a server and its load behave; noise is the standard deviation of a logarithm.

    `start_noise` None is 1 to 3 %, another for each server. `last_noise` is what a start does to
    the highest concurrency alone, as graphs that are captured for each batch size may. `others`
    are the speed-ups of the arms from C on, `unsteady` the arms whose starts differ twice as much.
    """

    kinds: tuple[str, ...] = ("chat", "code", "prose")
    concurrencies: tuple[int, ...] = (1, 4, 16)
    prompts: int = 10
    speed_up: SpeedUp | None = None
    others: Mapping[str, SpeedUp] = field(default_factory=dict)
    unsteady: str = ""
    prompt_spread: float = 0.1
    request_noise: float = 0.04
    start_noise: float | None = None
    last_noise: float = 0.0
    drift: float = 0.015
    drift_seconds: float = 1500
    stall_chance: float = 0.01
    stall_seconds: float = 0.5
    start_seconds: float = 120


@dataclass(frozen=True)
class _Prompt:
    name: str
    kind: str
    tokens: int
    tokens_per_step: float
    luck: float


def measure(server: Server, seed: int, *orders: str) -> list[Block]:
    """Measure rounds in these orders of the arms, such as ABBA; B has the speed-up, if any."""
    session = _Session(server, Random(seed))
    return [session.start(arm, number) for number, order in enumerate(orders) for arm in order]


class _Session:
    """One server and one clock, from the first start to the last."""

    def __init__(self, server: Server, chance: Random) -> None:
        self.server, self.chance, self.clock = server, chance, 0.0
        self.start_noise = server.start_noise or chance.uniform(0.01, 0.03)
        self.phase = chance.random()
        speed_ups = {"B": server.speed_up, **server.others}
        self.speed_ups = {arm: one for arm, one in speed_ups.items() if one is not None}
        self.prompts = [
            _Prompt(
                name=f"{kind}-{number}",
                kind=kind,
                tokens=chance.randint(60, 250),
                tokens_per_step=1 + chance.gammavariate(2, 1),
                luck=chance.gauss(0, server.prompt_spread),
            )
            for kind in server.kinds
            for number in range(server.prompts)
        ]

    def start(self, arm: Arm, number: int) -> Block:
        self.clock += self.server.start_seconds
        slowness = self.chance.gauss(0, self.start_noise) * (1 + (arm in self.server.unsteady))
        samples: list[Sample] = []
        for concurrency in self.server.concurrencies:
            if concurrency == self.server.concurrencies[-1]:
                slowness += self.chance.gauss(0, self.server.last_noise)
            for kind in self.server.kinds:
                samples += self.load(arm, kind, concurrency, slowness)
        return Block(arm=arm, round=number, samples=tuple(samples))

    def load(self, arm: Arm, kind: str, concurrency: int, slowness: float) -> list[Sample]:
        """Keep so many requests in flight until every prompt of the kind is answered."""
        free_at, samples = [0.0] * concurrency, []
        for prompt in self.prompts:
            if prompt.kind == kind:
                sample = self.answer(arm, prompt, concurrency, free_at[0], slowness)
                heapreplace(free_at, free_at[0] + sample.seconds)
                samples.append(sample)
        self.clock += max(free_at)
        return samples

    def draw_luck(self, arm: Arm, prompt: _Prompt) -> float:
        """Draw what a prompt gains in an arm from C on, the same whenever it is asked."""
        return Random(f"{prompt.luck} {arm}").gauss(0, self.server.prompt_spread)

    def answer(
        self, arm: Arm, prompt: _Prompt, concurrency: int, began_at: float, slowness: float
    ) -> Sample:
        server, chance = self.server, self.chance
        now = self.clock + began_at
        drift = server.drift * sin(tau * (now / server.drift_seconds + self.phase)) + now * 3e-6
        each = 0.04 * (1 + concurrency / 20) / prompt.tokens_per_step
        each *= exp(slowness + drift + chance.gauss(0, server.request_noise))
        if arm in self.speed_ups:
            luck = prompt.luck if arm == "B" else self.draw_luck(arm, prompt)
            each /= self.speed_ups[arm](prompt.kind, concurrency) * exp(luck)
        first = 0.1 * exp(chance.gauss(0, 0.2))
        stalls = chance.random() < server.stall_chance
        stall = chance.expovariate(1 / server.stall_seconds) if stalls else 0
        return Sample(
            prompt_id=prompt.name,
            kind=prompt.kind,
            concurrency=concurrency,
            began_at=began_at,
            seconds=first + each * (prompt.tokens - 1) + stall,
            first_token_seconds=first,
            output_tokens=prompt.tokens,
        )
