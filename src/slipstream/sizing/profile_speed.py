"""`EngineSpeed` from what was measured: a tuning's profile, or a running controller."""

from collections.abc import Iterable, Sequence
from statistics import median

from slipstream.errors import InvalidInputError
from slipstream.sizing.engine_speed import (
    DERIVED_PROMPTS,
    USUAL_BATCHED_TOKENS,
    DraftYield,
    EngineSpeed,
    StepCost,
    make_yield,
    scale_positions,
)
from slipstream.steering.state import SteeringState
from slipstream.tuning.acceptance import DraftAcceptance, find_drafts
from slipstream.tuning.least_squares import fit_shares
from slipstream.tuning.profile import SpeedProfile
from slipstream.tuning.step_time import StepLine

CONTROLLER_ERROR = 0.3


def take_profile(profile: SpeedProfile, start_seconds: Sequence[float], source: str) -> EngineSpeed:
    """Return the speed that a tuning measured; a prompt's cost is derived."""
    choice, drafting = profile.choice, profile.step_time.drafting
    plan = profile.conditions.plan
    batched = plan.settings.batched_tokens if plan else None
    return EngineSpeed(
        source=source,
        drafting=_take_line(drafting),
        plain=_take_line(profile.step_time.plain) if profile.step_time.plain else None,
        yields=tuple(
            _take_yield(profile.acceptance, kind, length)
            for kind in profile.shares
            for length in profile.model.lengths
            if length
        ),
        by_prompt_token=drafting.by_token.value,
        prompt_source=DERIVED_PROMPTS,
        error=choice.prediction.error,
        max_sequences=profile.max_sequences,
        batched_tokens=batched.value if batched else USUAL_BATCHED_TOKENS,
        start_seconds=median(start_seconds) if start_seconds else None,
        cautions=profile.cautions,
    )


def _take_line(line: StepLine) -> StepCost:
    return StepCost(
        fixed=line.fixed.value,
        by_sequence=line.by_sequence.value,
        by_token=line.by_token.value,
        most_sequences=line.most_sequences,
    )


def _take_yield(curves: Iterable[DraftAcceptance], kind: str, length: int) -> DraftYield:
    found = find_drafts(curves, kind, length)
    assert found is not None
    rows = [(one.drafts, *one.count_by_place(length)) for one in found.requests]
    return make_yield(
        kind,
        length,
        scale_positions(found.by_position[:length], found.expect(length).value),
        [(drafts, tokens / steps) for drafts, tokens, steps in rows if steps],
    )


def take_state(state: SteeringState, max_sequences: int, source: str) -> EngineSpeed:
    """Return the speed that a running controller has learnt, of the batch that it had.

    It knows one batch: what it says of others is a line through its draft lengths.
    """
    measured = [one for one in state.lengths if one.steps and one.step_seconds]
    if not state.running or len({one.draft_length for one in measured}) < 2:
        raise InvalidInputError(
            f"{source} has step times of fewer than two draft lengths, or of an idle engine",
            hint="give the run's ledger.jsonl instead, or the file of slipstream tune --json",
        )
    rows = [(1.0, float(state.running * (one.draft_length + 1))) for one in measured]
    fit = fit_shares(rows, [one.step_seconds or 0.0 for one in measured])
    if fit is None:
        raise InvalidInputError(
            f"the step times in {source} lie on no line", hint="slipstream tune measures them"
        )
    fixed, by_token = fit.coefficients
    cost = StepCost(
        fixed=fixed, by_sequence=0.0, by_token=by_token, most_sequences=float(state.running)
    )
    longest = max(one.draft_length for one in measured)
    return EngineSpeed(
        source=source,
        drafting=cost,
        plain=cost if any(not one.draft_length for one in measured) else None,
        yields=tuple(
            DraftYield(
                kind=kind,
                draft_length=length,
                by_position=tuple(number / counts.drafts for number in counts.accepted[:length]),
            )
            for kind, counts in state.kinds.items()
            if counts.drafts and len(counts.accepted) >= longest
            for length in range(1, longest + 1)
        ),
        by_prompt_token=by_token,
        prompt_source=DERIVED_PROMPTS,
        error=CONTROLLER_ERROR,
        max_sequences=max_sequences,
        cautions=(
            f"the controller knows steps of {state.running} sequences: other batches are a guess",
        ),
    )
