"""`Demo`: three prompts answered with and without drafts, and how the two compare.

Two engines at once would starve each other, so each has the machine to itself, one after the other.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import geometric_mean
from typing import Literal

from pydantic import Field

from slipstream.demo.recording import Decode, Take, record
from slipstream.errors import EngineError
from slipstream.hardware.machine_watch import MachineLoad, MachineWatch
from slipstream.measuring.bench import Conditions
from slipstream.measuring.workloads import Prompt, Workload
from slipstream.planning.plan import LaunchPlan
from slipstream.records import Record
from slipstream.serving.supervision.engine_process import is_healthy, run_engine

LOOK_EVERY_SECONDS = 2.0

# On subjects that the shipped drafter was not trained on. Chosen out of 22: tokens per step are
# about those of its card, or less, and no near-tie parted their texts where they were tried.
QUESTIONS = {
    "code": "Write a Python function that rounds a price to the nearest five cents.",
    "mathematics": "A book has 240 pages. I read 30 pages a day. How many days does it take?",
    "prose": "Tell the fable of the fox and the crow.",
}
WARM_UP = ("Count from one to twenty.", "Name the months of the year.")


class Part(Record):
    """One part of the demo and its time."""

    name: str
    seconds: float


class Demo(Record):
    """The same prompts, answered by an engine without drafts and by one with them.

    `machines` has, by engine, what else the machine did while it answered.
    """

    schema_version: Literal[1] = 1
    conditions: Conditions
    plain_plan: LaunchPlan
    plain: tuple[Take, ...]
    drafted: tuple[Take, ...]
    parts: tuple[Part, ...]
    machines: dict[str, MachineLoad] = Field(default_factory=dict)

    @property
    def pairs(self) -> list[tuple[Take, Take]]:
        """Return the two answers to each prompt."""
        return list(zip(self.plain, self.drafted, strict=True))

    @property
    def speed_ups(self) -> list[float]:
        """Return for each prompt how much less time per token took with drafts."""
        return [
            plain.seconds_per_token / drafted.seconds_per_token for plain, drafted in self.pairs
        ]

    @property
    def speed_up(self) -> float:
        """Return the mean speed-up of the prompts."""
        return geometric_mean(self.speed_ups)

    @property
    def tokens_per_step(self) -> float | None:
        """Return what one pass of the target adds, by the engine's own counts."""
        return count_tokens_per_step(self.drafted)

    @property
    def step_cost(self) -> float | None:
        """Return a drafted step's time in plain steps: the tokens per step to break even."""
        if self.tokens_per_step is None:
            return None
        return find_step_seconds(self.drafted) / find_step_seconds(self.plain)

    @property
    def disturbance(self) -> tuple[str, MachineLoad] | None:
        """Return the engine that was disturbed most, if any was, and by what."""
        busy = [(name, machine) for name, machine in self.machines.items() if machine.is_busy]
        return max(busy, key=lambda one: one[1].disturbance, default=None)

    @property
    def equal(self) -> int:
        """Count the prompts whose answers are the same, token for token."""
        return sum(plain.token_ids == drafted.token_ids for plain, drafted in self.pairs)


def count_tokens_per_step(takes: Sequence[Take]) -> float | None:
    """Return one and the mean of accepted draft tokens, None where nothing was drafted."""
    drafts = sum(take.drafts for take in takes)
    return 1 + sum(take.accepted for take in takes) / drafts if drafts else None


def find_step_seconds(takes: Sequence[Take]) -> float:
    """Return the mean time of the target's passes after the first token."""
    return sum(take.decode_seconds for take in takes) / sum(take.steps for take in takes)


def make_workload(max_tokens: int) -> Workload:
    """Return the requests of the demo, with a limit on the tokens per answer."""

    def ask(name: str, kind: str, text: str) -> Prompt:
        return Prompt(
            id=name,
            kind=kind,
            messages=({"role": "user", "content": text},),
            max_tokens=max_tokens,
            origin="slipstream",
        )

    return Workload(
        name="demo",
        prompts=tuple(ask(kind, kind, text) for kind, text in QUESTIONS.items()),
        warm_up=tuple(ask(f"warm-{at}", "warm-up", text) for at, text in enumerate(WARM_UP)),
    )


def load_decoder(target: Path) -> Decode:
    """Load what turns a target's tokens into text."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(target / "tokenizer.json"))
    return lambda token_ids: str(tokenizer.decode(list(token_ids)))


@dataclass(frozen=True, slots=True)
class Stage:
    """How the demo's engines are run: prompts, logs, and callbacks for progress.

    `tick` is called with a part and its seconds while it goes on, `note` when it is over. What else
    the machine did while an engine answered is kept in `machines`, by the engine's name.
    """

    workload: Workload
    decode: Decode
    logs: Path
    environment: Mapping[str, str]
    tick: Callable[[str, float], None]
    note: Callable[[Part], None]
    clock: Callable[[], float] = time.monotonic
    watch: MachineWatch = field(default_factory=MachineWatch)
    machines: dict[str, MachineLoad] = field(default_factory=dict)

    @contextmanager
    def perform(self, name: str, plan: LaunchPlan) -> Iterator[tuple[str, tuple[Take, ...]]]:
        """Start an engine, have it answer, and keep it up within the block."""
        start, answers = f"the {name} engine starts", f"the {name} engine warms up and answers"
        began = self.clock()
        pids: list[int] = []
        with run_engine(
            plan,
            log=self.logs / f"{name}.log",
            environment=self.environment,
            on_start=pids.append,
            on_wait=lambda seconds: self.tick(start, seconds),
        ) as url:
            ready = self.clock()
            self.note(Part(name=start, seconds=ready - began))

            def take(prompt: Prompt) -> Take:
                self.tick(answers, self.clock() - ready)
                return record(url, prompt, self.decode)

            for prompt in self.workload.warm_up:
                take(prompt)
            before = self.watch.begin()
            takes = tuple(take(prompt) for prompt in self.workload.prompts)
            machine = self.watch.end(before, pids)
            if machine is not None:
                self.machines[name] = machine
            self.note(Part(name=answers, seconds=self.clock() - ready))
            yield url, takes


def stay_up(url: str, wait: Callable[[float], None] = time.sleep) -> None:
    """Wait until somebody interrupts, or the engine is no more."""
    while is_healthy(url):
        wait(LOOK_EVERY_SECONDS)
    raise EngineError("the engine stopped answering", hint="look into the engine's log")
