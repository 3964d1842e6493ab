"""`Comparison`: two plans in turns on the same prompts, and the verdict about them.

`Arena`: the same with three plans or more.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from slipstream.hardware.machine_watch import MachineLoad, MachineWatch
from slipstream.measuring.bench import Bench, BenchCell, BenchWarmUp, Conditions
from slipstream.measuring.comparing.blocks import Arm, Block
from slipstream.measuring.comparing.design import LETTERS, list_rounds
from slipstream.measuring.comparing.judging import judge
from slipstream.measuring.comparing.ranking import rank
from slipstream.measuring.comparing.verdict import ArenaVerdict, Verdict
from slipstream.measuring.engine_start import measure_start
from slipstream.planning.plan import LaunchPlan
from slipstream.records import Record


class BlockReport(Record):
    """One start of one arm: how long it took, how it was warmed up, and its figures.

    `machine` is what else the machine did meanwhile, None if it could not be watched. `repeated`
    says that a first start was disturbed and this is the second.
    """

    arm: Arm
    round: int
    start_seconds: float
    warm_up: BenchWarmUp
    cells: tuple[BenchCell, ...]
    machine: MachineLoad | None = None
    repeated: bool = False


class ComparedArm(Record):
    """One of the compared plans, with its name."""

    name: str
    plan: LaunchPlan


class Comparison(Record):
    """Two arms under the same conditions, block by block."""

    schema_version: Literal[1] = 1
    conditions: Conditions
    arms: tuple[ComparedArm, ComparedArm]
    reports: tuple[BlockReport, ...]
    blocks: tuple[Block, ...]
    verdict: Verdict


class Arena(Record):
    """Three arms or more under the same conditions, block by block."""

    schema_version: Literal[1] = 1
    conditions: Conditions
    arms: tuple[ComparedArm, ...]
    reports: tuple[BlockReport, ...]
    blocks: tuple[Block, ...]
    verdict: ArenaVerdict


@dataclass(frozen=True, slots=True)
class Contest:
    """How arms are compared; `say` receives progress lines.

    `localize` points a plan at folders of this machine; the report keeps the models' names.
    """

    arms: tuple[ComparedArm, ...]
    bench: Bench
    rounds: int
    environment: Mapping[str, str]
    logs: Path
    say: Callable[[str], None]
    watch: MachineWatch = field(default_factory=MachineWatch)
    localize: Callable[[LaunchPlan], LaunchPlan] = lambda plan: plan

    def run(self, conditions: Conditions) -> Comparison | Arena:
        """Run every round and return the result."""
        blocks: list[Block] = []
        reports: list[BlockReport] = []
        orders = list_rounds(len(self.arms), self.rounds)
        for number, order in enumerate(orders):
            for arm in order:
                at = f"block {len(blocks) + 1} of {sum(map(len, orders))}"
                block, report = self._run_block(arm, number, at)
                blocks.append(block)
                reports.append(report)
        return conclude(self.arms, conditions, reports, blocks)

    def _run_block(self, arm: Arm, number: int, at: str) -> tuple[Block, BlockReport]:
        compared = self.arms[LETTERS.index(arm)]
        started = measure_start(
            self.localize(compared.plan),
            replace(self.bench, salt=f"{self.bench.salt} {at}"),
            log=self.logs / f"{arm}-{number}-{at.split()[1]}.log",
            environment=self.environment,
            say=lambda what: self.say(f"{at}: {compared.name} {what}"),
            watch=self.watch,
        )
        report = BlockReport(
            arm=arm,
            round=number,
            start_seconds=started.start_seconds,
            warm_up=started.warm_up,
            cells=started.cells,
            machine=started.machine,
            repeated=started.repeated,
        )
        return Block(arm=arm, round=number, samples=started.samples), report


def conclude(
    arms: Sequence[ComparedArm],
    conditions: Conditions,
    reports: Sequence[BlockReport],
    blocks: Sequence[Block],
) -> Comparison | Arena:
    """Judge two arms, or rank more, and return the result with its evidence."""
    machines = [report.machine for report in reports]
    names = [arm.name for arm in arms]
    if len(arms) == 2:
        pair = names[0], names[1]
        return Comparison(
            conditions=conditions,
            arms=(arms[0], arms[1]),
            reports=tuple(reports),
            blocks=tuple(blocks),
            verdict=judge(blocks, arms=pair, seed=conditions.seed, machines=machines),
        )
    return Arena(
        conditions=conditions,
        arms=tuple(arms),
        reports=tuple(reports),
        blocks=tuple(blocks),
        verdict=rank(blocks, arms=names, seed=conditions.seed, machines=machines),
    )
