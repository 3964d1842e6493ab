"""Steps and drafts of a real engine, recorded by `experiments/record-steps`, to read and replay."""

import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np

RECORDED = Path(__file__).parent / "recorded"
NEAREST = 12


class Draft(NamedTuple):
    """A draft: what the drafter said of each token, and how many of them were right."""

    kind: str
    chances: tuple[float, ...]
    verified: int
    accepted: int
    right: int


@dataclass(frozen=True, slots=True)
class Step:
    """A step; `cpu` is the engine's thread alone, `width` is drafted for the next step."""

    clients: int
    sequences: int
    reading: int
    prompt: int
    verified: int
    width: int
    tokens: int
    seconds: float
    cpu: float
    context: int
    drafts: tuple[Draft, ...]


@cache
def read_recordings() -> tuple[tuple[Step, ...], ...]:
    """Return the steps of every recorded engine, each in the order in which they ran."""
    return tuple(tuple(_read(file)) for file in sorted(RECORDED.glob("*.gz")))


def read_steps() -> tuple[Step, ...]:
    """Return the steps of all engines in a row."""
    return tuple(step for steps in read_recordings() for step in steps)


def _read(file: Path) -> Iterator[Step]:
    with gzip.open(file, "rt") as lines:
        for line in lines:
            found: dict[str, Any] = json.loads(line)
            drafts = (
                Draft(kind, tuple(one / 1000 for one in chances), *counts)
                for kind, chances, *counts in found.pop("drafts")
            )
            yield Step(**found, drafts=tuple(drafts))


@dataclass
class RecordedEngine:
    """An engine whose steps take what similar recorded ones took, and whose drafts are recorded.

    A curve through all steps, with squares that no controller has to know, carries a similar
    step's time over to the step at hand; how far that one was from the curve stays in it.
    """

    chance: Random = field(default_factory=lambda: Random(7))

    def __post_init__(self) -> None:
        steps = read_steps()
        self._seconds = np.array([step.cpu for step in steps])
        work = [(s.sequences - s.reading, s.prompt, s.verified, s.width) for s in steps]
        self._places = np.array([_find_place(*one) for one in work])
        curve = np.array([_describe(*one) for one in work])
        scaled = curve / self._seconds[:, None]
        self._weights = np.linalg.lstsq(scaled, np.ones(len(steps)), rcond=None)[0]
        self._deviations = self._seconds / (curve @ self._weights)
        self._drafts: dict[str, list[Draft]] = {}
        for draft in (draft for step in steps for draft in step.drafts):
            self._drafts.setdefault(draft.kind, []).append(draft)

    def expect(
        self, sequences: int, *, prompt: int = 0, verified: int = 0, width: int = 0
    ) -> float:
        """Return the usual seconds of a step; `sequences` are those that generate."""
        usual = _describe(sequences, prompt, verified, width) @ self._weights
        return float(usual)

    def time(self, sequences: int, *, prompt: int = 0, verified: int = 0, width: int = 0) -> float:
        """Draw the seconds of a step."""
        place = np.array(_find_place(sequences, prompt, verified, width))
        far = np.abs(self._places - place).sum(1)
        near = int(self.chance.choice(np.argpartition(far, NEAREST)[:NEAREST].tolist()))
        usual = self.expect(sequences, prompt=prompt, verified=verified, width=width)
        return usual * float(self._deviations[near])

    def draft(self, kind: str, width: int) -> tuple[Sequence[float], int]:
        """Draw a draft; return its tokens' chances, and how many of them are right."""
        while True:
            draft = self.chance.choice(self._drafts[kind])
            if len(draft.chances) >= width:
                return draft.chances[:width], min(draft.right, width)


def _describe(sequences: int, prompt: int, verified: int, width: int) -> np.ndarray:
    rows, drafted = sequences + verified, sequences * width
    drafting = float(width > 0)
    squares = (prompt**2 / 1e3, rows**2 / 1e3, drafted**2 / 1e3)
    return np.array((1.0, prompt, rows, drafting, drafting * sequences, drafted, *squares))


def _find_place(sequences: int, prompt: int, verified: int, width: int) -> tuple[float, ...]:
    """Return where a step lies among others: steps that differ by a quarter are a unit apart."""
    amounts = np.log1p((sequences, prompt, sequences + verified, sequences * width)) / 0.22
    return (*amounts.tolist(), 8.0 * (width > 0))
