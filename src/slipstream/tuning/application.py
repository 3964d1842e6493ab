"""A plan with a profile's choice; every change has the source `measured` and its figures."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from pydantic import JsonValue

from slipstream.errors import InvalidInputError
from slipstream.planning.plan import LaunchPlan
from slipstream.planning.settings import SCHEDULE, Choice
from slipstream.tuning.profile import SpeedProfile

Value = TypeVar("Value")
_ENDS = {
    "limit": "the time per token that is asked for holds up to here",
    "throughput": "more at once give no more tokens a second",
}


def apply_profile(plan: LaunchPlan, plain: LaunchPlan, profile: SpeedProfile) -> LaunchPlan:
    """Return the plan with the chosen draft length, or the plain one if no drafts are best.

    A limit that holds only up to some concurrency becomes the most sequences of a step, and so
    does the concurrency beyond which there are no more tokens per second.
    """
    _require_same(plan, profile)
    choice = profile.choice
    because = "; ".join(choice.reasons)
    if not choice.draft_length:
        note = f"tuned: no drafts, because {because}"
        return plain.model_copy(update={"notes": (*plain.notes, note)})
    tuned = set_drafts(plan, choice.draft_length, (), because)
    sequences, batched = plan.sequences or 0, plan.settings.batched_tokens
    if profile.goal.name in _ENDS and sequences > choice.concurrency:
        sequences = choice.concurrency
        tuned = tuned.change(
            sequences=_measure(sequences, f"{_ENDS[profile.goal.name]}; {because}")
        )
    least = sequences * (choice.draft_length + 1)
    if batched is not None and batched.value < least:
        why = f"{sequences} sequences x {choice.draft_length + 1} tokens to verify (vllm#53970)"
        tuned = tuned.change(batched_tokens=_measure(least, why))
    return tuned


def set_drafts(
    plan: LaunchPlan, length: int, schedule: Sequence[tuple[int, int, int]], because: str
) -> LaunchPlan:
    """Return the plan with this draft length, and this schedule of it by batch or none."""
    speculation = plan.speculation
    if speculation is None:
        raise InvalidInputError(
            f"the plan for {plan.target} does not draft",
            hint=f"slipstream plan {plan.target} --drafter NAME",
        )
    rest = {key: choice for key, choice in speculation.rest.items() if key != SCHEDULE}
    if schedule:
        ranges: JsonValue = [list(one) for one in schedule]
        rest[SCHEDULE] = _measure(ranges, because)
    changed = speculation.model_copy(update={"length": _measure(length, because), "rest": rest})
    return plan.change(speculation=changed)


def set_eager(plan: LaunchPlan, eager: bool, because: str) -> LaunchPlan:
    """Return the plan with or without compilation."""
    return plan.change(eager=_measure(True, because) if eager else None)


def set_variables(plan: LaunchPlan, changes: Mapping[str, str | None], because: str) -> LaunchPlan:
    """Return the plan with these variables of its environment; None takes one out."""
    return plan.change_variables(
        {
            name: None if value is None else _measure(value, because)
            for name, value in changes.items()
        }
    )


def _require_same(plan: LaunchPlan, profile: SpeedProfile) -> None:
    made = profile.conditions.plan
    if made is None:
        return
    pairs = ((plan.target, made.target), (plan.drafter, made.drafter), (plan.machine, made.machine))
    wrong = tuple(f"{ours} is not {theirs}" for ours, theirs in pairs if ours != theirs)
    if wrong:
        raise InvalidInputError(
            "the profile was measured with another plan",
            details=wrong,
            hint=f"slipstream tune {plan.target}",
        )


def _measure(value: Value, because: str) -> Choice[Value]:
    return Choice(value, "measured", because)
