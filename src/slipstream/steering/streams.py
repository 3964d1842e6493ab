"""The streams that a ledger is watched as: which requests are comparable, and by what figure.

Every figure becomes a value between 0 and 1 of which less is worse. Figures without a natural
range are taken relative to a pilot, the first requests of the stream, which are then left out.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import log2
from statistics import fmean, median
from typing import Literal

from slipstream.steering.change_detection import Baseline, Bet, Likeness, Margin
from slipstream.steering.ledger import LedgerLine
from slipstream.steering.ledger_summary import name_context

Family = Literal[
    "accepted per draft", "first position", "step seconds", "first token seconds", "cached share"
]
PILOT_REQUESTS = 30
LARGER_MARGINS = (0.25, 0.5)
# Fewer drafts or steps say too little about a request.
LEAST_DRAFTS = 4
LEAST_STEPS = 8
# The engine caches whole blocks of 16 to 128 tokens.
LEAST_PROMPT_TOKENS = 256
BATCH_BOUNDS = (1, 2, 4, 8, 16, 32)
PROMPT_BOUNDS = (64, 256, 1024, 4096)


@dataclass(frozen=True, slots=True)
class Form:
    """How a family's figures become values: their scale, and how much less is no change.

    A `share` is a value already; an `amount` is divided by three times its pilot's mean; `seconds`
    count in octaves around the pilot's median, up to `octaves` either way.
    """

    scale: Literal["share", "amount", "seconds"]
    margin: float
    octaves: float = 1.0

    @property
    def margins(self) -> tuple[Margin, ...]:
        """The margins to bet with: the first is the least, larger falls are seen sooner with more.

        Of a time, a margin is a step, for its values are logarithms.
        """
        if self.scale != "seconds":
            return tuple(Margin(share=share) for share in (self.margin, *LARGER_MARGINS))
        factors = (1 + self.margin, *(1 / (1 - margin) for margin in LARGER_MARGINS))
        return tuple(Margin(step=log2(factor) / (2 * self.octaves)) for factor in factors)

    def find_reference(self, pilot: list[float]) -> float:
        """Return what figures are relative to, 0 if the pilot says nothing."""
        return median(pilot) if self.scale == "seconds" else 3 * fmean(pilot)

    def to_value(self, figure: float, reference: float) -> float:
        """Return a figure as a value from 0 to 1, of which less is worse."""
        if self.scale == "share":
            value = figure
        elif self.scale == "amount":
            value = figure / reference
        else:
            value = 0.5 - log2(max(figure, 1e-9) / reference) / (2 * self.octaves)
        return min(1.0, max(0.0, value))

    def to_figure(self, value: float, reference: float) -> float:
        """Return the figure that has this value."""
        if self.scale == "share":
            return value
        if self.scale == "amount":
            return float(value * reference)
        return float(reference * 2 ** ((0.5 - value) * 2 * self.octaves))


# A mix that changes within a kind moves acceptance by a few percent, load moves times by more.
FORMS: dict[Family, Form] = {
    "accepted per draft": Form("amount", margin=0.05),
    "first position": Form("share", margin=0.05),
    "step seconds": Form("seconds", margin=0.1),
    "first token seconds": Form("seconds", margin=0.5, octaves=2.0),
    "cached share": Form("share", margin=0.2),
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
        parts = (
            self.kind,
            None if self.context is None else f"context {self.context}",
            None if self.draft_length is None else f"{self.draft_length} drafted",
            None if self.batch is None else f"batch {_name_range(self.batch, BATCH_BOUNDS)}",
            None if self.prompt is None else f"prompt {_name_range(self.prompt, PROMPT_BOUNDS)}",
        )
        return ", ".join(part for part in parts if part is not None)


@dataclass(frozen=True, slots=True)
class Observation:
    """A figure of one request, and the stream that it belongs to."""

    family: Family
    place: Place
    figure: float


def observe(line: LedgerLine) -> Iterator[Observation]:
    """Yield what a request says, at most one figure per family."""
    context = name_context(line.context_tokens)
    batch = _find_bound(line.batch or 1.0, BATCH_BOUNDS)
    length = round(line.drafted / line.drafts) if line.drafts else 0
    if line.drafts >= LEAST_DRAFTS:
        place = Place(kind=line.kind, draft_length=length)
        yield Observation("accepted per draft", place, sum(line.accepted) / line.drafts)
        first = line.accepted[0] / line.drafts if line.accepted else 0.0
        yield Observation("first position", Place(kind=line.kind, context=context), min(1.0, first))
    if line.prompt_tokens >= LEAST_PROMPT_TOKENS:
        share = min(1.0, line.cached_tokens / line.prompt_tokens)
        yield Observation("cached share", Place(kind=line.kind), share)
    if line.first_seconds is None:
        return
    if line.steps >= LEAST_STEPS:
        seconds = max(0.0, line.seconds - line.first_seconds) / (line.steps - 1)
        place = Place(context=context, draft_length=length, batch=batch)
        yield Observation("step seconds", place, seconds)
    if line.uncached_tokens:
        prompt = _find_bound(line.uncached_tokens, PROMPT_BOUNDS)
        seconds = line.first_seconds / line.uncached_tokens
        yield Observation("first token seconds", Place(batch=batch, prompt=prompt), seconds)


class Stream:
    """The comparable figures of one family, as values with a baseline."""

    def __init__(self, family: Family, error: float, likeness: Likeness) -> None:
        self.form = FORMS[family]
        self.baseline = Baseline(error, likeness)
        self._margins = self.form.margins
        self._reference = 1.0 if self.form.scale == "share" else None
        self._pilot: list[float] = []

    def to_value(self, figure: float) -> float | None:
        """Return a figure as a value from 0 to 1, None while the pilot is learned."""
        if self._reference is not None:
            return self.form.to_value(figure, self._reference)
        self._pilot.append(figure)
        if len(self._pilot) == PILOT_REQUESTS:
            self._reference, self._pilot = self.form.find_reference(self._pilot) or None, []
        return None

    def find_bets(self) -> tuple[Bet, ...]:
        """Return the bounds that the mean may have fallen below."""
        return self.baseline.find_bets(self._margins)

    def to_figures(self, value: float) -> tuple[float, float]:
        """Return the figure that was expected, and the one that has this value."""
        reference = self._reference or 1.0
        return (
            self.form.to_figure(self.baseline.mean, reference),
            self.form.to_figure(value, reference),
        )


def _find_bound(size: float, bounds: tuple[int, ...]) -> int:
    """Return the smallest bound that is not below a size, or twice the last."""
    return next((bound for bound in bounds if size <= bound), 2 * bounds[-1])


def _name_range(bound: int, bounds: tuple[int, ...]) -> str:
    return f"over {bounds[-1]}" if bound > bounds[-1] else f"up to {bound}"
