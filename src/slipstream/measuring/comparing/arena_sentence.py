"""The one sentence of an arena: the fastest arm for each kind of prompt and load, or who may be.

Concurrencies at which the same is so of every kind are told together. An arm is called fastest only
where it was shown to be faster than every other.
"""

from collections.abc import Sequence

from slipstream.measuring.comparing.cautions import Caution
from slipstream.measuring.comparing.sentence import (
    add_cautions,
    explain_busy,
    join,
    name_measure,
    tell_more,
)
from slipstream.measuring.comparing.verdict import EVEN, PLAIN, ArenaAnswer, Measure, Place


def conclude_arena(
    places: Sequence[Place],
    cautions: Sequence[Caution],
    first: str,
    more_blocks: int | None,
    measure: Measure,
) -> tuple[ArenaAnswer, str]:
    """Return the answer and its sentence; ratios are against the first arm."""
    if busy := explain_busy(cautions):
        return "cannot tell", name_measure(busy, measure)
    loads = sorted({place.concurrency for place in places})
    by_story: dict[tuple[str, ...], list[int]] = {}
    for load in loads:
        story = tuple(_tell(place) for place in places if place.concurrency == load)
        by_story.setdefault(story, []).append(load)
    parts = [
        _tell_loads([place for place in places if place.concurrency in group], group)
        for group in by_story.values()
    ]
    # What the ratios are against is said once.
    sentence = "; ".join(parts).replace(" as fast)", f" as fast as {first})", 1)
    sentence = f"{sentence[0].upper()}{sentence[1:]}"
    kinds = [place for place in places if place.kind is not None]
    if unclear := [place for place in kinds if place.winner is None and not place.even]:
        rest = "for the rest " if len(unclear) < len(kinds) else ""
        sentence += f"; {rest}{tell_more(more_blocks)}"
    grave = any(caution.grave for caution in cautions)
    answer = "cannot tell" if grave else _answer(places)
    return answer, name_measure(add_cautions(sentence, cautions), measure)


def _answer(places: Sequence[Place]) -> ArenaAnswer:
    winners = {place.winner for place in places if place.kind is not None}
    if winners == {None} and all(place.winner is None for place in places):
        return "cannot tell"
    return "one winner" if len(winners) == 1 and None not in winners else "it depends"


def _tell_loads(places: Sequence[Place], loads: Sequence[int]) -> str:
    """Return the outcome at these concurrencies, winners first, kinds with one outcome together."""
    outcomes: dict[str, list[Place]] = {}
    kinds = [place for place in places if place.kind is not None]
    for place in sorted(kinds, key=lambda place: place.winner is None):
        outcomes.setdefault(_tell(place), []).append(place)
    several = len({place.kind for place in kinds}) > 1
    parts = []
    for number, (told, entries) in enumerate(outcomes.items()):
        names = list(dict.fromkeys(str(place.kind) for place in entries))
        every = "every" if entries[0].winner else "any"
        where = f" for {every} kind" if len(outcomes) == 1 else f" for {join(names)}"
        winner = entries[0].winner if number else None
        parts.append(f"{winner or told}{where * several}{_tell_speed(entries)}")
    over_all = [place for place in places if place.kind is None]
    if over_all and all(place.winner for place in over_all) and not all(p.winner for p in kinds):
        parts.append(f"over all kinds {_tell(over_all[0])}{_tell_speed(over_all)}")
    return f"at concurrency {join([str(load) for load in loads])} {join(parts)}"


def _tell(place: Place) -> str:
    """Return who is fastest, or between whom it is open."""
    if place.winner:
        return f"{place.winner} is fastest"
    limit = f"{EVEN * 100:.0f} %"
    if PLAIN in place.contenders:
        more = f"is more than {limit}" if place.even else "was shown to be"
        return f"none {more} faster than {PLAIN}"
    how = f"are within {limit} of each other" if place.even else "cannot be told apart"
    return f"{join(sorted(place.contenders))} {how}"


def _tell_speed(places: Sequence[Place]) -> str:
    """Return the ratios of winners, from the least to the greatest."""
    ratios = sorted(p.speed_up.ratio for p in places if p.winner and p.speed_up)
    span = " to ".join(dict.fromkeys(f"{ratio:.2f}" for ratio in (*ratios[:1], *ratios[-1:])))
    return f" ({span} times as fast)" if ratios else ""
