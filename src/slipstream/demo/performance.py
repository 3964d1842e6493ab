"""`Demo`: one start of each of two arms with four prompts, and their answers token by token.

It starts, warms up, watches and times as a comparison does. Two engines at once would starve each
other, so each has the machine to itself, one after the other.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from statistics import geometric_mean
from typing import Literal

from slipstream.errors import EngineError
from slipstream.measuring.bench import Bench, Conditions
from slipstream.measuring.client.completions import Request
from slipstream.measuring.client.endpoint import Endpoint
from slipstream.measuring.client.sample import Sample
from slipstream.measuring.comparing.blocks import Arm
from slipstream.measuring.comparing.comparison import ComparedArm, Start
from slipstream.measuring.engine_start import open_start, steer_start
from slipstream.measuring.machine_watch import MachineWatch
from slipstream.measuring.workloads import Prompt, Workload
from slipstream.records import Record
from slipstream.serving.supervision.engine_process import is_healthy
from slipstream.steering.drafts import Drafts

LOOK_EVERY_SECONDS = 2.0
# With every core computing, a short answer may wait in the server and come whole.
ATTEMPTS = 3

# On subjects that the shipped drafter was not trained on. The first three were chosen out of 22:
# tokens per step are about those of its card, or less, and no near-tie parted their texts where
# they were tried. An edit repeats most of its prompt, and drafts of it are copied from there.
QUESTIONS = {
    "code": "Write a Python function that rounds a price to the nearest five cents.",
    "mathematics": "A book has 240 pages. I read 30 pages a day. How many days does it take?",
    "prose": "Tell the fable of the fox and the crow.",
    "edit": """Format this code by PEP 8 and answer with the whole code.

```python
def count_words(path):
    counts = {}
    with open(path) as file:
        for line in file:
            for word in line.lower().split():
                word = word.strip(".,;:!?")
                counts[word] = counts.get(word, 0) + 1
    return sorted(counts.items(), key=lambda pair: pair[1], reverse=True)
```""",
}
WARM_UP = ("Count from one to twenty.", "Name the months of the year.")
# They are asked in rounds until the time per token is stable, three at least.
WARM_UP_TOKENS = 16


Decode = Callable[[Sequence[int]], str]
Chunk = tuple[float, Sequence[int]]


class Token(Record):
    """One token; seconds since the request was sent."""

    id: int
    text: str
    seconds: float
    drafted: bool


class RecordedAnswer(Record):
    """One answer, token by token."""

    prompt: Prompt
    tokens: tuple[Token, ...]

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(token.id for token in self.tokens)

    @property
    def seconds(self) -> float:
        return self.tokens[-1].seconds


@dataclass(frozen=True, slots=True)
class TokenRecorder:
    """Keeps the chunks of each prompt's answer: the seconds, and the tokens."""

    decode: Decode
    chunks: dict[str, list[Chunk]] = field(default_factory=dict)

    def add(self, request: Request, seconds: float, token_ids: Sequence[int]) -> None:
        self.chunks.setdefault(request.prompt_id, []).append((seconds, token_ids))

    def list_answers(
        self, prompts: Sequence[Prompt], samples: Sequence[Sample]
    ) -> list[RecordedAnswer]:
        """Return the answers to prompts, whose samples say whether anything was drafted."""
        for sample in samples:
            if not sample.seconds_per_token:
                why = sample.error or "its tokens arrived in one chunk"
                raise EngineError(
                    f"{sample.prompt_id} could not be timed: {why}",
                    hint="look into the engine's log, or request longer answers: --max-tokens",
                )
        return [
            RecordedAnswer(
                prompt=prompt,
                tokens=mark_tokens(self.chunks[prompt.id], self.decode, drafted=sample.drafts > 0),
            )
            for prompt, sample in zip(prompts, samples, strict=True)
        ]


def mark_tokens(chunks: Sequence[Chunk], decode: Decode, *, drafted: bool) -> tuple[Token, ...]:
    """Return each token with its text, and mark what was drafted, where anything was.

    A step brings the accepted tokens of a draft and one of the target's own, in one chunk of the
    stream: all tokens of a chunk but the last were drafted.
    """
    texts = iter(_split_text([token for _, ids in chunks for token in ids], decode))
    return tuple(
        Token(id=token, text=next(texts), seconds=seconds, drafted=drafted and place < len(ids) - 1)
        for seconds, ids in chunks
        for place, token in enumerate(ids)
    )


def _split_text(token_ids: Sequence[int], decode: Decode) -> list[str]:
    """Return the text that each token adds; a character of several tokens comes with the last."""
    grown = [
        decode(token_ids[:count]).rstrip("\N{REPLACEMENT CHARACTER}")
        for count in range(len(token_ids) + 1)
    ]
    return [after[len(before) :] for before, after in pairwise(grown)]


class TimedPart(Record):
    """One part of the demo and its time."""

    name: str
    seconds: float


class Demo(Record):
    """A start without drafts and one with them, and what each answered to the same prompts."""

    schema_version: Literal[3] = 3
    conditions: Conditions
    arms: tuple[ComparedArm, ComparedArm]
    starts: tuple[Start, Start]
    answers: tuple[tuple[RecordedAnswer, ...], tuple[RecordedAnswer, ...]]
    parts: tuple[TimedPart, ...]
    # Why the target is in 8 bits, if it is.
    quantized: str = ""

    @property
    def pairs(self) -> list[tuple[RecordedAnswer, RecordedAnswer]]:
        return list(zip(*self.answers, strict=True))

    @property
    def speed_ups(self) -> list[float]:
        """Return for each prompt how much less time per token took with drafts."""
        plain, drafted = (
            [one.seconds_per_token or 0 for one in own.samples] for own in self.starts
        )
        return [slow / fast for slow, fast in zip(plain, drafted, strict=True)]

    @property
    def speed_up(self) -> float:
        return geometric_mean(self.speed_ups)

    @property
    def tokens_per_step(self) -> float | None:
        """Return what one pass of the target adds, by the engine's own counts."""
        return Drafts.total(one.draft_counts for one in self.starts[1].samples).tokens_per_step

    @property
    def step_seconds(self) -> tuple[float, float]:
        """Return the mean time of the target's passes after the first token, plain and drafted."""
        plain, drafted = (find_step_seconds(start.samples) for start in self.starts)
        return plain, drafted

    @property
    def equal(self) -> int:
        """Count the prompts whose answers are the same, token for token."""
        return sum(plain.token_ids == drafted.token_ids for plain, drafted in self.pairs)


def find_step_seconds(samples: Sequence[Sample]) -> float:
    """Return the mean time of the passes after the first token: drafts, or else tokens."""
    seconds = sum(one.seconds - (one.first_token_seconds or 0) for one in samples)
    return seconds / sum(one.drafts or one.output_tokens - 1 for one in samples)


def make_workload(max_tokens: int) -> Workload:
    """Return the requests of the demo, with a limit on the tokens per answer."""

    def ask(name: str, kind: str, text: str, most: int) -> Prompt:
        message = {"role": "user", "content": text}
        return Prompt(id=name, kind=kind, messages=(message,), max_tokens=most, origin="slipstream")

    return Workload(
        name="demo",
        prompts=tuple(ask(kind, kind, text, max_tokens) for kind, text in QUESTIONS.items()),
        warm_up=tuple(
            ask(f"warm-{at}", "warm-up", text, WARM_UP_TOKENS) for at, text in enumerate(WARM_UP)
        ),
    )


def load_decoder(target: Path) -> Decode:
    """Load what turns a target's tokens into text."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(target / "tokenizer.json"))
    return lambda token_ids: str(tokenizer.decode(list(token_ids)))


@dataclass(frozen=True, slots=True)
class Stage:
    """How the demo's engines are run; `bench` has its prompts, `decode` makes text of tokens.

    `tick` is called with a part and its seconds while it goes on, `note` when it is over.
    """

    bench: Bench
    decode: Decode
    logs: Path
    environment: Mapping[str, str]
    tick: Callable[[str, float], None]
    note: Callable[[TimedPart], None]
    clock: Callable[[], float] = time.monotonic
    watch: MachineWatch = field(default_factory=MachineWatch)

    @contextmanager
    def perform(
        self, arm: Arm, compared: ComparedArm
    ) -> Iterator[tuple[str, Start, list[RecordedAnswer]]]:
        """Start an engine, have it answer, and keep it up within the block."""
        name = compared.name
        start, answers = f"the {name} engine starts", f"the {name} engine warms up and answers"
        times: list[float] = []

        def follow(_: str) -> None:
            """Hear that the engine starts, and then that it warms up."""
            times.append(self.clock())
            if times[1:]:
                self.note(TimedPart(name=start, seconds=times[1] - times[0]))

        recorder = TokenRecorder(self.decode)
        bench = replace(
            self.bench,
            tick=lambda *_: self.tick(answers, self.clock() - times[-1]),
            on_tokens=recorder.add,
        )
        log = self.logs / f"{name}.log"
        with open_start(
            steer_start(compared.plan, log),
            bench,
            log=log,
            environment=self.environment,
            progress=follow,
            watch=self.watch,
            on_wait=lambda seconds: self.tick(start, seconds),
        ) as (url, figures):
            for _ in range(ATTEMPTS - 1):
                if all(sample.seconds_per_token for sample in figures.samples):
                    break
                recorder.chunks.clear()
                loads, samples = bench.measure(Endpoint(url))
                figures = figures._replace(loads=tuple(loads), samples=tuple(samples))
            self.note(TimedPart(name=answers, seconds=self.clock() - times[-1]))
            recorded = recorder.list_answers(bench.workload.prompts, figures.samples)
            yield url, Start(arm=arm, round=0, **figures._asdict()), recorded


def stay_up(url: str, wait: Callable[[float], None] = time.sleep) -> None:
    """Wait until somebody interrupts, or the engine is no more."""
    while is_healthy(url):
        wait(LOOK_EVERY_SECONDS)
    raise EngineError("the engine stopped answering", hint="look into the engine's log")
