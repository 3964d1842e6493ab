"""From a plan to a better one: measure a few starts, fit, confirm, try what else may matter.

The first start drafts, the second does not, the third serves the chosen draft length and its
neighbours. Each start beyond those tries one other setting at the chosen load.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Literal

from slipstream.engines.vllm import Runner
from slipstream.errors import EngineError
from slipstream.measuring.bench import Bench, BenchWarmUp, Conditions
from slipstream.measuring.engine_start import measure_start, steer_start
from slipstream.measuring.machine_watch import MachineLoad, MachineWatch
from slipstream.planning.plan import LaunchPlan
from slipstream.records import Record
from slipstream.tuning.acceptance import DraftAcceptance
from slipstream.tuning.experiment import (
    EngineStart,
    plan_confirmation,
    plan_starts,
    read_acceptance,
    read_point,
)
from slipstream.tuning.goal import Goal
from slipstream.tuning.profile import SpeedProfile, confirm, make_profile
from slipstream.tuning.speed_model import StepPoint
from slipstream.tuning.trials import (
    STEERED,
    Trial,
    apply_profile,
    evaluate_trial,
    list_variants,
    set_drafts,
)

LEAST_STARTS = 3


class StartReport(Record):
    """One start: its settings and reasons, its duration and its loads.

    `machine` is what else the machine did meanwhile, None if it could not be watched. `repeated`
    says that a first start was disturbed and this is the second.
    """

    draft_length: int
    schedule: tuple[tuple[int, int, int], ...]
    because: str
    concurrencies: tuple[int, ...]
    start_seconds: float
    warm_up: BenchWarmUp
    seconds: float
    machine: MachineLoad | None = None
    repeated: bool = False


class Tuning(Record):
    """Everything that was done, and the resulting plan."""

    schema_version: Literal[3] = 3
    profile: SpeedProfile
    starts: tuple[StartReport, ...]
    trials: tuple[Trial, ...]
    untried: tuple[str, ...]
    failed: tuple[str, ...] = ()
    plan: LaunchPlan

    @property
    def disturbance(self) -> MachineLoad | None:
        """Return the worst of what disturbed any start, None if the machine was quiet."""
        machines = [start.machine for start in self.starts if start.machine is not None]
        busy = [machine for machine in machines if machine.is_busy]
        return max(busy, key=lambda machine: machine.disturbance, default=None)


@dataclass(slots=True)
class Tuner:
    """How a plan is tuned; `say` receives progress lines.

    `localize` points a plan at folders of this machine; what is saved keeps the models' names.
    `others` are plans for the same target, by their method.
    """

    plan: LaunchPlan
    plain: LaunchPlan
    bench: Bench
    runner: Runner
    longest: int
    max_sequences: int
    environment: Mapping[str, str]
    logs: Path
    progress: Callable[[str], None]
    watch: MachineWatch = field(default_factory=MachineWatch)
    localize: Callable[[LaunchPlan], LaunchPlan] = lambda plan: plan
    others: Mapping[str, LaunchPlan] = field(default_factory=dict)
    _reports: list[StartReport] = field(default_factory=list)

    def tune(self, conditions: Conditions, *, goal: Goal, concurrency: int, starts: int) -> Tuning:
        """Measure, choose, confirm, and use the remaining starts for other settings."""
        self._reports.clear()
        points: list[StepPoint] = []
        acceptance: list[DraftAcceptance] = []
        for start in plan_starts(self.longest, self.max_sequences, runner=self.runner):
            found = self.measure(start)
            points += found[0]
            acceptance += found[1]
        profile = make_profile(
            conditions,
            points,
            acceptance,
            goal=goal,
            concurrency=concurrency,
            max_sequences=self.max_sequences,
        )
        chosen = profile.choice
        self.progress(f"chosen: {chosen.draft_length} drafted tokens; {chosen.reasons[0]}")
        served, drafts = self.measure(
            plan_confirmation(
                chosen.draft_length,
                chosen.to_confirm,
                chosen.concurrency,
                self.max_sequences,
                runner=self.runner,
            )
        )
        if not chosen.draft_length:
            served += [point for point in points if not point.draft_length]
        return self._try_others(confirm(profile, served, drafts), starts)

    def measure(
        self, start: EngineStart, plan: LaunchPlan | None = None
    ) -> tuple[list[StepPoint], tuple[DraftAcceptance, ...]]:
        """Return the points of one start's loads, and its drafts; without a plan, by its length."""
        if plan is None:
            drafts_of = (start.draft_length, start.schedule, start.because)
            plan = set_drafts(self.plan, *drafts_of) if start.draft_length else self.plain
        began = time.monotonic()
        number = len(self._reports) + 1
        log = self.logs / f"{number}.log"
        if start.method == STEERED:
            plan = steer_start(plan, log)
        figures = measure_start(
            self.localize(plan),
            replace(
                self.bench,
                concurrencies=start.concurrencies,
                salt=f"{self.bench.salt} {number}",
            ),
            log=log,
            environment=self.environment,
            progress=lambda what: self.progress(f"start {number} ({start.because}): {what}"),
            watch=self.watch,
        )
        self._reports.append(
            StartReport(
                draft_length=start.draft_length,
                schedule=start.schedule,
                because=start.because,
                concurrencies=start.concurrencies,
                start_seconds=figures.start_seconds,
                warm_up=figures.warm_up,
                seconds=time.monotonic() - began,
                machine=figures.machine,
                repeated=figures.repeated,
            )
        )
        by_load = groupby(figures.samples, key=lambda one: (one.concurrency, one.kind))
        loads = [list(load) for _, load in by_load]
        drafts = start.draft_length > 0 and start.method is None
        lengths = {start.draft_length, *(length for _, _, length in start.schedule)}
        return (
            [read_point(samples, drafts=drafts) for samples in loads],
            read_acceptance(loads, lengths) if drafts else (),
        )

    def _try_others(self, profile: SpeedProfile, starts: int) -> Tuning:
        """Adopt each variant that is faster by more than two starts of one plan differ."""
        plan, factor = apply_profile(self.plan, self.plain, profile), 1.0
        variants = list_variants(plan, profile, self.others)
        left = max(0, starts - len(self._reports))
        trials, failed = list[Trial](), list[str]()
        method: str | None = None
        for variant in variants[:left]:
            start = replace(
                variant.start, because=variant.what, method=variant.start.method or method
            )
            try:
                found = self.measure(start, variant.change(plan, variant.what))
            except EngineError as fault:
                failed.append(f"{variant.what} failed: {fault}")
                self.progress(failed[-1])
                continue
            trial = evaluate_trial(variant, profile, factor, *found)
            self.progress(trial.verdict)
            trials.append(trial)
            if trial.adopted:
                plan, method = variant.change(plan, trial.verdict), start.method
                factor /= 1 + trial.gain
        return Tuning(
            profile=profile,
            starts=tuple(self._reports),
            trials=tuple(trials),
            untried=tuple(variant.what for variant in variants[left:]),
            failed=tuple(failed),
            plan=plan,
        )
