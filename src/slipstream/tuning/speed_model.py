"""Step time and acceptance together: seconds per token and tokens per second of every load.

A step of t seconds gives each of its sequences E tokens, so a token takes t / E, and the n
sequences of a step make n E / t a second. In a mixture, whose kinds are shares of the tokens, a
token of a kind takes t / E(kind): times add up, and the mixture's E is the harmonic mean. Sequences
beyond the engine's limit wait and share no step. Prompts are left out: they take the same time at
every draft length.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import sqrt

from slipstream.errors import InvalidInputError
from slipstream.records import Record
from slipstream.tuning.acceptance import NORMAL, DraftAcceptance, find_drafts
from slipstream.tuning.step_time import FigureWithError, StepTime


class Prediction(Record):
    """One draft length at one concurrency, all kinds together; decoding alone.

    `error` is half of the 95 % interval of the time per token, as a share of it. What is `far` is
    larger than what was measured by so much that the interval means nothing.
    """

    concurrency: int
    draft_length: int
    tokens_per_step: float
    seconds_per_step: float
    seconds_per_token: float
    tokens_per_second: float
    error: float
    far: bool


@dataclass(frozen=True)
class SpeedModel:
    """The fitted model, the kinds' shares of tokens, and the sequences of the largest step."""

    steps: StepTime
    acceptance: tuple[DraftAcceptance, ...]
    shares: Mapping[str, float]
    max_sequences: int

    @cached_property
    def lengths(self) -> range:
        """Return the draft lengths that can be told; 0, if a plain engine was measured."""
        longest = min(
            max((one.draft_length for one in self.acceptance if one.kind == kind), default=0)
            for kind in self.shares
        )
        if not longest:
            raise InvalidInputError(
                "there are kinds of prompts whose drafts were not measured: "
                + ", ".join(sorted(set(self.shares) - {one.kind for one in self.acceptance})),
                hint="slipstream tune with the same --workload for all",
            )
        return range(0 if self.steps.plain else 1, longest + 1)

    def predict(self, draft_length: int, concurrency: int) -> Prediction:
        """Predict a steady load."""
        sequences = min(concurrency, self.max_sequences)
        seconds, spread = self.steps.predict(sequences, draft_length)
        tokens = self._tokens[draft_length]
        return Prediction(
            concurrency=concurrency,
            draft_length=draft_length,
            tokens_per_step=tokens.value,
            seconds_per_step=seconds,
            seconds_per_token=seconds / tokens.value,
            tokens_per_second=sequences * tokens.value / seconds,
            error=sqrt(
                (self.steps.student * spread) ** 2 + (NORMAL * tokens.error / tokens.value) ** 2
            ),
            far=self.steps.is_far(sequences, draft_length),
        )

    def predict_slow(self, draft_length: int, concurrency: int, share: float) -> float:
        """Predict the time per token that this share of requests does not exceed."""
        seconds, _ = self.steps.predict(min(concurrency, self.max_sequences), draft_length)
        paces = self._paces[draft_length]
        reached = accumulate(weight for _, weight in paces)
        pairs = zip(paces, reached, strict=True)
        slow = next((pace for (pace, _), up_to in pairs if up_to >= share), paces[-1][0])
        return seconds * slow

    @cached_property
    def _tokens(self) -> dict[int, FigureWithError]:
        """Return the tokens of a step by draft length."""
        plain = FigureWithError(value=1.0, error=0.0)
        return {length: self._mix(length) if length else plain for length in self.lengths}

    def _mix(self, draft_length: int) -> FigureWithError:
        """Return the mean over tokens: 1 / E is the sum of share / E(kind)."""
        parts = [
            (share, self._find(kind, draft_length).expect(draft_length))
            for kind, share in self.shares.items()
        ]
        mean = 1 / sum(share / tokens.value for share, tokens in parts)
        squares = sum((share * one.error / one.value**2) ** 2 for share, one in parts)
        return FigureWithError(value=mean, error=mean**2 * sqrt(squares))

    def _find(self, kind: str, draft_length: int) -> DraftAcceptance:
        found = find_drafts(self.acceptance, kind, draft_length)
        if found is None:
            raise ValueError(f"{draft_length} is not among the lengths of {kind}")
        return found

    @cached_property
    def _paces(self) -> dict[int, list[tuple[float, float]]]:
        """Return each request's steps per token and weight by draft length, slowest last."""
        return {length: sorted(self._list_paces(length)) for length in self.lengths}

    def _list_paces(self, draft_length: int) -> Sequence[tuple[float, float]]:
        paces: list[tuple[float, float]] = []
        for kind, share in self.shares.items():
            drafted = self._find(kind, draft_length or 1)
            own = (
                drafted.pace_tokens(draft_length)
                if draft_length
                else [request.pace for request in drafted.requests]
            )
            paces += [(pace, share / len(own)) for pace in own]
        return paces
