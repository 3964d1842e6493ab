"""When a crashed engine starts again, and with which smaller plan, by the cause of the crash.

A plan gets three crashes. Then it steps down a rung, and the next three are the new plan's:
the caller begins a new history. At the end of the ladder an engine that has never served is given
up; one that has served is started again for ever, at the longest wait.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from math import ceil
from random import Random
from typing import Literal, TypeVar

from slipstream.engines.vllm import CPU_BLOCK_TOKENS
from slipstream.planning.plan import LaunchPlan
from slipstream.planning.settings import SCHEDULE, Choice
from slipstream.serving.supervision.causes.diagnosis import Cause, Finding

Value = TypeVar("Value")

Rung = Literal["eager", "short-drafts", "no-speculation", "less-memory"]

SHORT_DRAFT = 3
LESS_UTILIZATION = 0.05
LEAST_CONTEXT = 4096
CONTEXT_HALVINGS = 2
TIMES_LESS_MEMORY = 3
CRASHES_PER_PLAN = 3
WINDOW_SECONDS = 15 * 60
HEALTHY_SECONDS = 10 * 60
FIRST_WAIT_SECONDS = 5
LONGEST_WAIT_SECONDS = 300

_LADDERS: dict[Cause, tuple[Rung, ...]] = {
    "illegal-access": ("eager", "short-drafts", "no-speculation"),
    "hang": ("eager", "short-drafts", "no-speculation"),
    "out-of-memory": ("less-memory",),
    "no-acceptance": ("no-speculation",),
    "unknown": ("no-speculation",),
}
_CAUSE_NAMES: dict[Cause, str] = {
    "illegal-access": "illegal memory accesses",
    "out-of-memory": "running out of memory",
    "hang": "hanging",
    "no-acceptance": "drafts of which none was accepted",
    "unknown": "repeated crashes",
}
# Causes outside the plan; the machine is what an engine of a run that served cannot be started on.
_FROM_OUTSIDE: tuple[Cause, ...] = ("port", "rank-lost", "host")
NOT_RETRIED: tuple[Cause, ...] = ("configuration", "no-acceptance")


@dataclass(frozen=True, slots=True)
class Crash:
    """One unrequested end of an engine; healthy for 0 s means it was never ready."""

    at: float
    cause: Cause
    healthy_seconds: float


@dataclass(eq=False)
class Death(Exception):
    """An end that nobody asked for; the cause is None if exit code and log have to show it.

    The exit code is None while the engine still runs: how it ends then is our doing.
    """

    cause: Cause | None
    message: str
    exit_code: int | None = None
    hint: str | None = None

    def __str__(self) -> str:
        return self.message


def classify(findings: Sequence[Finding], *, has_served: bool = False) -> Cause:
    """Return the cause by which the ladder goes, of what a log tells first.

    Settings with which it has served are not refused, so nothing in a log forbids a restart.
    """
    if not findings:
        return "unknown"
    first = findings[0]
    if first.cause != "request" and not first.retry and not has_served:
        return "configuration"
    return first.cause if first.cause in ("illegal-access", "out-of-memory", "hang") else "unknown"


def may_restart(history: Sequence[Crash], now: float, chance: Random) -> float | None:
    """Return the seconds to wait before the same plan starts again, None if it must not.

    Three starts in a row that fail count as three crashes in the window: one start takes
    longer than that on a GB10. That somebody else had the address, or that a link to another rank
    was cut, says nothing of the plan.
    """
    streak = find_streak(history)
    crashes = [crash for crash in streak if crash.cause not in _FROM_OUTSIDE]
    recent = [crash for crash in crashes if now - crash.at <= WINDOW_SECONDS]
    unready = [crash for crash in crashes[-CRASHES_PER_PLAN:] if crash.healthy_seconds == 0]
    spent = max(len(recent), len(unready)) >= CRASHES_PER_PLAN
    if spent or (streak and streak[-1].cause in NOT_RETRIED):
        return None
    return decide_wait(history, chance)


def decide_wait(history: Sequence[Crash], chance: Random) -> float:
    """Return the seconds before the next start, which double with each crash up to a bound."""
    crashes = len(find_streak(history))
    return _double_wait(crashes - 1) * chance.uniform(0.75, 1) if crashes else 0.0


def decide_takeover_wait(successions: Sequence[datetime]) -> float:
    """Return the seconds after which a killed supervisor is succeeded, longer each time.

    Those count that came soon after the one before. The wait has a bound, and no end.
    """
    streak = 0
    for before, after in pairwise((*successions[:1], *successions)):
        soon = (after - before).total_seconds() <= HEALTHY_SECONDS + LONGEST_WAIT_SECONDS
        streak = streak + 1 if soon else 1
    return _double_wait(streak - 1) if streak else 0.0


def _double_wait(times: int) -> float:
    return min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS << min(times, 10))


def find_streak(history: Sequence[Crash]) -> list[Crash]:
    """Return the crashes since the engine was last healthy for long."""
    streak: list[Crash] = []
    for crash in history:
        streak = [crash] if crash.healthy_seconds >= HEALTHY_SECONDS else [*streak, crash]
    return streak


def step_down(
    plan: LaunchPlan, cause: Cause, taken: tuple[Rung, ...]
) -> tuple[LaunchPlan, Rung] | None:
    """Return the plan one rung lower and the rung's name, None at the end of the ladder."""
    for rung in _LADDERS.get(cause, ()):
        lower = _STEPS[rung](plan, f"{rung}, after {_CAUSE_NAMES[cause]}", taken)
        if lower.argv() != plan.argv():
            note = f"the plan was reduced: {rung}, after {_CAUSE_NAMES[cause]}"
            return lower.model_copy(update={"notes": (*plan.notes, note)}), rung
    return None


def take_rungs(plan: LaunchPlan, rungs: Sequence[Rung], taken: int) -> LaunchPlan:
    """Return the plan after the rungs that the head of its group has stepped down.

    The first `taken` of them are behind it already.
    """
    for place in range(taken, len(rungs)):
        rung = rungs[place]
        plan = _STEPS[rung](plan, f"{rung}, as the group's head decided", tuple(rungs[:place]))
    return plan


def _run_eager(plan: LaunchPlan, because: str, _: tuple[Rung, ...]) -> LaunchPlan:
    eager = plan.settings.eager
    return plan if eager and eager.value else plan.change(eager=_measure(True, because))


def _draft_less(plan: LaunchPlan, because: str, _: tuple[Rung, ...]) -> LaunchPlan:
    speculation = plan.speculation
    if speculation is None or speculation.length is None:
        return plan
    rest = {key: choice for key, choice in speculation.rest.items() if key != SCHEDULE}
    length = speculation.length
    if length.value > SHORT_DRAFT:
        length = _measure(SHORT_DRAFT, f"{because}; it was {length.value}")
    return plan.change(speculation=speculation.model_copy(update={"length": length, "rest": rest}))


def _take_less(plan: LaunchPlan, because: str, taken: tuple[Rung, ...]) -> LaunchPlan:
    """Lower the memory share and the context, or on a CPU the size of the cache."""
    if (times := taken.count("less-memory")) == TIMES_LESS_MEMORY:
        return plan
    settings, context = plan.settings, plan.context or 0
    changes: dict[str, Choice[int] | Choice[float]] = {}
    if times < CONTEXT_HALVINGS and context > LEAST_CONTEXT:
        before, context = context, max(LEAST_CONTEXT, ceil(context / 2))
        changes["context"] = _measure(context, f"{because}; it was {before}")
    if (share := settings.memory_utilization) and share.value > LESS_UTILIZATION:
        less = round(share.value - LESS_UTILIZATION, 4)
        changes["memory_utilization"] = _measure(less, f"{because}; it was {share.value:g}")
    if cache := settings.kv_cache_bytes:
        fewer = max(cache.value // 2, _count_least_cache_bytes(plan, context))
        if fewer < cache.value:
            changes["kv_cache_bytes"] = _measure(fewer, f"{because}; it was {cache.value}")
    return plan.change(**changes)


def _count_least_cache_bytes(plan: LaunchPlan, context: int) -> int:
    """Count what one sequence takes; one block more is never given out (v1/core/block_pool.py)."""
    token, sequence = plan.memory.kv_bytes_per_token, plan.memory.bytes_per_sequence
    if token is None or sequence is None:
        return 0
    blocks = ceil(context / CPU_BLOCK_TOKENS)
    return min(sequence, token * CPU_BLOCK_TOKENS * blocks) + token * CPU_BLOCK_TOKENS


def _measure(value: Value, because: str) -> Choice[Value]:
    return Choice(value, "measured", because)


_STEPS: dict[Rung, Callable[[LaunchPlan, str, tuple[Rung, ...]], LaunchPlan]] = {
    "eager": _run_eager,
    "short-drafts": _draft_less,
    "no-speculation": lambda plan, because, _: plan.without_drafts(),
    "less-memory": _take_less,
}
