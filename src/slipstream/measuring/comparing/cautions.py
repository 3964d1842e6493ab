"""Conditions of the measurement that weaken a verdict.

A grave caution takes the verdict away; the others are reported with it. On a busy machine the times
themselves are not to be trusted.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import exp, log
from statistics import fmean
from typing import Literal

from slipstream.measuring.bench import split_loads
from slipstream.measuring.comparing.blocks import Arm, Block, Readings, has_tasks, list_timed
from slipstream.measuring.comparing.statistics import Cell
from slipstream.measuring.machine_watch import MachineLoad
from slipstream.records import Record

FEW_PROMPTS = 8
MANY_FAILED = 0.05
SAME_LENGTH = 1.1
MANY_UNLIKE = 0.1
OTHER_LENGTH = 1.2

Code = Literal[
    "busy-machine",
    "silent-block",
    "failed-requests",
    "left-out",
    "few-prompts",
    "lengths",
    "throughput",
    "noisy-starts",
]


class Caution(Record):
    """One condition that weakens a verdict."""

    code: Code
    message: str
    grave: bool = False


def find_cautions(
    blocks: Sequence[Block], readings: Readings, names: Mapping[Arm, str]
) -> Iterator[Caution]:
    """Return failed requests, dropped prompts, too few prompts and unequal lengths as cautions."""
    yield from _find_failures(blocks, names)
    yield from _find_gaps(blocks, readings)
    few = sorted({len(prompts) for prompts in readings.speeds.values()})[0]
    if few < FEW_PROMPTS:
        what = "tasks" if has_tasks(blocks) else "prompts"
        message = f"only {few} {what} of a kind could be compared, {FEW_PROMPTS} would say more"
        yield Caution(code="few-prompts", message=message)
    yield from _find_lengths(blocks, readings, names)


def find_disturbance(machines: Sequence[MachineLoad | None]) -> Caution | None:
    """Return the caution of a machine that was busy during any block, with its worst block."""
    busy = [machine for machine in machines if machine is not None and machine.is_busy]
    if not busy:
        return None
    worst = max(busy, key=lambda machine: machine.disturbance)
    message = (
        f"the machine was busy during {len(busy)} of {len(machines)} starts: {worst.describe()}"
    )
    return Caution(code="busy-machine", message=message, grave=True)


def _find_failures(blocks: Sequence[Block], names: Mapping[Arm, str]) -> Iterator[Caution]:
    for arm, name in names.items():
        samples = [sample for block in blocks if block.arm == arm for sample in block.samples]
        if failed := sum(sample.error is not None for sample in samples):
            yield Caution(
                code="failed-requests",
                message=f"{failed} of {len(samples)} requests to {name} failed",
                grave=failed > MANY_FAILED * len(samples),
            )


def _find_gaps(blocks: Sequence[Block], readings: Readings) -> Iterator[Caution]:
    measured = {
        (cell, sample.task or sample.prompt_id)
        for block in blocks
        for cell, samples in split_loads(block.samples).items()
        for sample in samples
    }
    kept = {(cell, name) for cell, prompts in readings.speeds.items() for name in prompts}
    if lost := len(measured - kept):
        what = "tasks" if has_tasks(blocks) else "prompts"
        message = (
            f"{lost} of {len(measured)} {what} were left out: not every start has a time for them"
        )
        yield Caution(code="left-out", message=message, grave=2 * lost > len(measured))
    gone = sorted({cell for cell, _ in measured} - set(readings.speeds))
    if gone:
        cells = ", ".join(f"{kind} at concurrency {concurrency}" for kind, concurrency in gone)
        yield Caution(code="left-out", message=f"there are no figures for {cells}")


def _find_lengths(
    blocks: Sequence[Block], readings: Readings, names: Mapping[Arm, str]
) -> Iterator[Caution]:
    lengths: dict[tuple[Cell, str], dict[Arm, list[int]]] = {}
    for block in blocks:
        for cell, samples in split_loads(block.samples).items():
            for timed in list_timed(samples):
                if timed.name in readings.speeds.get(cell, ()):
                    by_arm = lengths.setdefault((cell, timed.name), {arm: [] for arm in names})
                    by_arm[block.arm].append(timed.output_tokens)
    first, *others = names
    for arm in others:
        ratios = [log(fmean(found[arm]) / fmean(found[first])) for found in lengths.values()]
        unlike = sum(abs(ratio) > log(SAME_LENGTH) for ratio in ratios)
        if unlike > MANY_UNLIKE * len(ratios):
            mean = exp(fmean(ratios))
            yield Caution(
                code="lengths",
                message=f"{unlike} of {len(ratios)} answers differ in length by more than 10 %; "
                f"those of {names[arm]} are {mean:.2f} times as long as those of {names[first]}",
                grave=abs(log(mean)) > log(OTHER_LENGTH),
            )
