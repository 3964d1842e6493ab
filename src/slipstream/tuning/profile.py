"""`SpeedProfile`: measured and fitted speeds, predictions, and the choice with its reasons."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Literal

from slipstream.errors import InvalidInputError
from slipstream.measuring.bench import Conditions
from slipstream.records import Record
from slipstream.tuning.acceptance import DraftAcceptance
from slipstream.tuning.choice import SpeedChoice, choose, settle
from slipstream.tuning.goal import Goal
from slipstream.tuning.speed_model import (
    Prediction,
    SpeedModel,
    StepPoint,
    StepTime,
    fit_step_time,
    not_measured,
)

SHOWN_LOADS = (1, 2, 4, 8, 16, 32, 64)


class Confirmation(Record):
    """A draft length served at the chosen load, with its predicted and measured time per token."""

    draft_length: int
    predicted_seconds_per_token: float
    measured_seconds_per_token: float

    @property
    def off_by(self) -> float:
        """Return the share by which the measured time is longer than the predicted one."""
        return self.measured_seconds_per_token / self.predicted_seconds_per_token - 1


class SpeedProfile(Record):
    """The speed of every draft length on one machine; `shares` are the kinds' shares of tokens."""

    schema_version: Literal[3] = 3
    conditions: Conditions
    goal: Goal
    max_sequences: int
    shares: dict[str, float]
    points: tuple[StepPoint, ...]
    step_time: StepTime
    acceptance: tuple[DraftAcceptance, ...]
    predictions: tuple[Prediction, ...]
    choice: SpeedChoice
    confirmations: tuple[Confirmation, ...] = ()
    cautions: tuple[str, ...] = ()

    @property
    def model(self) -> SpeedModel:
        return SpeedModel(self.step_time, self.acceptance, self.shares, self.max_sequences)

    @property
    def off_by(self) -> float:
        """Return by which share the chosen length took longer than predicted, 0 if not served."""
        length = self.choice.draft_length
        return next((one.off_by for one in self.confirmations if one.draft_length == length), 0.0)


def make_profile(
    conditions: Conditions,
    points: Sequence[StepPoint],
    acceptance: Sequence[DraftAcceptance],
    *,
    goal: Goal,
    concurrency: int,
    max_sequences: int,
) -> SpeedProfile:
    """Fit, predict and choose; every kind has the same number of tokens."""
    kinds = sorted({one.kind for one in acceptance})
    if not kinds:
        raise InvalidInputError(
            "no kind of prompt has drafts",
            hint="use a drafter whose drafts are accepted, as this shows: slipstream bench",
        )
    steps, shares = fit_step_time(points), dict.fromkeys(kinds, 1 / len(kinds))
    model = SpeedModel(steps, tuple(acceptance), shares, max_sequences)
    loads = sorted({*SHOWN_LOADS, concurrency, max_sequences})
    return SpeedProfile(
        conditions=conditions,
        goal=goal,
        max_sequences=max_sequences,
        shares=shares,
        points=tuple(points),
        step_time=steps,
        acceptance=tuple(acceptance),
        predictions=tuple(
            model.predict(length, load) for load in loads for length in model.lengths
        ),
        choice=choose(model, goal, concurrency),
        cautions=steps.cautions,
    )


def confirm(
    profile: SpeedProfile, points: Sequence[StepPoint], acceptance: Sequence[DraftAcceptance]
) -> SpeedProfile:
    """Compare the prediction with served draft lengths, and choose the fastest one.

    Each is compared at the batch that it had; the fastest is then found at one and the same.
    """
    model, load = profile.model, profile.choice.concurrency
    served = defaultdict[int, list[StepPoint]](list)
    for point in points:
        served[find_served_length([point], acceptance)].append(point)
    confirmations = tuple(
        Confirmation(
            draft_length=length,
            predicted_seconds_per_token=predict_served(model, own, length),
            measured_seconds_per_token=read_served(model, own, acceptance),
        )
        for length, own in sorted(served.items())
        if {point.kind for point in own} >= {*model.shares}
    )
    if not confirmations:
        raise not_measured("every kind", profile.choice.draft_length)

    def take_seconds(one: Confirmation) -> float:
        return model.predict(one.draft_length, load).seconds_per_token * (1 + one.off_by)

    fastest = min(confirmations, key=take_seconds)
    choice = profile.choice
    if fastest.draft_length != choice.draft_length:
        choice = settle(model, profile.goal, model.predict(fastest.draft_length, load))
    reason = (
        f"measured: {1000 * fastest.measured_seconds_per_token:.1f} ms per token, "
        f"{fastest.off_by:+.1%} against the prediction"
    )
    changes: dict[str, object] = {"reasons": (*choice.reasons, reason), "to_confirm": ()}
    if (limit := profile.goal.limit) is not None:
        slow = model.predict_slow(fastest.draft_length, load, limit.share) * (1 + fastest.off_by)
        changes |= {"slow_seconds_per_token": slow, "meets_goal": slow <= limit.seconds}
    return profile.model_copy(
        update={"choice": choice.model_copy(update=changes), "confirmations": confirmations}
    )


def find_served_length(points: Sequence[StepPoint], acceptance: Sequence[DraftAcceptance]) -> int:
    """Return the draft length of a load; where a schedule changed it under way, the nearest."""
    mean = fmean(point.draft_length for point in points)
    lengths = {one.draft_length for one in acceptance}
    if not mean or not lengths:
        return round(mean)
    return min(lengths, key=lambda length: abs(length - mean))


def read_served(
    model: SpeedModel, points: Sequence[StepPoint], acceptance: Sequence[DraftAcceptance]
) -> float:
    """Return the seconds per token of what was served, all kinds together, by their shares.

    Its own drafts tell the tokens of a step, or the model's where a schedule mixed all of them.
    """
    length = find_served_length(points, acceptance)
    own = {one.kind: one.expect(length).value for one in acceptance if one.draft_length == length}
    return sum(
        share * point.seconds_per_step / (own.get(kind) or model.count_tokens(kind, length))
        for kind, point, share in _share_points(model, points)
    )


def predict_served(model: SpeedModel, points: Sequence[StepPoint], length: int) -> float:
    """Return the seconds per token that the model predicts for the same batches at this length."""
    return sum(
        share * model.steps.predict(point.sequences, length)[0] / model.count_tokens(kind, length)
        for kind, point, share in _share_points(model, points)
    )


def _share_points(
    model: SpeedModel, points: Sequence[StepPoint]
) -> Iterator[tuple[str, StepPoint, float]]:
    for kind, share in model.shares.items():
        own = [point for point in points if point.kind == kind]
        if not own:
            raise not_measured(kind, round(points[0].draft_length))
        for point in own:
            yield kind, point, share / len(own)
