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
from slipstream.steering.step_time import FAR, StepCost, StepFit, StepRow, fit_steps, t_quantile
from slipstream.tuning.acceptance import NORMAL, DraftAcceptance, FigureWithError, find_drafts

LEAST_FREEDOM = 2
LARGE_SPREAD = 0.06
_HINT = "slipstream tune TARGET"


class StepPoint(Record):
    """One load: its sequences in a step and tokens in a draft, both on average, and a step's time.

    A draft length of 0 is an engine without a drafter.
    """

    kind: str
    concurrency: int
    sequences: float
    draft_length: float
    seconds_per_step: float


class StepTime(Record):
    """The costs of a step with and without drafts; `spread` is the relative error of a load."""

    drafting: StepCost
    plain: StepCost
    spread: float
    degrees_of_freedom: int
    cautions: tuple[str, ...] = ()

    def predict(self, sequences: float, draft_length: int) -> tuple[float, float]:
        """Return the seconds of a step, and the share by which a load may be off: one spread."""
        cost = self.find_cost(draft_length)
        own = cost.find_error(sequences, draft_length)
        return cost.predict(sequences, draft_length), self.spread * sqrt(1 + own**2)

    def find_cost(self, draft_length: int) -> StepCost:
        return self.drafting if draft_length else self.plain

    @property
    def student(self) -> float:
        return t_quantile(self.degrees_of_freedom)


def fit_step_time(points: Sequence[StepPoint]) -> StepTime:
    """Fit both engines robustly against a few bad loads; too few loads are refused."""
    fits = [
        _fit([point for point in points if bool(point.draft_length) == drafts], arm)
        for drafts, arm in ((True, "with drafts"), (False, "without drafts"))
    ]
    degrees_of_freedom = sum(fit.degrees_of_freedom for fit in fits)
    if degrees_of_freedom < LEAST_FREEDOM:
        raise InvalidInputError(
            f"{len(points)} loads are too few to tell the time of a step from noise", hint=_HINT
        )
    spread = sqrt(sum(fit.squares for fit in fits) / degrees_of_freedom)
    cautions: list[str] = []
    if 1 not in fits[0].columns:
        cautions.append(
            "one draft length was measured: the time of a step is modelled by "
            "its tokens, not by its sequences"
        )
    if spread > LARGE_SPREAD:
        cautions.append(f"loads are off the fitted step time by {spread:.0%}")
    if aside := sum(fit.cost.set_aside for fit in fits):
        cautions.append(f"{aside} of {len(points)} loads fit no line and were left out")
    return StepTime(
        drafting=fits[0].cost,
        plain=fits[1].cost,
        spread=spread,
        degrees_of_freedom=degrees_of_freedom,
        cautions=tuple(cautions),
    )


def _fit(points: Sequence[StepPoint], engine: str) -> StepFit:
    sizes = [point.sequences for point in points]
    if not sizes or max(sizes) < FAR * min(sizes):
        raise InvalidInputError(
            f"the loads {engine} have one batch size, or none: "
            "the cost of a sequence is undetermined",
            hint=_HINT,
        )
    fit = fit_steps([StepRow(p.sequences, p.draft_length, p.seconds_per_step) for p in points])
    if fit is None:
        raise InvalidInputError(
            f"{len(points)} loads {engine} do not determine the costs of a step", hint=_HINT
        )
    return fit


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
        """Return the draft lengths that can be told, from 0 on."""
        longest = min(
            max(one.draft_length for one in self.acceptance if one.kind == kind)
            for kind in self.shares
        )
        return range(longest + 1)

    def predict(self, draft_length: int, concurrency: int) -> Prediction:
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
            far=self.steps.find_cost(draft_length).is_far(sequences, draft_length),
        )

    def predict_slow(self, draft_length: int, concurrency: int, share: float) -> float:
        """Predict the time per token that this share of requests does not exceed."""
        seconds, _ = self.steps.predict(min(concurrency, self.max_sequences), draft_length)
        paces = self._paces[draft_length]
        reached = accumulate(weight for _, weight in paces)
        pairs = zip(paces, reached, strict=True)
        slow = next((pace for (pace, _), up_to in pairs if up_to >= share), paces[-1][0])
        return seconds * slow

    def count_tokens(self, kind: str, draft_length: int) -> float:
        if not draft_length:
            return 1.0
        if (kind, draft_length) not in self._drafts:
            raise not_measured(kind, draft_length)
        return self._drafts[kind, draft_length].expect(draft_length).value

    @cached_property
    def _drafts(self) -> dict[tuple[str, int], DraftAcceptance]:
        """The drafts that say most, by kind and length."""
        found = {
            (kind, length): find_drafts(self.acceptance, kind, length)
            for kind in self.shares
            for length in self.lengths
            if length
        }
        return {key: drafts for key, drafts in found.items() if drafts is not None}

    @cached_property
    def _tokens(self) -> dict[int, FigureWithError]:
        plain = FigureWithError(1.0, 0.0)
        return {length: self._mix(length) if length else plain for length in self.lengths}

    def _mix(self, draft_length: int) -> FigureWithError:
        """Return the mean over tokens: 1 / E is the sum of share / E(kind)."""
        parts = [
            (share, self._drafts[kind, draft_length].expect(draft_length))
            for kind, share in self.shares.items()
        ]
        mean = 1 / sum(share / tokens.value for share, tokens in parts)
        squares = sum((share * one.error / one.value**2) ** 2 for share, one in parts)
        return FigureWithError(mean, mean**2 * sqrt(squares))

    @cached_property
    def _paces(self) -> dict[int, list[tuple[float, float]]]:
        """Return each request's steps per token and weight by draft length, slowest last."""
        paces = dict[int, list[tuple[float, float]]]()
        for length in self.lengths:
            of = paces.setdefault(length, [])
            for kind, share in self.shares.items():
                drafts = self._drafts[kind, length or 1]
                own = (
                    drafts.pace_tokens(length)
                    if length
                    else [request.pace for request in drafts.requests]
                )
                of += [(pace, share / len(own)) for pace in own]
            of.sort()
        return paces


def not_measured(kind: str, length: int) -> InvalidInputError:
    return InvalidInputError(
        f"{length} drafted tokens were not measured for {kind}",
        hint="the same --workload for all of them",
    )
