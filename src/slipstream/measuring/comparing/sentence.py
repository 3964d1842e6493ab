"""The one sentence of a verdict.

Of two arms it advises: use B, for these kinds and up to there, or do not, or not yet. All kinds
together decide, unless a kind was shown to be otherwise; then each kind is named. B is advised up
to the last concurrency where it was shown to be faster, if nothing below looks otherwise: a
speed-up falls with concurrency.

Of more arms it names the fastest for each kind and load, or who may be. Concurrencies at which the
same is so of every kind are named together. An arm is called fastest only where it was shown to be
faster than every other.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from slipstream.measuring.comparing.cautions import Caution
from slipstream.measuring.comparing.statistics import Row
from slipstream.measuring.comparing.verdict import (
    EVEN,
    PLAIN,
    Answer,
    Measure,
    PairFindings,
    Place,
    SpeedFinding,
)


@dataclass(frozen=True, slots=True)
class _Advice:
    """Whether to use the second arm, where that holds, and the findings that say so."""

    what: Literal["use", "not", "unclear"]
    where: str
    findings: tuple[SpeedFinding, ...]


def conclude(
    pairs: Sequence[PairFindings],
    places: Sequence[Place],
    cautions: Sequence[Caution],
    more_blocks: int | None,
    measure: Measure,
) -> tuple[Answer, str]:
    """Return the answer and its sentence; a grave caution leaves only the times.

    A busy machine does not leave even those.
    """
    busy = [caution.message for caution in cautions if caution.code == "busy-machine"]
    grave = [caution.message for caution in cautions if caution.grave]
    light = [caution.message for caution in cautions if not caution.grave]
    if busy:
        sentence = f"Cannot tell: {busy[0]}. Measure again when the machine is quiet."
        return "cannot tell", _name_measure(sentence, measure)
    if len(pairs) == 1:
        answer, sentence = _advise(pairs[0], more_blocks)
    else:
        answer, sentence = _name_fastest(places, pairs[0].arms[0], more_blocks)
    if grave:
        answer = "cannot tell"
        times = sentence[0].lower() + sentence[1:]
        sentence = f"Cannot tell, because {join(grave)}; from the times alone: {times}"
    sentence = f"{sentence}. Caution: {'; '.join(light)}." if light else f"{sentence}."
    return answer, _name_measure(sentence, measure)


def list_unclear(
    pairs: Sequence[PairFindings], places: Sequence[Place]
) -> Iterator[tuple[int, Row]]:
    """List which pairs in which row the sentence says cannot be told yet."""
    if len(pairs) == 1:
        yield from ((0, (one.kind, one.concurrency)) for one in _list_open(pairs[0].findings))
        return
    for at, place in enumerate(places):
        best = place.contenders[0]
        for number, pair in enumerate(pairs if place.kind is not None else ()):
            both = best in pair.arms and set(pair.arms) <= set(place.contenders)
            if both and pair.findings[at].outcome == "unclear":
                yield number, (place.kind, place.concurrency)


def join(parts: Sequence[str]) -> str:
    """Write a list with commas and an `and`."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def _name_measure(sentence: str, measure: Measure) -> str:
    """Put the measure before the sentence, unless it is the usual one."""
    if measure == "time per token":
        return sentence
    return f"By {measure}: {sentence[0].lower()}{sentence[1:]}"


def _ask_for_more(more_blocks: int | None) -> str:
    if more_blocks is None:
        return "more starts alone are not enough, use more prompts"
    return f"measure more, about {more_blocks} starts"


def _advise(pair: PairFindings, more_blocks: int | None) -> tuple[Answer, str]:
    """Return whether to use the second of two arms instead of the first."""
    kinds, overall = _decide_by_kind(pair.findings), _decide(_sum_up(pair.findings))
    if _is_contradicted(overall, pair.findings):
        answer, sentence = _advise_by_kind(kinds, pair.arms)
    else:
        answer, sentence = _advise_overall(overall, pair.arms, len(kinds))
    if unclear := _list_open(pair.findings):
        named = list(dict.fromkeys(found.kind for found in unclear if found.kind))
        alone = f"unclear for {join(named)} alone: " if named and len(kinds) > 1 else ""
        sentence += f"; {alone}{_ask_for_more(more_blocks)}"
    return answer, sentence


def _decide_by_kind(findings: Sequence[SpeedFinding]) -> dict[str, _Advice]:
    kinds = dict.fromkeys(found.kind for found in findings if found.kind is not None)
    return {kind: _decide([found for found in findings if found.kind == kind]) for kind in kinds}


def _sum_up(findings: Sequence[SpeedFinding]) -> list[SpeedFinding]:
    """Return the findings of all kinds together, or of the one kind there is."""
    return [found for found in findings if found.kind is None] or list(findings)


def _list_open(findings: Sequence[SpeedFinding]) -> list[SpeedFinding]:
    advice, overall = list(_decide_by_kind(findings).values()), _decide(_sum_up(findings))
    if overall.what == "unclear" and all(one.what == "unclear" for one in advice):
        advice = [overall]
    return [found for one in advice if one.what == "unclear" for found in one.findings]


def _decide(findings: Sequence[SpeedFinding]) -> _Advice:
    outcomes = {found.outcome for found in findings}
    faster = tuple(found for found in findings if found.outcome == "faster")
    if faster:
        reach = tuple(findings[: findings.index(faster[-1]) + 1])
        if all(found.outcome == "faster" or _may_be_faster(found) for found in reach):
            last = f" {'up to' if reach[1:] else 'at'} concurrency {reach[-1].concurrency}"
            return _Advice("use", "" if len(reach) == len(findings) else last, reach)
        loads = join([str(found.concurrency) for found in faster])
        return _Advice("use", f" at concurrency {loads}", faster)
    unclear = tuple(found for found in findings if found.outcome == "unclear")
    if "slower" in outcomes or outcomes == {"even"}:
        return _Advice("not", "", tuple(found for found in findings if found not in unclear))
    return _Advice("unclear", "", unclear)


def _may_be_faster(found: SpeedFinding) -> bool:
    return found.outcome == "unclear" and found.speed_up.ratio > 1


def _is_contradicted(overall: _Advice, findings: Sequence[SpeedFinding]) -> bool:
    """Return whether a kind was shown to be other than what all kinds together stand for."""
    shown = [found for found in findings if found.kind is not None and found.outcome != "unclear"]
    if overall.what == "unclear":
        return bool(shown)
    advised = {found.concurrency for found in overall.findings if overall.what == "use"}
    return any((one.outcome == "faster") != (one.concurrency in advised) for one in shown)


def _advise_overall(advice: _Advice, arms: tuple[str, str], kinds: int) -> tuple[Answer, str]:
    a, b = arms
    ratios = f"{_write_ratios(advice.findings)} as {a}{' over all kinds' if kinds > 1 else ''}"
    if advice.what == "use":
        return "use for some" if advice.where else "use", f"Use {b}{advice.where}: it is {ratios}"
    if advice.what == "unclear":
        low, high = _find_span(advice.findings)
        doubt = f"it may be {low:.2f} to {high:.2f} times as fast"
        return "cannot tell", f"Cannot tell whether {b} is faster than {a}: {doubt}"
    if all(found.outcome == "even" for found in advice.findings):
        same = f"it is as fast as {a}, to within {EVEN * 100:.0f} %"
        return "do not use", f"Do not use {b} for speed: {same}"
    return "do not use", f"Do not use {b}: it is {ratios}"


def _advise_by_kind(kinds: Mapping[str, _Advice], arms: tuple[str, str]) -> tuple[Answer, str]:
    a, b = arms
    uses, nots = _name_kinds(kinds, "use"), _name_kinds(kinds, "not")
    if uses:
        sentence = f"Use {b} instead of {a} {join(uses)}"
        return "use for some", f"{sentence}, but not {join(nots)}" if nots else sentence
    whole = len(nots) == len(kinds)
    return "do not use" if whole else "cannot tell", f"Do not use {b} instead of {a} {join(nots)}"


def _name_kinds(kinds: Mapping[str, _Advice], what: str) -> list[str]:
    by_place: dict[str, list[str]] = {}
    for kind, advice in kinds.items():
        if advice.what == what:
            by_place.setdefault(advice.where, []).append(kind)
    return [
        f"for {join(own)}{where} "
        f"({_write_ratios([found for kind in own for found in kinds[kind].findings])})"
        for where, own in by_place.items()
    ]


def _write_ratios(findings: Sequence[SpeedFinding]) -> str:
    """Return the range of the ratios and of their intervals, in words."""
    ratios = sorted(found.speed_up.ratio for found in findings)
    low, high = _find_span(findings)
    return f"{_write_range(ratios)} times [{low:.2f} to {high:.2f}] as fast"


def _write_range(ratios: Sequence[float]) -> str:
    return " to ".join(dict.fromkeys(f"{ratio:.2f}" for ratio in (ratios[0], ratios[-1])))


def _find_span(findings: Sequence[SpeedFinding]) -> tuple[float, float]:
    return (
        min(found.speed_up.low for found in findings),
        max(found.speed_up.high for found in findings),
    )


def _name_fastest(
    places: Sequence[Place], first: str, more_blocks: int | None
) -> tuple[Answer, str]:
    """Return which of several arms is fastest where; ratios are against the first."""
    by_outcome: dict[tuple[str, ...], list[int]] = {}
    for load in sorted({place.concurrency for place in places}):
        outcome = tuple(_describe(place) for place in places if place.concurrency == load)
        by_outcome.setdefault(outcome, []).append(load)
    parts = [
        _describe_loads([place for place in places if place.concurrency in loads], loads)
        for loads in by_outcome.values()
    ]
    # What the ratios are against is said once.
    sentence = "; ".join(parts).replace(" as fast)", f" as fast as {first})", 1)
    sentence = f"{sentence[0].upper()}{sentence[1:]}"
    kinds = [place for place in places if place.kind is not None]
    if unclear := [place for place in kinds if place.winner is None and not place.even]:
        rest = "for the rest " if len(unclear) < len(kinds) else ""
        sentence += f"; {rest}{_ask_for_more(more_blocks)}"
    winners = {place.winner for place in kinds}
    if not any(place.winner for place in places):
        return "cannot tell", sentence
    return "one winner" if len(winners) == 1 and None not in winners else "it depends", sentence


def _describe_loads(places: Sequence[Place], loads: Sequence[int]) -> str:
    """Return the outcome at these concurrencies, winners first, kinds with one outcome together."""
    outcomes: dict[str, list[Place]] = {}
    kinds = [place for place in places if place.kind is not None]
    for place in sorted(kinds, key=lambda place: place.winner is None):
        outcomes.setdefault(_describe(place), []).append(place)
    several = len({place.kind for place in kinds}) > 1
    parts = []
    for number, (outcome, entries) in enumerate(outcomes.items()):
        names = list(dict.fromkeys(str(place.kind) for place in entries))
        every = "every" if entries[0].winner else "any"
        where = f" for {every} kind" if len(outcomes) == 1 else f" for {join(names)}"
        winner = entries[0].winner if number else None
        parts.append(f"{winner or outcome}{where * several}{_write_speed(entries)}")
    over_all = [place for place in places if place.kind is None]
    if over_all and all(place.winner for place in over_all) and not all(p.winner for p in kinds):
        parts.append(f"over all kinds {_describe(over_all[0])}{_write_speed(over_all)}")
    return f"at concurrency {join([str(load) for load in loads])} {join(parts)}"


def _describe(place: Place) -> str:
    if place.winner:
        return f"{place.winner} is fastest"
    limit = f"{EVEN * 100:.0f} %"
    if PLAIN in place.contenders:
        more = f"is more than {limit}" if place.even else "was shown to be"
        return f"none {more} faster than {PLAIN}"
    how = f"are within {limit} of each other" if place.even else "cannot be distinguished"
    return f"{join(sorted(place.contenders))} {how}"


def _write_speed(places: Sequence[Place]) -> str:
    ratios = sorted(place.speed_up.ratio for place in places if place.winner and place.speed_up)
    return f" ({_write_range(ratios)} times as fast)" if ratios else ""
