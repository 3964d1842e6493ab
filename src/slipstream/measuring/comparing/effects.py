"""`Effects`: the ratios between arms with intervals and outcomes, and all that blocks show of them.

A difference counts if its interval leaves out 1 and it is more than what a restart alone does to
the same arm.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log1p
from random import Random

from slipstream.hardware.machine_watch import MachineLoad
from slipstream.measuring.comparing.blocks import (
    Arm,
    Block,
    Readings,
    has_tasks,
    list_timed,
    read_blocks,
    split_block,
)
from slipstream.measuring.comparing.cautions import Caution, find_cautions, find_disturbance
from slipstream.measuring.comparing.design import Design, Pair
from slipstream.measuring.comparing.statistics import (
    Contrast,
    Noise,
    Row,
    Values,
    average,
    draw_errors,
    find_half_widths,
    find_noise,
    list_rows,
)
from slipstream.measuring.comparing.verdict import (
    EVEN,
    Measure,
    Outcome,
    SpeedFinding,
    SpeedRatio,
)

DRAWS = 2000
ROUNDS_MORE = (1, 2, 3, 4, 6, 8, 12)


@dataclass(frozen=True, slots=True)
class Effects:
    """One measure in all contrasts, in logarithms; `errors` are draws of how far `values` are off.

    `floors` has by row what a restart does.
    """

    noise: Noise
    values: Mapping[Contrast, float]
    halves: Mapping[Contrast, float]
    floors: Mapping[Row, float]
    errors: Mapping[Contrast, Sequence[float]]

    def estimate(self, contrast: Contrast) -> SpeedRatio:
        """Return a contrast's ratio with its interval."""
        value, half = self.values[contrast], self.halves[contrast]
        return SpeedRatio(ratio=exp(value), low=exp(value - half), high=exp(value + half))

    def decide(self, contrast: Contrast, half: float) -> Outcome:
        """Return what an interval of this half-width shows."""
        value = self.values[contrast]
        if abs(value) > max(half, self.floors[contrast[1]]):
            return "faster" if value > 0 else "slower"
        return "even" if abs(value) + half < log1p(EVEN) else "unclear"

    def count_more_blocks(
        self, contrasts: Sequence[Contrast], chance: Random, draws: int
    ) -> int | None:
        """Count the blocks that would settle these, if effect and noise stay what they are."""
        for rounds in ROUNDS_MORE if contrasts else ():
            halves = find_half_widths(draw_errors(self.noise.foresee(rounds), chance, draws))
            if all(self.decide(one, halves[one]) != "unclear" for one in contrasts):
                return rounds * 2 * len(self.noise.design.names)
        return None


@dataclass(frozen=True, slots=True)
class Evidence:
    """The findings of all pairs, their cautions, and the effects on the speed."""

    measure: Measure
    blocks: int
    speed: Effects
    findings: Mapping[Pair, tuple[SpeedFinding, ...]]
    cautions: tuple[Caution, ...]
    disturbed: bool


def gather_evidence(
    blocks: Sequence[Block],
    names: Mapping[Arm, str],
    *,
    seed: int,
    draws: int,
    machines: Sequence[MachineLoad | None],
) -> Evidence:
    """Return every pair's speed-ups; on a busy machine all of them are unclear."""
    live = [block for block in blocks if any(map(list_timed, split_block(block).values()))]
    measure: Measure = "wall time per task" if has_tasks(blocks) else "time per token"
    readings = read_blocks(live, len(names))
    speed = find_effects(readings.design, readings.speeds, Random(seed), draws)
    loads = {cell: {"load": row} for cell, row in readings.throughputs.items()}
    flow = find_effects(readings.design, loads, Random(seed), draws)
    disturbance = find_disturbance(machines)
    findings = {
        pair: tuple(_find(readings, speed, flow, pair, disturbance is not None))
        for pair in readings.design.contrasts
    }
    cautions = (
        *([] if disturbance is None else [disturbance]),
        *_find_silence(len(blocks) - len(live)),
        *find_cautions(blocks, readings, names),
        *_find_contradictions(findings, names, measure),
    )
    return Evidence(measure, len(live), speed, findings, cautions, disturbance is not None)


def find_effects(design: Design, values: Values, chance: Random, draws: int) -> Effects:
    """Estimate every pair of arms in every row."""
    noise = find_noise(design, values)
    errors = draw_errors(noise, chance, draws)
    means = {cell: average(rows.values()) for cell, rows in values.items()}
    rows = {
        row: average(means[cell] for cell in cells)
        for row, cells in list_rows(list(values)).items()
    }
    return Effects(
        noise=noise,
        values={(pair, row): design.estimate(pair, rows[row]) for pair, row in errors},
        halves=find_half_widths(errors),
        floors={row: design.find_floor(mean) for row, mean in rows.items()},
        errors=errors,
    )


def _find(
    readings: Readings, speed: Effects, flow: Effects, pair: Pair, disturbed: bool
) -> list[SpeedFinding]:
    return [
        SpeedFinding(
            kind=row[0],
            concurrency=row[1],
            prompts=sum(len(readings.speeds[cell]) for cell in cells),
            speed_up=speed.estimate((pair, row)),
            throughput=flow.estimate((pair, row)),
            noise=exp(speed.floors[row]),
            outcome="unclear" if disturbed else speed.decide((pair, row), speed.halves[pair, row]),
        )
        for row, cells in list_rows(list(readings.speeds)).items()
    ]


def _find_silence(count: int) -> list[Caution]:
    message = f"{count} blocks without any answer are left out"
    return [Caution(code="silent-block", message=message, grave=True)] if count else []


def _find_contradictions(
    findings: Mapping[Pair, Sequence[SpeedFinding]], names: Mapping[Arm, str], measure: Measure
) -> list[Caution]:
    against = [
        f"{_name_pair(pair, names)}{found.kind or 'all kinds'} at concurrency {found.concurrency}"
        for pair, entries in findings.items()
        for found in entries
        if (found.outcome == "faster" and found.throughput.high < 1)
        or (found.outcome == "slower" and found.throughput.low > 1)
    ]
    message = f"throughput contradicts {measure}: {', '.join(against)}"
    return [Caution(code="throughput", message=message, grave=True)] if against else []


def _name_pair(pair: Pair, names: Mapping[Arm, str]) -> str:
    """Return both names where there are more than two arms."""
    return f"{names[pair[1]]} against {names[pair[0]]} for " if len(names) > 2 else ""
