"""From the blocks of two arms or more to a `Verdict`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import exp, inf, log1p
from typing import TYPE_CHECKING

from slipstream.measuring.bench import split_loads
from slipstream.measuring.comparing.blocks import (
    Arm,
    Block,
    Readings,
    has_tasks,
    list_timed,
    read_blocks,
)
from slipstream.measuring.comparing.cautions import Caution, find_cautions, find_disturbance
from slipstream.measuring.comparing.design import LETTERS, Design, Pair
from slipstream.measuring.comparing.sentence import conclude, list_unclear
from slipstream.measuring.comparing.statistics import (
    CONFIDENCE,
    Contrast,
    Noise,
    Row,
    Values,
    draw_errors,
    find_crossing,
    find_noise,
    find_widths,
)
from slipstream.measuring.comparing.verdict import (
    EVEN,
    BreakEven,
    Measure,
    Outcome,
    PairFindings,
    Place,
    SpeedFinding,
    SpeedRatio,
    Verdict,
)
from slipstream.measuring.machine_watch import MachineLoad

if TYPE_CHECKING:
    from slipstream.measuring.comparing.design import Array

DRAWS = 2000
ROUNDS_MORE = (1, 2, 3, 4, 6, 8, 12)

NOISY = 1.1

_SHOWN = ("faster", "slower")

Findings = Mapping[Pair, Sequence[SpeedFinding]]


@dataclass(frozen=True, slots=True)
class Effects:
    """One measure in all contrasts, in logarithms; `floors` has by row what a restart does.

    `errors` are draws of how far off the values may be, by draw, pair and row.
    """

    design: Design
    noise: Noise
    values: Mapping[Contrast, float]
    halves: Mapping[Contrast, float]
    floors: Mapping[Row, float]
    errors: "Array"

    def estimate(self, contrast: Contrast) -> SpeedRatio:
        value, half = self.values[contrast], self.halves[contrast]
        return SpeedRatio(ratio=exp(value), low=exp(value - half), high=exp(value + half))

    def decide(self, contrast: Contrast, half: float) -> Outcome:
        """Return what an interval shows; a difference must also be more than a restart makes."""
        value = self.values[contrast]
        if abs(value) > max(half, self.floors[contrast[1]]):
            return "faster" if value > 0 else "slower"
        return "even" if abs(value) + half < log1p(EVEN) else "unclear"

    def count_more_blocks(self, contrasts: Sequence[Contrast], seed: int, draws: int) -> int | None:
        """Count the blocks that would settle these, if effect and noise stay what they are."""
        for rounds in ROUNDS_MORE if contrasts else ():
            spreads, drawn = draw_errors(self.noise.foresee(self.design, rounds), seed, draws)
            halves = self._name(self.design, self.noise, spreads * find_widths(drawn))
            if all(self.decide(one, halves[one]) != "unclear" for one in contrasts):
                return rounds * 2 * len(self.design.names)
        return None

    def find_break_even(self, pair: Pair, rows: Sequence[Row]) -> BreakEven:
        """Return where the speed-up of a kind ends; `rows` are by rising concurrency."""
        import numpy as np

        loads = [concurrency for _, concurrency in rows]
        places = [self.noise.grid.rows.index(row) for row in rows]
        effects = np.array([self.values[pair, row] for row in rows])
        drawn = effects - self.errors[:, self.design.pairs.index(pair), places]
        crossings = [find_crossing(loads, draw) for draw in drawn]
        shares = ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)
        ends = np.quantile(crossings, shares, method="higher")
        found = (find_crossing(loads, list(effects)), *map(float, ends))
        at, low, high = (None if one == inf else one for one in found)
        return BreakEven(kind=rows[0][0], concurrency=at, low=low, high=high, largest=loads[-1])

    @staticmethod
    def _name(design: Design, noise: Noise, table: "Array") -> dict[Contrast, float]:
        return {
            (pair, row): float(table[number, place])
            for number, pair in enumerate(design.pairs)
            for place, row in enumerate(noise.grid.rows)
        }

    @classmethod
    def find(cls, design: Design, values: Values, seed: int, draws: int) -> "Effects":
        import numpy as np

        noise = find_noise(design, values)
        spreads, drawn = draw_errors(noise, seed, draws)
        cells = [np.mean(list(rows.values()), axis=0) for rows in values.values()]
        means = noise.grid.weights @ np.array(cells)
        floors = map(design.find_floor, means)
        return cls(
            design=design,
            noise=noise,
            values=cls._name(design, noise, design.contrasts @ means.T),
            halves=cls._name(design, noise, spreads * find_widths(drawn)),
            floors=dict(zip(noise.grid.rows, floors, strict=True)),
            errors=drawn * spreads,
        )


def judge(
    blocks: Sequence[Block],
    *,
    arms: Sequence[str],
    seed: int = 0,
    draws: int = DRAWS,
    machines: Sequence[MachineLoad | None] = (),
) -> Verdict:
    """Return which arm is fastest where; the same blocks and seed say the same again.

    `machines` has what else the machine did during each block. If it was busy, no outcome is drawn.
    """
    names = dict(zip(LETTERS, arms, strict=False))
    live = [block for block in blocks if any(map(list_timed, split_loads(block.samples).values()))]
    measure: Measure = "wall time per task" if has_tasks(blocks) else "time per token"
    readings = read_blocks(live, len(arms))
    speed = Effects.find(readings.design, readings.speeds, seed, draws)
    loads = {cell: {"load": row} for cell, row in readings.throughputs.items()}
    flow = Effects.find(readings.design, loads, seed, draws)
    busy = find_disturbance(machines)
    rows = speed.noise.grid.rows
    findings: Findings = {
        pair: [_find(readings, speed, flow, (pair, row), busy) for row in rows]
        for pair in readings.design.pairs
    }
    cautions = (
        *([] if busy is None else [busy]),
        *_find_silence(len(blocks) - len(live)),
        *find_cautions(blocks, readings, names),
        *_find_contradictions(findings, names, measure),
        *_find_unrest(max(speed.floors.values())),
    )
    places = tuple(_rank(findings, place, names) for place in range(len(rows)))
    pairs = tuple(
        PairFindings(
            arms=(names[first], names[second]),
            findings=tuple(own),
            break_evens=tuple(_find_break_evens(speed, (first, second)) if not busy else ()),
        )
        for (first, second), own in findings.items()
    )
    unclear = [(readings.design.pairs[number], row) for number, row in list_unclear(pairs, places)]
    more = None if busy else speed.count_more_blocks(unclear, seed, draws // 4)
    answer, sentence = conclude(pairs, places, cautions, more, measure)
    return Verdict(
        measure=measure,
        arms=tuple(arms),
        blocks=len(live),
        pairs=pairs,
        places=places,
        cautions=cautions,
        answer=answer,
        more_blocks=more,
        sentence=sentence,
    )


def _find(
    readings: Readings, speed: Effects, flow: Effects, contrast: Contrast, busy: Caution | None
) -> SpeedFinding:
    kind, concurrency = contrast[1]
    cells = [cell for cell in readings.speeds if cell[1] == concurrency and kind in (None, cell[0])]
    return SpeedFinding(
        kind=kind,
        concurrency=concurrency,
        prompts=sum(len(readings.speeds[cell]) for cell in cells),
        speed_up=speed.estimate(contrast),
        throughput=flow.estimate(contrast),
        noise=exp(speed.floors[contrast[1]]),
        outcome="unclear" if busy else speed.decide(contrast, speed.halves[contrast]),
    )


def _rank(findings: Findings, place: int, names: Mapping[Arm, str]) -> Place:
    """Return who may be fastest in a row: the arms that were not shown to be slower than one."""
    found = {pair: own[place] for pair, own in findings.items()}
    first = min(names)
    slower = {pair[one.outcome == "slower"] for pair, one in found.items() if one.outcome in _SHOWN}
    speeds = {second: one.speed_up for (base, second), one in found.items() if base == first}
    contenders = sorted(
        set(names) - slower,
        key=lambda arm: speeds[arm].ratio if arm in speeds else 1.0,
        reverse=True,
    )
    best, *others = contenders
    row = next(iter(found.values()))
    return Place(
        kind=row.kind,
        concurrency=row.concurrency,
        contenders=tuple(names[arm] for arm in contenders),
        even=bool(others)
        and all(found[min(best, arm), max(best, arm)].outcome == "even" for arm in others),
        speed_up=speeds.get(best),
    )


def _find_break_evens(speed: Effects, pair: Pair) -> Iterator[BreakEven]:
    kinds: dict[str | None, list[Row]] = {}
    for row in sorted(speed.noise.grid.rows, key=lambda row: row[1]):
        kinds.setdefault(row[0], []).append(row)
    for rows in kinds.values():
        if len(rows) > 1 and pair[0] == speed.design.names[0]:
            yield speed.find_break_even(pair, rows)


def _find_silence(count: int) -> list[Caution]:
    message = f"{count} starts without any answer are left out"
    return [Caution(code="silent-block", message=message, grave=True)] if count else []


def _find_contradictions(
    findings: Findings, names: Mapping[Arm, str], measure: Measure
) -> list[Caution]:
    against = [
        f"{f'{names[second]} against {names[first]} for ' if len(names) > 2 else ''}"
        f"{found.kind or 'all kinds'} at concurrency {found.concurrency}"
        for (first, second), entries in findings.items()
        for found in entries
        if (found.outcome == "faster" and found.throughput.high < 1)
        or (found.outcome == "slower" and found.throughput.low > 1)
    ]
    message = f"throughput contradicts {measure}: {', '.join(against)}"
    return [Caution(code="throughput", message=message, grave=True)] if against else []


def _find_unrest(floor: float) -> list[Caution]:
    change = f"{100 * (exp(floor) - 1):.0f} %"
    message = f"a restart alone changed the speed by {change}, which the intervals include"
    return [Caution(code="noisy-starts", message=message)] if exp(floor) > NOISY else []
