"""A plan with what a profile chose; every change has the source `measured` and its figures."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from slipstream.errors import InvalidInputError
from slipstream.planning.plain_twin import without_drafts
from slipstream.planning.plan import Decision, LaunchPlan
from slipstream.tuning.profile import SpeedProfile

_SPECULATION = "--speculative-config"
_LENGTH = "num_speculative_tokens"
_SCHEDULE = "num_speculative_tokens_per_batch_size"
_SEQUENCES = "--max-num-seqs"
_BATCHED = "--max-num-batched-tokens"
EAGER = "--enforce-eager"
_ENDS = {
    "limit": "the time per token that is asked for holds up to here",
    "throughput": "more at once give no more tokens a second",
}


def apply_profile(plan: LaunchPlan, profile: SpeedProfile) -> LaunchPlan:
    """Give the plan with the chosen draft length, or without drafts if none was chosen.

    A limit that holds only up to some concurrency becomes the most sequences of a step, and so
    does the concurrency beyond which there are no more tokens a second.
    """
    _require_same(plan, profile)
    choice = profile.choice
    because = "; ".join(choice.reasons)
    if not choice.draft_length:
        note = f"tuned: no drafts, because {because}"
        return without_drafts(plan).model_copy(update={"notes": (*plan.notes, note)})
    tuned = set_drafts(plan, choice.draft_length, (), because)
    sequences = _find_number(plan, _SEQUENCES)
    if profile.goal.name in _ENDS and sequences > choice.concurrency:
        sequences = choice.concurrency
        tuned = _set(tuned, _SEQUENCES, sequences, f"{_ENDS[profile.goal.name]}; {because}")
    least = sequences * (choice.draft_length + 1)
    if 0 < _find_number(plan, _BATCHED) < least:
        why = f"{sequences} sequences x {choice.draft_length + 1} tokens to verify (vllm#53970)"
        tuned = _set(tuned, _BATCHED, least, why)
    return tuned


def set_drafts(
    plan: LaunchPlan, length: int, schedule: Sequence[tuple[int, int, int]], because: str
) -> LaunchPlan:
    """Give the plan with this draft length, and with this schedule of it by batch or with none."""
    ranges = [list(one) for one in schedule] or None
    changes = {_LENGTH: length, _SCHEDULE: ranges}
    return _with(plan, list(_speculate(plan, changes, because)))


def set_eager(plan: LaunchPlan, eager: bool, because: str) -> LaunchPlan:
    """Give the plan with or without compilation."""
    kept = [one for one in plan.decisions if one.flag != EAGER]
    told = [Decision(flag=EAGER, value=None, source="measured", because=because)] if eager else []
    return _with(plan, [*kept, *told])


def set_variables(plan: LaunchPlan, changes: Mapping[str, str | None], because: str) -> LaunchPlan:
    """Give the plan with these variables of its environment; None takes one out."""
    kept = [one for one in plan.environment if one.flag not in changes]
    told = [_measure(name, value, because) for name, value in changes.items() if value is not None]
    return plan.model_copy(update={"environment": (*kept, *told)})


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


def _speculate(plan: LaunchPlan, changes: dict[str, Any], because: str) -> Iterator[Decision]:
    """Change keys of the speculation, however it was asked for; None takes one out."""
    left = {key: value for key, value in changes.items() if value is not None}
    for decision in plan.decisions:
        _, _, key = decision.flag.partition(f"{_SPECULATION}.")
        if decision.flag == "--spec-tokens":
            key = _LENGTH
        if decision.flag == _SPECULATION:
            settings = {**_read_settings(decision.value), **changes}
            kept = {name: value for name, value in settings.items() if value is not None}
            yield _measure(decision.flag, json.dumps(kept), because)
            left = {}
        elif changes.get(key) is not None:
            yield _measure(decision.flag, json.dumps(changes[key]), because)
            left.pop(key, None)
        elif key not in changes:
            yield decision
    if _LENGTH in left:
        raise InvalidInputError(
            f"the plan for {plan.target} does not draft",
            hint=f"slipstream plan {plan.target} --drafter NAME",
        )
    for key, value in left.items():
        yield _measure(f"{_SPECULATION}.{key}", json.dumps(value), because)


def _read_settings(value: str | None) -> dict[str, Any]:
    try:
        settings = json.loads(value or "")
    except ValueError:
        settings = None
    if not isinstance(settings, dict):
        raise InvalidInputError(
            f"{_SPECULATION} {value} is no JSON object",
            hint=f'{_SPECULATION} \'{{"method": "dflash", "{_LENGTH}": 7}}\'',
        )
    return settings


def _find_number(plan: LaunchPlan, flag: str) -> int:
    """Find a flag's number; 0 if there is none, or a word such as `auto`."""
    decision = plan.find(flag)
    value = decision.value if decision else None
    return int(value) if value and value.isdigit() else 0


def _set(plan: LaunchPlan, flag: str, number: int, because: str) -> LaunchPlan:
    told = _measure(flag, str(number), because)
    return _with(plan, [told if one.flag == flag else one for one in plan.decisions])


def _measure(flag: str, value: str, because: str) -> Decision:
    return Decision(flag=flag, value=value, source="measured", because=because)


def _with(plan: LaunchPlan, decisions: list[Decision]) -> LaunchPlan:
    return plan.model_copy(update={"decisions": tuple(decisions)})
