"""From the blocks of two arms to a `Verdict`."""

from collections.abc import Sequence
from math import inf
from random import Random

from slipstream.hardware.machine_watch import MachineLoad
from slipstream.measuring.comparing.blocks import Block
from slipstream.measuring.comparing.effects import DRAWS, Effects, gather_evidence
from slipstream.measuring.comparing.sentence import conclude, list_unclear, name_measure
from slipstream.measuring.comparing.statistics import CONFIDENCE, find_crossing, find_quantile
from slipstream.measuring.comparing.verdict import BreakEven, Verdict

PAIR = ("A", "B")


def judge(
    blocks: Sequence[Block],
    *,
    arms: tuple[str, str],
    seed: int = 0,
    draws: int = DRAWS,
    machines: Sequence[MachineLoad | None] = (),
) -> Verdict:
    """Return whether arm B is faster than arm A; the same blocks and seed say the same again.

    `machines` has what else the machine did during each block. If it was busy, no outcome is drawn.
    """
    names = dict(zip(PAIR, arms, strict=True))
    found = gather_evidence(blocks, names, seed=seed, draws=draws, machines=machines)
    findings = found.findings[PAIR]
    unclear = [(PAIR, row) for row in list_unclear(findings)]
    more = found.speed.count_more_blocks(unclear, Random(seed), draws // 4)
    answer, sentence = conclude(findings, found.cautions, arms, more)
    return Verdict(
        measure=found.measure,
        arms=arms,
        blocks=found.blocks,
        findings=findings,
        break_evens=() if found.disturbed else _find_break_evens(found.speed),
        cautions=found.cautions,
        answer=answer,
        more_blocks=None if found.disturbed else more,
        sentence=name_measure(sentence, found.measure),
    )


def _find_break_evens(speed: Effects) -> tuple[BreakEven, ...]:
    kinds: dict[str | None, list[int]] = {}
    for _, (kind, concurrency) in speed.values:
        kinds.setdefault(kind, []).append(concurrency)
    return tuple(
        _find_break_even(speed, kind, sorted(concurrencies))
        for kind, concurrencies in kinds.items()
        if len(concurrencies) > 1
    )


def _find_break_even(speed: Effects, kind: str | None, concurrencies: list[int]) -> BreakEven:
    effects = [speed.values[PAIR, (kind, concurrency)] for concurrency in concurrencies]
    columns = [speed.errors[PAIR, (kind, concurrency)] for concurrency in concurrencies]
    crossings = [
        find_crossing(
            concurrencies, [effect - off for effect, off in zip(effects, draw, strict=True)]
        )
        for draw in zip(*columns, strict=True)
    ]
    found = (
        find_crossing(concurrencies, effects),
        find_quantile(crossings, (1 - CONFIDENCE) / 2),
        find_quantile(crossings, (1 + CONFIDENCE) / 2),
    )
    at, low, high = (None if crossing == inf else crossing for crossing in found)
    return BreakEven(kind=kind, concurrency=at, low=low, high=high, largest=concurrencies[-1])
