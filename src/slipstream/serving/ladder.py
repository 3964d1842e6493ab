"""When an engine that crashed starts again, and with less: the ladder that fits the cause.

A plan gets three crashes. Then it steps down a rung, and the next three are the new plan's:
the caller begins a new history. The ladder has an end, so crashing does too.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from random import Random
from typing import Literal

from slipstream.engines.vllm import CPU_BLOCK_TOKENS
from slipstream.planning.plain_twin import without_drafts
from slipstream.planning.plan import Decision, LaunchPlan

Cause = Literal[
    "illegal-access", "out-of-memory", "configuration", "hang", "no-acceptance", "other"
]
Rung = Literal["eager", "short-drafts", "no-speculation", "less-memory"]

SHORT_DRAFT = 3
LESS_UTILIZATION = 0.05
LEAST_CONTEXT = 4096
CONTEXT_HALVINGS = 2
TIMES_LESS_MEMORY = 3
CRASHES_A_PLAN = 3
WINDOW_SECONDS = 15 * 60
HEALTHY_SECONDS = 10 * 60
FIRST_WAIT_SECONDS = 5
LONGEST_WAIT_SECONDS = 300

_LADDERS: dict[Cause, tuple[Rung, ...]] = {
    "illegal-access": ("eager", "short-drafts", "no-speculation"),
    "hang": ("eager", "short-drafts", "no-speculation"),
    "out-of-memory": ("less-memory",),
    "configuration": (),
    "no-acceptance": ("no-speculation",),
    "other": ("no-speculation",),
}
_TOLD: dict[Cause, str] = {
    "illegal-access": "illegal memory accesses",
    "out-of-memory": "running out of memory",
    "configuration": "a setting that the engine refuses",
    "hang": "hanging",
    "no-acceptance": "drafts of which none was accepted",
    "other": "repeated crashes",
}
_NOT_MENDED_BY_WAITING: tuple[Cause, ...] = ("configuration", "no-acceptance")
_DRAFT_LENGTHS = ("--speculative-config.num_speculative_tokens", "--spec-tokens")
_SCHEDULE = "num_speculative_tokens_per_batch_size"


@dataclass(frozen=True, slots=True)
class Crash:
    """One end of an engine that nobody asked for; healthy for 0 s is never ready."""

    at: float
    cause: Cause
    healthy_seconds: float


def may_restart(history: Sequence[Crash], now: float, chance: Random) -> float | None:
    """Give the seconds to wait before the same plan starts again, or None if it must not.

    Three starts in a row that fail count as three crashes in the window: one start takes
    longer than that on a GB10.
    """
    streak = _find_streak(history)
    if not streak:
        return 0.0
    recent = [crash for crash in streak if now - crash.at <= WINDOW_SECONDS]
    unready = [crash for crash in streak[-CRASHES_A_PLAN:] if crash.healthy_seconds == 0]
    spent = max(len(recent), len(unready)) >= CRASHES_A_PLAN
    if spent or streak[-1].cause in _NOT_MENDED_BY_WAITING:
        return None
    doublings = min(len(streak) - 1, 10)
    wait = min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS << doublings)
    return wait * chance.uniform(0.75, 1)


def _find_streak(history: Sequence[Crash]) -> list[Crash]:
    """Leave out what came before the engine was last healthy for long."""
    streak: list[Crash] = []
    for crash in history:
        streak = [crash] if crash.healthy_seconds >= HEALTHY_SECONDS else [*streak, crash]
    return streak


def step_down(
    plan: LaunchPlan, cause: Cause, taken: tuple[Rung, ...]
) -> tuple[LaunchPlan, Rung] | None:
    """Give the plan one rung lower and that rung's name, or None at the ladder's end."""
    for rung in _LADDERS[cause]:
        lower = _STEPS[rung](plan, f"{rung}, after {_TOLD[cause]}", taken)
        if lower.argv() != plan.argv():
            note = f"the plan was stepped down: {rung}, after {_TOLD[cause]}"
            return lower.model_copy(update={"notes": (*plan.notes, note)}), rung
    return None


def _run_eager(plan: LaunchPlan, because: str, _: tuple[Rung, ...]) -> LaunchPlan:
    if plan.find("--enforce-eager"):
        return plan
    kept = [decision for decision in plan.decisions if decision.flag != "--no-enforce-eager"]
    return _with(plan, [*kept, _measure("--enforce-eager", None, because)])


def _draft_less(plan: LaunchPlan, because: str, _: tuple[Rung, ...]) -> LaunchPlan:
    kept = [decision for decision in plan.decisions if not decision.flag.endswith(_SCHEDULE)]
    return _with(plan, [_shorten(decision, because) for decision in kept])


def _shorten(decision: Decision, because: str) -> Decision:
    value = decision.value or ""
    if decision.flag in _DRAFT_LENGTHS and value.isdigit() and int(value) > SHORT_DRAFT:
        return _measure(decision.flag, str(SHORT_DRAFT), f"{because}; it was {value}")
    if decision.flag == "--speculative-config" and (settings := _read_settings(value)):
        length = settings.get("num_speculative_tokens")
        if isinstance(length, int) and length > SHORT_DRAFT:
            settings["num_speculative_tokens"] = SHORT_DRAFT
            settings.pop(_SCHEDULE, None)
            return _measure(decision.flag, json.dumps(settings), f"{because}; it was {length}")
    return decision


def _read_settings(value: str) -> dict[str, object]:
    try:
        settings = json.loads(value)
    except ValueError:
        return {}
    return settings if isinstance(settings, dict) else {}


def _draft_nothing(plan: LaunchPlan, because: str, _: tuple[Rung, ...]) -> LaunchPlan:
    return without_drafts(plan)


def _take_less(plan: LaunchPlan, because: str, taken: tuple[Rung, ...]) -> LaunchPlan:
    """Lower the share of memory and the context, or on a CPU the cache, which has no share."""
    if (times := taken.count("less-memory")) == TIMES_LESS_MEMORY:
        return plan
    context = _find_number(plan, "--max-model-len")
    if times < CONTEXT_HALVINGS and context > LEAST_CONTEXT:
        context = max(LEAST_CONTEXT, ceil(context / 2))
    share = round(_find_number(plan, "--gpu-memory-utilization") - LESS_UTILIZATION, 4)
    cache = _find_number(plan, "--kv-cache-memory-bytes")
    fewer = max(int(cache / 2), _count_least_cache_bytes(plan, int(context)))
    changes = {
        "--max-model-len": str(int(context)),
        "--gpu-memory-utilization": f"{share:g}" if share > 0 else None,
        "--kv-cache-memory-bytes": str(fewer) if 0 < fewer < cache else None,
    }
    return _with(plan, [_lower(decision, changes, because) for decision in plan.decisions])


def _count_least_cache_bytes(plan: LaunchPlan, context: int) -> int:
    """Give what one sequence takes; one block more is never given out (v1/core/block_pool.py)."""
    token, sequence = plan.memory.kv_bytes_per_token, plan.memory.bytes_per_sequence
    if token is None or sequence is None:
        return 0
    blocks = ceil(context / CPU_BLOCK_TOKENS)
    return min(sequence, token * CPU_BLOCK_TOKENS * blocks) + token * CPU_BLOCK_TOKENS


def _lower(decision: Decision, changes: dict[str, str | None], because: str) -> Decision:
    changed = changes.get(decision.flag)
    if changed is None or _read_number(decision.value) == float(changed):
        return decision
    return _measure(decision.flag, changed, f"{because}; it was {decision.value}")


def _find_number(plan: LaunchPlan, flag: str) -> float:
    decision = plan.find(flag)
    return 0 if decision is None else _read_number(decision.value)


def _read_number(value: str | None) -> float:
    """Read a value, 0 if it is no plain number: vLLM also takes `auto` and `32k`."""
    return float(value) if value and re.fullmatch(r"\d*\.?\d+", value) else 0


def _measure(flag: str, value: str | None, because: str) -> Decision:
    return Decision(flag=flag, value=value, source="measured", because=because)


def _with(plan: LaunchPlan, decisions: list[Decision]) -> LaunchPlan:
    return plan.model_copy(update={"decisions": tuple(decisions)})


_STEPS: dict[Rung, Callable[[LaunchPlan, str, tuple[Rung, ...]], LaunchPlan]] = {
    "eager": _run_eager,
    "short-drafts": _draft_less,
    "no-speculation": _draft_nothing,
    "less-memory": _take_less,
}
