"""From blocks to a `Verdict`. A difference counts if its interval leaves out 1 and it is more
than what a restart alone does to the same arm.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, inf, log1p
from random import Random

from slipstream.measuring.comparing.blocks import (
    Block,
    Readings,
    has_tasks,
    list_timed,
    read_blocks,
    split_block,
)
from slipstream.measuring.comparing.cautions import Caution, find_cautions, find_disturbance
from slipstream.measuring.comparing.sentence import conclude, list_unclear
from slipstream.measuring.comparing.statistics import (
    CONFIDENCE,
    Design,
    Noise,
    Row,
    Values,
    average,
    draw_errors,
    find_crossing,
    find_half_widths,
    find_noise,
    find_quantile,
    list_rows,
)
from slipstream.measuring.comparing.verdict import (
    EVEN,
    BreakEven,
    Measure,
    Outcome,
    SpeedFinding,
    SpeedRatio,
    Verdict,
)
from slipstream.measuring.machine_watch import MachineLoad

DRAWS = 2000
ROUNDS_MORE = (1, 2, 3, 4, 6, 8, 12)
BLOCKS_A_ROUND = 4


@dataclass(frozen=True, slots=True)
class _Reckoning:
    """One measure in all rows, in logarithms: effect, half-width, floor, and draws of the error."""

    noise: Noise
    effects: Mapping[Row, float]
    halves: Mapping[Row, float]
    floors: Mapping[Row, float]
    errors: Mapping[Row, Sequence[float]]

    def estimate(self, row: Row) -> SpeedRatio:
        effect, half = self.effects[row], self.halves[row]
        return SpeedRatio(ratio=exp(effect), low=exp(effect - half), high=exp(effect + half))

    def decide(self, row: Row, half: float) -> Outcome:
        effect = self.effects[row]
        if abs(effect) > max(half, self.floors[row]):
            return "faster" if effect > 0 else "slower"
        return "even" if abs(effect) + half < log1p(EVEN) else "unclear"


def judge(
    blocks: Sequence[Block],
    *,
    arms: tuple[str, str],
    seed: int = 0,
    draws: int = DRAWS,
    machines: Sequence[MachineLoad | None] = (),
) -> Verdict:
    """Say whether arm B is faster than arm A; the same blocks and seed say the same again.

    `machines` has what else the machine did during each block. If it was busy, no outcome is drawn.
    """
    live = [block for block in blocks if any(map(list_timed, split_block(block).values()))]
    measure: Measure = "wall time per task" if has_tasks(blocks) else "time per token"
    readings = read_blocks(live)
    speed = _reckon(readings.design, readings.speeds, Random(seed), draws)
    loads = {cell: {"load": row} for cell, row in readings.throughputs.items()}
    flow = _reckon(readings.design, loads, Random(seed), draws)
    findings = _find(readings, speed, flow)
    disturbance = find_disturbance(machines)
    if disturbance is not None:
        findings = tuple(one.model_copy(update={"outcome": "unclear"}) for one in findings)
    cautions = (
        *([] if disturbance is None else [disturbance]),
        *_find_silence(len(blocks) - len(live)),
        *find_cautions(blocks, readings, {"A": arms[0], "B": arms[1]}),
        *_find_contradictions(findings, measure),
    )
    more = _count_more_blocks(speed, list_unclear(findings), Random(seed), draws // 4)
    answer, sentence = conclude(findings, cautions, arms, more)
    if measure == "wall time per task":
        sentence = f"By wall time per task: {sentence[0].lower()}{sentence[1:]}"
    return Verdict(
        measure=measure,
        arms=arms,
        blocks=len(live),
        findings=findings,
        break_evens=() if disturbance else _find_break_evens(speed),
        cautions=cautions,
        answer=answer,
        more_blocks=None if disturbance else more,
        sentence=sentence,
    )


def _reckon(design: Design, values: Values, chance: Random, draws: int) -> _Reckoning:
    noise = find_noise(design, values)
    errors = draw_errors(noise, chance, draws)
    means = {cell: average(rows.values()) for cell, rows in values.items()}
    rows = {
        row: average(means[cell] for cell in cells)
        for row, cells in list_rows(list(values)).items()
    }
    return _Reckoning(
        noise=noise,
        effects={row: design.estimate(mean) for row, mean in rows.items()},
        halves=find_half_widths(errors),
        floors={row: design.find_floor(mean) for row, mean in rows.items()},
        errors=errors,
    )


def _find(readings: Readings, speed: _Reckoning, flow: _Reckoning) -> tuple[SpeedFinding, ...]:
    return tuple(
        SpeedFinding(
            kind=row[0],
            concurrency=row[1],
            prompts=sum(len(readings.speeds[cell]) for cell in cells),
            speed_up=speed.estimate(row),
            throughput=flow.estimate(row),
            noise=exp(speed.floors[row]),
            outcome=speed.decide(row, speed.halves[row]),
        )
        for row, cells in list_rows(list(readings.speeds)).items()
    )


def _find_silence(count: int) -> list[Caution]:
    message = f"{count} of the blocks answered nothing and are left out"
    return [Caution(code="silent-block", message=message, grave=True)] if count else []


def _find_contradictions(findings: Sequence[SpeedFinding], measure: Measure) -> list[Caution]:
    against = [
        f"{found.kind or 'all kinds'} at concurrency {found.concurrency}"
        for found in findings
        if (found.outcome == "faster" and found.throughput.high < 1)
        or (found.outcome == "slower" and found.throughput.low > 1)
    ]
    message = f"throughput says the opposite of {measure}: {', '.join(against)}"
    return [Caution(code="throughput", message=message, grave=True)] if against else []


def _count_more_blocks(
    speed: _Reckoning, rows: Sequence[Row], chance: Random, draws: int
) -> int | None:
    """Count the blocks that would settle these rows, if effect and noise stay what they are."""
    for rounds in ROUNDS_MORE if rows else ():
        halves = find_half_widths(draw_errors(speed.noise.foresee(rounds), chance, draws))
        if all(speed.decide(row, halves[row]) != "unclear" for row in rows):
            return rounds * BLOCKS_A_ROUND
    return None


def _find_break_evens(speed: _Reckoning) -> tuple[BreakEven, ...]:
    kinds: dict[str | None, list[int]] = {}
    for kind, concurrency in speed.effects:
        kinds.setdefault(kind, []).append(concurrency)
    return tuple(
        _find_break_even(speed, kind, sorted(concurrencies))
        for kind, concurrencies in kinds.items()
        if len(concurrencies) > 1
    )


def _find_break_even(speed: _Reckoning, kind: str | None, concurrencies: list[int]) -> BreakEven:
    effects = [speed.effects[kind, concurrency] for concurrency in concurrencies]
    columns = [speed.errors[kind, concurrency] for concurrency in concurrencies]
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
