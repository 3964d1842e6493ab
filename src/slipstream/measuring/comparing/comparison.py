"""`Comparison`: two plans in turns on the same prompts, and the verdict about them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from slipstream.measuring.bench import Bench, BenchCell, BenchWarmUp, Conditions
from slipstream.measuring.comparing.blocks import Arm, Block
from slipstream.measuring.comparing.judging import judge
from slipstream.measuring.comparing.verdict import Verdict
from slipstream.measuring.engine_start import measure_start
from slipstream.measuring.machine_watch import MachineLoad, MachineWatch
from slipstream.planning.plan import LaunchPlan
from slipstream.records import Record

ROUND: tuple[Arm, ...] = ("A", "B", "B", "A")


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
    """One of the two: what it is called, and its plan."""

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


@dataclass(frozen=True, slots=True)
class Contest:
    """How two arms are compared; `say` is told what is done at the moment.

    `localize` points a plan at folders of this machine; the report keeps the models' names.
    """

    arms: tuple[ComparedArm, ComparedArm]
    bench: Bench
    rounds: int
    environment: Mapping[str, str]
    logs: Path
    say: Callable[[str], None]
    watch: MachineWatch = field(default_factory=MachineWatch)
    localize: Callable[[LaunchPlan], LaunchPlan] = lambda plan: plan

    def run(self, conditions: Conditions) -> Comparison:
        """Run every round and judge."""
        blocks: list[Block] = []
        reports: list[BlockReport] = []
        for number in range(self.rounds):
            for arm in ROUND:
                at = f"block {len(blocks) + 1} of {self.rounds * len(ROUND)}"
                block, report = self._run_block(arm, number, at)
                blocks.append(block)
                reports.append(report)
        names = (self.arms[0].name, self.arms[1].name)
        return Comparison(
            conditions=conditions,
            arms=self.arms,
            reports=tuple(reports),
            blocks=tuple(blocks),
            verdict=judge(
                blocks,
                arms=names,
                seed=conditions.seed,
                machines=[report.machine for report in reports],
            ),
        )

    def _run_block(self, arm: Arm, number: int, at: str) -> tuple[Block, BlockReport]:
        compared = self.arms[ROUND.index(arm)]
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
