"""The goal `agent`: drafts or the prefix cache, where vLLM 0.32 cannot have both.

On a hybrid target a DFlash drafter leaves the prefix cache without hits (vllm#54360); MTP keeps
it, because vLLM finds the draft layers of that method (v1/core/kv_cache_utils.py).
"""

from dataclasses import replace
from statistics import median
from typing import Any

from slipstream.checkpoints.checkpoint import Checkpoint
from slipstream.checkpoints.pairing import Fault
from slipstream.planning.agent_turns import Course, Turn, count_seconds, find_break_even, rank
from slipstream.planning.settings import Choice
from slipstream.planning.situation import Situation
from slipstream.recipes.recipe import Evidence

# z-lab/dflash#165 reports turns of 18,000 tokens with 500 answered; Codex found 82 to 93 % of its
# prompts in the cache (claudish#238).
TURN = Turn(prompt_tokens=18_000, cached_share=0.9, answer_tokens=500)
# Tokens per second of a 27B model at NVFP4 on a GB10: prefill, MTP of 3 and DFlash2 of 7 from
# z-lab/dflash#165, plain from AEON-7. Other machines are taken to have the same ratios.
PREFILL, PLAIN, MTP, DRAFTED = 1440.0, 10.5, 19.7, 24.3
PUBLISHED = "z-lab/dflash#165 and AEON-7"
MTP_LENGTH = 3
MTP_COURSE = "MTP with it"
_AGENTIC = ("agent", "code")


def decide_agent_drafts(situation: Situation) -> tuple[Situation, Choice[bool] | None]:
    """Choose between drafter, MTP and neither; return what is left to plan, and the cache."""
    target, asked = situation.target, situation.asked
    if situation.wishes.goal != "agent" or _is_cache_refused(situation):
        return situation, None
    if situation.draft is None or not target.is_hybrid:
        because = "every turn of an agent repeats the conversation so far"
        return situation, Choice(True, "default", f"{because}: only what is new is computed")
    courses = rank(TURN, list_courses(situation))
    if "prefix_caching" in asked.settings:
        courses = tuple(course for course in courses if course.cached)
    fastest, reason = courses[0], explain_courses(situation)
    if not fastest.cached or insists_on_drafter(situation):
        because = f"drafts take it away on a hybrid target (vllm#54360); {reason}"
        return situation, Choice(False, "checkpoint", because)
    caching: Choice[bool] = Choice(True, "checkpoint", reason)
    layers = target.predicting_layers
    if not layers or fastest.name != MTP_COURSE:
        return replace(situation, drafter=None), caching
    parts: dict[str, Choice[Any]] = {
        "method": Choice("mtp", "checkpoint", "the fastest beside the prefix cache, see there"),
        "length": Choice(count_mtp_tokens(layers), "default", PUBLISHED),
    }
    return replace(situation, drafter=None, asked=replace(asked, speculation=parts)), caching


def _is_cache_refused(situation: Situation) -> bool:
    """Return whether the user, or else the recipe, runs without the prefix cache."""
    if (asked := situation.asked.settings.get("prefix_caching")) is not None:
        return not asked.value
    advised = situation.advice.prefix_caching
    return advised is False and situation.recipe_fits_machine and not situation.target.is_hybrid


def note_dropped_drafter(
    drafter: Checkpoint | None, situation: Situation, caching: Choice[bool] | None
) -> tuple[str, ...]:
    """Return which drafter gave way to the cache, and why."""
    if drafter is None or caching is None or situation.drafter is not None:
        return ()
    return (f"{drafter.name} is not used: {caching.because}",)


def insists_on_drafter(situation: Situation) -> bool:
    """Return whether the user named a drafter or a draft length, which a rule does not overrule."""
    wishes, asked = situation.wishes, situation.asked
    named = wishes.drafter is not None or wishes.draft_length is not None
    return named or bool(asked.speculation or asked.speculation_rest)


def list_courses(situation: Situation) -> tuple[Course, ...]:
    """Return the drafter without the cache, plain decoding with it, and MTP where there is one."""
    drafted, plain, _ = find_speeds(situation)
    prefill = plain * PREFILL / PLAIN
    courses = (
        Course("the drafter without the prefix cache", prefill, drafted, cached=False),
        Course("plain decoding with it", prefill, plain, cached=True),
    )
    if not situation.target.predicting_layers:
        return courses
    return (*courses, Course(MTP_COURSE, prefill, plain * MTP / PLAIN, cached=True))


def find_speeds(situation: Situation) -> tuple[float, float, str]:
    """Return drafted and plain tokens per second at concurrency 1, and who measured them."""
    recipe = situation.recipe
    measured = [
        one
        for one in (recipe.evidence if recipe else ())
        if one.tokens_per_s and one.concurrency == 1
    ]
    alike = [one for one in measured if any(word in one.workload.lower() for word in _AGENTIC)]
    if not (chosen := alike or measured) or recipe is None:
        return DRAFTED, PLAIN, PUBLISHED
    drafted = median(one.tokens_per_s for one in chosen if one.tokens_per_s)
    ratios = [ratio for one in chosen if (ratio := _find_speedup(one))]
    speedup = median(ratios) if ratios else DRAFTED / PLAIN
    return drafted, drafted / speedup, f"recipe {recipe.name}, the rest {PUBLISHED}"


def _find_speedup(evidence: Evidence) -> float | None:
    if evidence.tokens_per_s and evidence.plain_tokens_per_s:
        return evidence.tokens_per_s / evidence.plain_tokens_per_s
    return evidence.speedup


def explain_courses(situation: Situation) -> str:
    """Write the arithmetic down: the turn, the seconds of each course, and the figures behind."""
    courses = rank(TURN, list_courses(situation))
    took = ", ".join(
        f"{count_seconds(TURN, one):.0f} s by {one.name} ({one.decode:.1f} tokens/s)"
        for one in courses
    )
    drafter = next(one for one in courses if not one.cached)
    even = find_break_even(TURN, drafter, next(one for one in courses if one.cached))
    wins = "drafts never win" if even is None else f"drafts win from {even:,.0f} answered tokens on"
    layers = situation.target.predicting_layers
    lacking = "; whether it has MTP layers is unknown" if layers is None else "; no MTP layers"
    return (
        f"a turn of {TURN.prompt_tokens:,} tokens, {TURN.cached_share:.0%} of them seen before, "
        f"with {TURN.answer_tokens} answered takes {took}; {wins} (prefill at "
        f"{courses[0].prefill:,.0f} tokens/s; {find_speeds(situation)[2]})"
        f"{'' if layers else lacking}"
    )


def find_agent_fault(situation: Situation) -> list[Fault]:
    """Warn about a requested drafter that costs an agent more time than it saves."""
    if situation.wishes.goal != "agent" or _is_cache_refused(situation):
        return []
    if situation.draft is None or not situation.target.is_hybrid:
        return []
    if not rank(TURN, list_courses(situation))[0].cached:
        return []
    return [
        Fault(
            code="agent-drafts",
            verdict="warn",
            message=f"the drafter takes the prefix cache away: {explain_courses(situation)}",
            hint="leave --drafter, --k and the engine's arguments for speculation out, "
            "or --no-speculation",
        )
    ]


def count_mtp_tokens(layers: int) -> int:
    """Return how many tokens MTP drafts: vLLM wants a multiple of the layers."""
    return MTP_LENGTH if MTP_LENGTH % layers == 0 else layers
