"""A controller in charge of an engine whose steps and drafts were recorded, every step counted."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from slipstream.steering.state import KINDS, Kind
from slipstream.vllm_plugin.steering.choosing import DraftChooser, Generating
from slipstream.vllm_plugin.steering.draft_length import DraftLength, MeasuredStep
from slipstream.vllm_plugin.steering.step_costs import StepWork
from tests.unit.vllm_plugin.steering.recorded_engine import RecordedEngine

LONGEST = 7
KIND: dict[str, Kind] = {"code": "code", "math": "code", "prose": "prose", "chat": "other"}
ANSWER_TOKENS = (24, 104)
PROMPT_TOKENS = (20, 60)


@dataclass
class Replay:
    """Requests that come, draft and end; `seconds` are the usual ones of steps that were done."""

    control: DraftLength
    kinds: Sequence[str]
    seed: int = 1
    tokens: int = 0
    seconds: float = 0.0
    verified: int = 0
    _left: dict[str, list[int]] = field(default_factory=dict)
    _kind: dict[str, str] = field(default_factory=dict)
    _drafts: dict[str, tuple[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.engine = RecordedEngine(Random(self.seed))
        self.chance = Random(self.seed + 1)
        self.chooser = DraftChooser(self.control.survival)

    def run(self, requests: int, seconds: float) -> None:
        """Keep so many requests open for so long."""
        end = self.seconds + seconds
        while self.seconds < end:
            self._step(requests)

    def _admit(self, requests: int) -> int:
        """Open new requests, and return the tokens of their prompts."""
        prompt = 0
        while len(self._left) < requests:
            name = f"r{len(self._kind)}"
            self._kind[name] = kind = self.chance.choice(self.kinds)
            self._left[name] = [self.chance.randint(*ANSWER_TOKENS)]
            self.chooser.begin(name, KINDS.index(KIND[kind]), plain=False)
            prompt += self.chance.randint(*PROMPT_TOKENS)
        return prompt

    def _step(self, requests: int) -> None:
        prompt = self._admit(requests)
        names = list(self._left)
        width = self.control.choose(len(names))
        drafts = [self._drafts.pop(name, (0, 0)) for name in names]
        verified = sum(drafted for drafted, _ in drafts)
        size = {"prompt": prompt, "verified": verified, "width": width}
        seconds = self.engine.time(len(names), **size)
        self.seconds += self.engine.expect(len(names), **size)
        accepted = [right for _, right in drafts]
        self.chooser.see_step(names, [drafted for drafted, _ in drafts], accepted)
        tokens = len(names) + sum(accepted)
        work = StepWork(len(names), prompt, verified, width, len(names))
        self.control.observe(MeasuredStep(work, tokens, seconds))
        self.tokens += tokens
        self.verified += verified
        for name, right in zip(names, accepted, strict=True):
            self._left[name][0] -= 1 + right
            if self._left[name][0] <= 0:
                del self._left[name]
                self.chooser.end(name)
        if width:
            self._draft([name for name in names if name in self._left], width)

    def _draft(self, names: list[str], width: int) -> None:
        found = [self.engine.draft(self._kind[name], width) for name in names]
        chosen = self.chooser.choose(
            [Generating(name, [], 0) for name in names],
            [[1] * width for _ in names],
            [list(chances) for chances, _ in found],
            price=self.control.price,
            entry=self.control.entry,
            most=0,
            whole=self.control.is_exact,
        )
        for name, draft, (_, right) in zip(names, chosen, found, strict=True):
            self._drafts[name] = (len(draft), min(len(draft), right))


def measure(
    lengths: Sequence[int], kinds: Sequence[str], requests: int, *, seconds: float, seed: int
) -> Replay:
    """Return a run from its first step; one length is verified whole."""
    replay = Replay(DraftLength(lengths), kinds, seed)
    replay.run(requests, seconds)
    return replay
