"""`Comparison`: plans in turns on the same prompts, and the verdict about them."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from slipstream.measuring.bench import Bench, BenchCell, BenchWarmUp, Conditions, Load, list_cells
from slipstream.measuring.comparing.blocks import Arm, Block
from slipstream.measuring.comparing.design import LETTERS, list_rounds
from slipstream.measuring.comparing.judging import judge
from slipstream.measuring.comparing.verdict import Verdict
from slipstream.measuring.engine_start import measure_start, steer_start
from slipstream.measuring.machine_watch import MachineLoad, MachineWatch
from slipstream.planning.plan import LaunchPlan
from slipstream.records import Record


class Start(Block):
    """One start of one arm: how long it took, how it was warmed up, and its loads.

    `machine` is what else the machine did meanwhile, None if it could not be watched. `repeated`
    says that a first start was disturbed and this is the second.
    """

    start_seconds: float
    warm_up: BenchWarmUp
    loads: tuple[Load, ...]
    machine: MachineLoad | None = None
    repeated: bool = False

    @property
    def cells(self) -> list[BenchCell]:
        return list_cells(self.loads, self.samples)


class ComparedArm(Record):
    """One of the compared plans, with its name."""

    name: str
    plan: LaunchPlan


class Comparison(Record):
    """Two arms or more under the same conditions, start by start."""

    schema_version: Literal[3] = 3
    conditions: Conditions
    arms: tuple[ComparedArm, ...]
    starts: tuple[Start, ...]
    verdict: Verdict

    @classmethod
    def conclude(
        cls, conditions: Conditions, arms: Sequence[ComparedArm], starts: Sequence[Start]
    ) -> "Comparison":
        verdict = judge(
            starts,
            arms=[arm.name for arm in arms],
            seed=conditions.seed,
            machines=[start.machine for start in starts],
        )
        return cls(conditions=conditions, arms=tuple(arms), starts=tuple(starts), verdict=verdict)


@dataclass(frozen=True, slots=True)
class Comparing:
    """How arms are compared; `say` receives progress lines.

    `localize` points a plan at folders of this machine; the report keeps the models' names.
    """

    arms: tuple[ComparedArm, ...]
    bench: Bench
    rounds: int
    environment: Mapping[str, str]
    logs: Path
    progress: Callable[[str], None]
    watch: MachineWatch = field(default_factory=MachineWatch)
    localize: Callable[[LaunchPlan], LaunchPlan] = lambda plan: plan

    def run(self, conditions: Conditions) -> Comparison:
        orders = enumerate(list_rounds(len(self.arms), self.rounds))
        blocks = [(number, arm) for number, order in orders for arm in order]
        starts: list[Start] = []
        began = time.monotonic()
        for at, (number, arm) in enumerate(blocks):
            name = f"start {at + 1} of {len(blocks)}"
            if at:
                left = (time.monotonic() - began) / at * (len(blocks) - at)
                name += f", about {max(1, round(left / 60))} min left"
            starts.append(self._start(arm, number, at + 1, name))
        return Comparison.conclude(conditions, self.arms, starts)

    def _start(self, arm: Arm, number: int, at: int, name: str) -> Start:
        compared = self.arms[LETTERS.index(arm)]
        log = self.logs / f"{arm}-{number}-{at}.log"
        started = measure_start(
            steer_start(self.localize(compared.plan), log),
            replace(self.bench, salt=f"{self.bench.salt} block {at}"),
            log=log,
            environment=self.environment,
            progress=lambda what: self.progress(f"{name}: {compared.name} {what}"),
            watch=self.watch,
        )
        return Start(arm=arm, round=number, **started._asdict())
