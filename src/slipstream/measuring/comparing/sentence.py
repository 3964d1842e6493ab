"""The one sentence of a verdict: use it, for these kinds and up to there, or do not, or not yet.

All kinds together decide, unless a kind was shown to be otherwise; then it is told kind by kind.
B is advised up to the last concurrency where it was shown to be faster, if nothing below looks
otherwise: a speed-up falls with concurrency.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from slipstream.measuring.comparing.cautions import Caution
from slipstream.measuring.comparing.statistics import Row
from slipstream.measuring.comparing.verdict import (
    EVEN,
    Answer,
    Measure,
    SpeedFinding,
)


@dataclass(frozen=True, slots=True)
class _Standing:
    """The advice for a kind of prompt, where it holds, and its findings."""

    advice: Literal["use", "not", "unclear"]
    where: str
    findings: tuple[SpeedFinding, ...]


def conclude(
    findings: Sequence[SpeedFinding],
    cautions: Sequence[Caution],
    arms: tuple[str, str],
    more_blocks: int | None,
) -> tuple[Answer, str]:
    """Return the answer and its sentence; a grave caution leaves only the times.

    A busy machine does not leave even those.
    """
    if busy := explain_busy(cautions):
        return "cannot tell", busy
    apart, overall = _stand_apart(findings), _stand(_sum_up(findings))
    if _is_contradicted(overall, findings):
        answer, sentence = _advise_apart(apart, arms)
    else:
        answer, sentence = _advise(overall, arms, len(apart))
    if unclear := list_unclear(findings):
        kinds = list(dict.fromkeys(kind for kind, _ in unclear if kind and len(apart) > 1))
        alone = f"taken alone, {join(kinds)} cannot be told yet: " if kinds else ""
        sentence += f"; {alone}{tell_more(more_blocks)}"
    grave = any(caution.grave for caution in cautions)
    return "cannot tell" if grave else answer, add_cautions(sentence, cautions)


def explain_busy(cautions: Sequence[Caution]) -> str | None:
    """Return the whole sentence of a measurement on a busy machine, None if it was quiet."""
    busy = [caution.message for caution in cautions if caution.code == "busy-machine"]
    return f"Cannot tell: {busy[0]}. Measure again when the machine is quiet." if busy else None


def add_cautions(sentence: str, cautions: Sequence[Caution]) -> str:
    """Add to a sentence what weakens it, before it if that is grave."""
    if grave := [caution.message for caution in cautions if caution.grave]:
        times = sentence[0].lower() + sentence[1:]
        sentence = f"Cannot tell, because {join(grave)}; by the times alone: {times}"
    light = [caution.message for caution in cautions if not caution.grave]
    return f"{sentence}. Caution: {join(light)}." if light else f"{sentence}."


def name_measure(sentence: str, measure: Measure) -> str:
    """Return the name of the measure, unless it is the usual one."""
    if measure == "time per token":
        return sentence
    return f"By {measure}: {sentence[0].lower()}{sentence[1:]}"


def list_unclear(findings: Sequence[SpeedFinding]) -> list[Row]:
    """List the rows of which the sentence says that they cannot be told yet."""
    standings = list(_stand_apart(findings).values())
    overall = _stand(_sum_up(findings))
    if overall.advice == "unclear" and all(one.advice == "unclear" for one in standings):
        standings = [overall]
    return [
        (found.kind, found.concurrency)
        for standing in standings
        if standing.advice == "unclear"
        for found in standing.findings
    ]


def _stand_apart(findings: Sequence[SpeedFinding]) -> dict[str, _Standing]:
    kinds = dict.fromkeys(found.kind for found in findings if found.kind is not None)
    return {kind: _stand([found for found in findings if found.kind == kind]) for kind in kinds}


def _sum_up(findings: Sequence[SpeedFinding]) -> list[SpeedFinding]:
    """Return the findings of all kinds together, or of the one kind there is."""
    return [found for found in findings if found.kind is None] or list(findings)


def _stand(findings: Sequence[SpeedFinding]) -> _Standing:
    outcomes = {found.outcome for found in findings}
    faster = tuple(found for found in findings if found.outcome == "faster")
    if faster:
        reach = tuple(findings[: findings.index(faster[-1]) + 1])
        if not all(_may_be_faster(found) for found in reach):
            places = join([str(found.concurrency) for found in faster])
            return _Standing("use", f" at concurrency {places}", faster)
        whole = len(reach) == len(findings)
        return _Standing(
            "use", "" if whole else f" up to concurrency {reach[-1].concurrency}", reach
        )
    if "slower" in outcomes or outcomes == {"even"}:
        return _Standing(
            "not", "", tuple(found for found in findings if found.outcome != "unclear")
        )
    return _Standing(
        "unclear", "", tuple(found for found in findings if found.outcome == "unclear")
    )


def _may_be_faster(found: SpeedFinding) -> bool:
    return found.outcome == "faster" or (found.outcome == "unclear" and found.speed_up.ratio > 1)


def _is_contradicted(overall: _Standing, findings: Sequence[SpeedFinding]) -> bool:
    """Return whether a kind was shown to be other than what all kinds together stand for."""
    shown = [found for found in findings if found.kind is not None and found.outcome != "unclear"]
    if overall.advice == "unclear":
        return bool(shown)
    advised = {found.concurrency for found in overall.findings if overall.advice == "use"}
    return any((one.outcome == "faster") != (one.concurrency in advised) for one in shown)


def _advise(standing: _Standing, arms: tuple[str, str], kinds: int) -> tuple[Answer, str]:
    a, b = arms
    ratios = f"{_tell_ratios(standing.findings)} as {a}{' over all kinds' if kinds > 1 else ''}"
    if standing.advice == "use":
        return (
            "use for some" if standing.where else "use",
            f"Use {b}{standing.where}: it is {ratios}",
        )
    if standing.advice == "unclear":
        low = min(found.speed_up.low for found in standing.findings)
        high = max(found.speed_up.high for found in standing.findings)
        doubt = f"it may be {low:.2f} to {high:.2f} times as fast"
        return "cannot tell", f"Cannot tell whether {b} is faster than {a}: {doubt}"
    if all(found.outcome == "even" for found in standing.findings):
        return (
            "do not use",
            f"Do not use {b} for speed: it is as fast as {a}, to within {EVEN * 100:.0f} %",
        )
    return "do not use", f"Do not use {b}: it is {ratios}"


def _advise_apart(standings: Mapping[str, _Standing], arms: tuple[str, str]) -> tuple[Answer, str]:
    a, b = arms
    uses, nots = _tell_kinds(standings, "use"), _tell_kinds(standings, "not")
    if not uses:
        rest = len(nots) < len(standings)
        return (
            "cannot tell" if rest else "do not use",
            f"Do not use {b} instead of {a} {join(nots)}",
        )
    sentence = f"Use {b} instead of {a} {join(uses)}"
    return "use for some", f"{sentence}, but not {join(nots)}" if nots else sentence


def _tell_kinds(standings: Mapping[str, _Standing], advice: str) -> list[str]:
    places: dict[str, list[str]] = {}
    for kind, standing in standings.items():
        if standing.advice == advice:
            places.setdefault(standing.where, []).append(kind)
    return [
        f"for {join(kinds)}{where} "
        f"({_tell_ratios([found for kind in kinds for found in standings[kind].findings])})"
        for where, kinds in places.items()
    ]


def _tell_ratios(findings: Sequence[SpeedFinding]) -> str:
    """Return the range of the ratios and of their intervals, in words."""
    ratios = [f"{found.speed_up.ratio:.2f}" for found in sorted(findings, key=_ratio_of)]
    low = min(found.speed_up.low for found in findings)
    high = max(found.speed_up.high for found in findings)
    span = " to ".join(dict.fromkeys([ratios[0], ratios[-1]]))
    return f"{span} times [{low:.2f} to {high:.2f}] as fast"


def _ratio_of(found: SpeedFinding) -> float:
    return found.speed_up.ratio


def tell_more(more_blocks: int | None) -> str:
    """Return what would settle the rest."""
    if more_blocks is None:
        return "more blocks alone will not do, use more prompts"
    return f"measure more, about {more_blocks} blocks"


def join(parts: Sequence[str]) -> str:
    """Write a list with commas and an `and`."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
