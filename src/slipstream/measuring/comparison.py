"""`Comparison`: two plans in turns on the same prompts, and the verdict about them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from slipstream.measuring.bench import Bench, BenchCell, Conditions, WarmUp
from slipstream.measuring.blocks import Arm, Block
from slipstream.measuring.engine_start import measure_start
from slipstream.measuring.judging import judge
from slipstream.measuring.verdict import Verdict
from slipstream.planning.plan import LaunchPlan
from slipstream.records import Record

ROUND: tuple[Arm, ...] = ("A", "B", "B", "A")


class BlockReport(Record):
    """One start of one arm: how long it took, how it was warmed up, and its figures."""

    arm: Arm
    round: int
    start_seconds: float
    warm_up: WarmUp
    cells: tuple[BenchCell, ...]


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
    """How two arms are compared; `say` is told what is done at the moment."""

    arms: tuple[ComparedArm, ComparedArm]
    bench: Bench
    rounds: int
    environment: Mapping[str, str]
    logs: Path
    say: Callable[[str], None]

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
            verdict=judge(blocks, arms=names, seed=conditions.seed),
        )

    def _run_block(self, arm: Arm, number: int, at: str) -> tuple[Block, BlockReport]:
        compared = self.arms[ROUND.index(arm)]
        started = measure_start(
            compared.plan,
            replace(self.bench, salt=f"{self.bench.salt} {at}"),
            log=self.logs / f"{arm}-{number}-{at.split()[1]}.log",
            environment=self.environment,
            say=lambda what: self.say(f"{at}: {compared.name} {what}"),
        )
        report = BlockReport(
            arm=arm,
            round=number,
            start_seconds=started.start_seconds,
            warm_up=started.warm_up,
            cells=started.cells,
        )
        return Block(arm=arm, round=number, samples=started.samples), report
