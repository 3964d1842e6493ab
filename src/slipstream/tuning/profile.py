"""`SpeedProfile`: what was measured and fitted, what it predicts, what was chosen, and why."""

from collections.abc import Mapping, Sequence
from typing import Literal

from slipstream.errors import InvalidInputError
from slipstream.measuring.bench import Conditions
from slipstream.records import Record
from slipstream.tuning.acceptance import Acceptance, find_drafts
from slipstream.tuning.choice import SpeedChoice, choose, settle
from slipstream.tuning.goal import Goal
from slipstream.tuning.speed_model import Prediction, SpeedModel
from slipstream.tuning.step_time import StepPoint, StepTime, fit_step_time

SHOWN_LOADS = (1, 2, 4, 8, 16, 32, 64)


class Confirmation(Record):
    """A draft length that was served at the chosen load: the time per token, foretold and found."""

    draft_length: int
    predicted_seconds_per_token: float
    error: float
    measured_seconds_per_token: float

    @property
    def off_by(self) -> float:
        """Give the share by which the measured time is longer than the predicted one."""
        return self.measured_seconds_per_token / self.predicted_seconds_per_token - 1


class SpeedProfile(Record):
    """The speed of every draft length on one machine; `shares` are the kinds' of the tokens."""

    schema_version: Literal[1] = 1
    conditions: Conditions
    goal: Goal
    max_sequences: int
    shares: dict[str, float]
    points: tuple[StepPoint, ...]
    step_time: StepTime
    acceptance: tuple[Acceptance, ...]
    predictions: tuple[Prediction, ...]
    choice: SpeedChoice
    confirmations: tuple[Confirmation, ...] = ()
    cautions: tuple[str, ...] = ()

    @property
    def model(self) -> SpeedModel:
        """Give what predicts any other load."""
        return SpeedModel(self.step_time, self.acceptance, self.shares, self.max_sequences)


def make_profile(
    conditions: Conditions,
    points: Sequence[StepPoint],
    acceptance: Sequence[Acceptance],
    *,
    goal: Goal,
    concurrency: int,
    max_sequences: int,
    shares: Mapping[str, float] | None = None,
) -> SpeedProfile:
    """Fit, predict and choose; without shares, every kind has as many tokens as any other."""
    weights = shares or dict.fromkeys(sorted({one.kind for one in acceptance}), 1.0)
    if not weights or min(weights.values()) < 0 or not sum(weights.values()):
        raise InvalidInputError(
            "no kind of prompt has drafts and a share of the tokens",
            hint="slipstream tune with a drafter that is accepted: see slipstream bench",
        )
    whole = sum(weights.values())
    kinds = {kind: weight / whole for kind, weight in weights.items() if weight}
    steps = fit_step_time(points)
    model = SpeedModel(steps, tuple(acceptance), kinds, max_sequences)
    loads = sorted({*SHOWN_LOADS, concurrency, max_sequences})
    return SpeedProfile(
        conditions=conditions,
        goal=goal,
        max_sequences=max_sequences,
        shares=kinds,
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
    profile: SpeedProfile, points: Sequence[StepPoint], acceptance: Sequence[Acceptance]
) -> SpeedProfile:
    """Hold the prediction against served draft lengths, and take the one that was fastest.

    Each is compared at the batch that it had; the fastest is then found at one and the same.
    """
    model, load = profile.model, profile.choice.concurrency
    confirmations = tuple(
        _compare(
            model, load, [one for one in points if round(one.draft_length) == length], acceptance
        )
        for length in sorted({round(point.draft_length) for point in points})
    )

    def take_seconds(one: Confirmation) -> float:
        return model.predict(one.draft_length, load).seconds_per_token * (1 + one.off_by)

    fastest = min(confirmations, key=take_seconds)
    choice = profile.choice
    if fastest.draft_length != choice.draft_length:
        choice = settle(model, profile.goal, model.predict(fastest.draft_length, load))
    reason = (
        f"measured: {1000 * fastest.measured_seconds_per_token:.1f} ms a token, "
        f"{fastest.off_by:+.1%} against the prediction"
    )
    changes: dict[str, object] = {"reasons": (*choice.reasons, reason), "to_confirm": ()}
    if (limit := profile.goal.limit) is not None:
        slow = model.predict_slow(fastest.draft_length, load, limit.share) * (1 + fastest.off_by)
        changes |= {"slow_seconds_per_token": slow, "meets_goal": slow <= limit.seconds_per_token}
    return profile.model_copy(
        update={"choice": choice.model_copy(update=changes), "confirmations": confirmations}
    )


def _compare(
    model: SpeedModel, load: int, points: Sequence[StepPoint], acceptance: Sequence[Acceptance]
) -> Confirmation:
    """Compare loads of one draft length with what was foretold for their batches."""
    length = round(points[0].draft_length)
    exact = [one for one in acceptance if one.draft_length == length]
    predicted = measured = 0.0
    for kind, share in model.shares.items():
        own = [point for point in points if point.kind == kind]
        found, foretold = (find_drafts(among, kind, length) for among in (exact, model.acceptance))
        if not own or (length and (found is None or foretold is None)):
            raise InvalidInputError(
                f"{length} drafted tokens were not measured for {kind}",
                hint="slipstream tune with the same --workload for all",
            )
        foretold_tokens, tokens = (
            one.expect(length).value if one and length else 1.0 for one in (foretold, found)
        )
        for point in own:
            seconds, _ = model.steps.predict(point.sequences, length)
            predicted += share / len(own) * seconds / foretold_tokens
            measured += share / len(own) * point.seconds_per_step / tokens
    return Confirmation(
        draft_length=length,
        predicted_seconds_per_token=predicted,
        error=model.predict(length, load).error,
        measured_seconds_per_token=measured,
    )
