"""`Block`: one start of one arm with its samples; and blocks as tables of numbers.

A round is blocks that followed one another, in the order that `design.py` gives: A B B A for two
arms.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from statistics import fmean
from typing import Annotated, NamedTuple

from pydantic import Field

from slipstream.errors import InvalidInputError
from slipstream.measuring.bench import split_loads
from slipstream.measuring.client.sample import Sample
from slipstream.measuring.comparing.design import LETTERS, Design, list_rounds
from slipstream.measuring.comparing.statistics import Cell
from slipstream.measuring.tasks import split_tasks
from slipstream.records import Record

Arm = Annotated[str, Field(pattern=f"^[{LETTERS}]$")]
"""A letter; ratios are against the first arm, A."""

LEAST_PROMPTS = 2


class Block(Record):
    """One start of one arm, with all its samples in the order of its loads."""

    arm: Arm
    round: int
    samples: tuple[Sample, ...]


class Timed(NamedTuple):
    """What is compared: the time per token of a request, or the wall time of a task."""

    name: str
    seconds: float
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Readings:
    """The logarithms of what was measured, with one value of each block, in their order.

    `speeds` is tokens per second of decoding, by cell and prompt; `throughputs` is tokens per
    second of all places of a cell's load. Of tasks both are tasks per second. Only prompts or tasks
    that every block answered are in `speeds`.
    """

    design: Design
    speeds: Mapping[Cell, Mapping[str, tuple[float, ...]]]
    throughputs: Mapping[Cell, tuple[float, ...]]


def read_blocks(blocks: Sequence[Block], arms: int = 2) -> Readings:
    """Line up the blocks by cell and prompt; a block without answers is left out."""
    design = Design(
        arms=tuple(block.arm for block in blocks), rounds=tuple(block.round for block in blocks)
    )
    if design.degrees_of_freedom < 1 or design.compared < arms:
        found = " ".join(block.arm for block in blocks) or "none"
        (order,) = list_rounds(arms, 1)
        raise InvalidInputError(
            f"too few starts to tell speed from noise: {found}",
            hint=f"let one round {' '.join(order)} finish: slipstream compare TARGET --rounds 1",
        )
    loads = [split_loads(block.samples) for block in blocks]
    cells = sorted(set[Cell].intersection(*(set(load) for load in loads)))
    tables = {cell: [_read_speeds(load[cell]) for load in loads] for cell in cells}
    speeds = {
        cell: {name: tuple(table[name] for table in rows) for name in names}
        for cell, rows in tables.items()
        if len(names := sorted(set[str].intersection(*map(set, rows)))) >= LEAST_PROMPTS
    }
    if not speeds:
        raise InvalidInputError(
            "no two prompts of a kind were answered in all starts",
            hint="to see which requests fail: slipstream bench",
        )
    throughputs = {cell: tuple(_read_throughput(load[cell]) for load in loads) for cell in speeds}
    return Readings(design, speeds, throughputs)


def has_tasks(blocks: Sequence[Block]) -> bool:
    return any(sample.task is not None for block in blocks for sample in block.samples)


def list_timed(samples: Sequence[Sample]) -> list[Timed]:
    """List the tasks of a load that were done, or its answers of two tokens in several pieces."""
    if samples and samples[0].task is not None:
        return [
            Timed(run.name, run.seconds, run.output_tokens)
            for run in split_tasks(samples)
            if not run.failed and run.seconds > 0
        ]
    return [
        Timed(sample.prompt_id, seconds, sample.output_tokens)
        for sample in samples
        if (seconds := sample.seconds_per_token or 0) > 0
    ]


def _read_speeds(samples: Sequence[Sample]) -> dict[str, float]:
    """Return the speed of each prompt or task; of one that was asked more than once, the mean."""
    found: dict[str, list[float]] = {}
    for timed in list_timed(samples):
        found.setdefault(timed.name, []).append(-log(timed.seconds))
    return {name: fmean(speeds) for name, speeds in found.items()}


def _read_throughput(samples: Sequence[Sample]) -> float:
    """Return the tokens or tasks per second of a load whose places were all busy all through."""
    if samples[0].task is not None:
        seconds = sum(run.seconds for run in split_tasks(samples))
        return log(samples[0].concurrency * len(list_timed(samples)) / seconds)
    tokens = sum(sample.output_tokens for sample in samples)
    return log(samples[0].concurrency * tokens / sum(sample.seconds for sample in samples))
