"""The streams of a ledger: which requests are comparable, and by which figure.

Every figure becomes a value between 0 and 1 of which less is worse. What the load or the controller
of the draft length changes is no drift: acceptance is taken per token, and a time relative to what
is expected of it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import log2
from typing import Literal

from slipstream.steering.change_detection import Margin
from slipstream.steering.ledger import LedgerLine
from slipstream.steering.ledger_summary import name_context

Family = Literal[
    "acceptance", "first position", "step seconds", "first token seconds", "cached share"
]
# Beyond a family's margin: larger falls are seen sooner by betting on them.
LARGER_MARGINS = (0.0, 0.25, 0.5)
# Fewer drafts or steps say too little about a request.
LEAST_DRAFTS = 4
LEAST_STEPS = 8
# The engine caches whole blocks of 16 to 128 tokens.
LEAST_PROMPT_TOKENS = 256
BATCH_BOUNDS = (1, 2, 4, 8, 16, 32)
LENGTH_BOUNDS = (0, 1, 3, 7, 15)
PROMPT_BOUNDS = (64, 256, 1024, 4096)
FEATURES = 4
_HALVINGS = 12


@dataclass(frozen=True, slots=True)
class Form:
    """How a family's figures become values, and by what share they may be worse without a report.

    A share is a value already. A time counts in octaves around what is expected of it, up to
    `octaves` either way.
    """

    margin: float
    octaves: float | None = None

    @property
    def is_time(self) -> bool:
        """Whether the figures are times."""
        return self.octaves is not None

    @property
    def margins(self) -> tuple[Margin, ...]:
        """The margins to bet with, the least first; of a time a margin is a step in octaves."""
        lefts = [1 - larger for larger in LARGER_MARGINS]
        if self.octaves is None:
            return tuple(Margin(share=1 - (1 - self.margin) * left) for left in lefts)
        factors = [(1 + self.margin) / left for left in lefts]
        return tuple(Margin(step=log2(factor) / (2 * self.octaves)) for factor in factors)

    def to_value(self, figure: float, expected: float) -> float:
        """Return a figure as a value from 0 to 1, of which less is worse."""
        if self.octaves is not None:
            figure = 0.5 - log2(max(figure, 1e-9) / expected) / (2 * self.octaves)
        return min(1.0, max(0.0, figure))

    def to_figure(self, value: float, expected: float) -> float:
        """Return the figure that has this value."""
        if self.octaves is None:
            return value
        return float(expected * 2 ** ((0.5 - value) * 2 * self.octaves))


# A mix that changes within a kind moves acceptance by a few percent, and queues move the first
# token by more than that.
FORMS: dict[Family, Form] = {
    "acceptance": Form(margin=0.05),
    "first position": Form(margin=0.05),
    "step seconds": Form(margin=0.1, octaves=1.0),
    "first token seconds": Form(margin=0.5, octaves=2.0),
    "cached share": Form(margin=0.2),
}


@dataclass(frozen=True, slots=True)
class Place:
    """What the requests of a stream have in common; None where they may differ."""

    kind: str | None = None
    context: str | None = None
    draft_length: int | None = None
    batch: int | None = None
    prompt: int | None = None

    def __str__(self) -> str:
        ranges = (
            ("drafts", self.draft_length, LENGTH_BOUNDS),
            ("batch", self.batch, BATCH_BOUNDS),
            ("prompt", self.prompt, PROMPT_BOUNDS),
        )
        parts = [
            *([self.kind] if self.kind else []),
            *([f"context {self.context}"] if self.context else []),
            *(
                f"{name} {_name_range(bound, bounds)}"
                for name, bound, bounds in ranges
                if bound is not None
            ),
        ]
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Observation:
    """A figure of one request, its stream, and the features that a time depends on."""

    family: Family
    place: Place
    figure: float
    features: tuple[float, ...] = ()


def observe(line: LedgerLine) -> Iterator[Observation]:
    """Yield what a request says, at most one figure per family."""
    context = name_context(line.context_tokens)
    if line.drafts >= LEAST_DRAFTS:
        length = line.drafted / line.drafts
        place = Place(kind=line.kind, draft_length=_find_bound(length, LENGTH_BOUNDS))
        accepted = sum(line.accepted) / line.drafts
        yield Observation("acceptance", place, solve_acceptance(accepted, length))
        first = line.accepted[0] / line.drafts if line.accepted else 0.0
        yield Observation("first position", Place(kind=line.kind, context=context), min(1.0, first))
    if line.prompt_tokens >= LEAST_PROMPT_TOKENS:
        share = min(1.0, line.cached_tokens / line.prompt_tokens)
        yield Observation("cached share", Place(kind=line.kind), share)
    if line.first_seconds is not None:
        yield from _observe_times(line, line.first_seconds, context)


def _observe_times(line: LedgerLine, first: float, context: str) -> Iterator[Observation]:
    sequences = line.batch or 1.0
    batch = _find_bound(sequences, BATCH_BOUNDS)
    if line.steps >= LEAST_STEPS:
        length = line.drafted / line.steps
        place = Place(context=context, draft_length=_find_bound(length, LENGTH_BOUNDS), batch=batch)
        features = (1.0, sequences, sequences * length, line.context_tokens / 1024)
        seconds = max(0.0, line.seconds - first) / (line.steps - 1)
        yield Observation("step seconds", place, seconds, features)
    place = Place(batch=batch, prompt=_find_bound(line.uncached_tokens, PROMPT_BOUNDS))
    features = (1.0, sequences, line.uncached_tokens / 1024, line.prompt_tokens / 1024)
    yield Observation("first token seconds", place, first, features)


def solve_acceptance(accepted: float, length: float) -> float:
    """Return how often a token is accepted after an accepted one.

    Drafts of `length` tokens then have so many accepted in the mean, whatever their length.
    """
    low, high = 0.0, 1.0
    whole = int(length)
    for _ in range(_HALVINGS):
        rate = (low + high) / 2
        expected, reached = 0.0, 1.0
        for _ in range(whole):
            reached *= rate
            expected += reached
        expected += (length - whole) * reached * rate
        low, high = (rate, high) if expected < accepted else (low, rate)
    return (low + high) / 2


def _find_bound(size: float, bounds: tuple[int, ...]) -> int:
    """Return the smallest bound that is not below a size, or twice the last."""
    return next((bound for bound in bounds if size <= bound), 2 * bounds[-1])


def _name_range(bound: int, bounds: tuple[int, ...]) -> str:
    return f"over {bounds[-1]}" if bound > bounds[-1] else f"up to {bound}"
