"""A whole tuning over an engine whose costs are known; only the engine's process is missing."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest

from slipstream.errors import EngineError
from slipstream.measuring.bench import Bench, BenchWarmUp
from slipstream.measuring.engine_start import StartFigures
from slipstream.measuring.machine_watch import MachineLoad
from slipstream.measuring.workloads import Prompt, Workload
from slipstream.planning.plan import LaunchPlan
from slipstream.reporting.report import render_markdown, render_text
from slipstream.reporting.tuning.tuning import describe_tuning, render_tuning_html
from slipstream.tuning import tuner as tuner_module
from slipstream.tuning.experiment import EngineStart
from slipstream.tuning.goal import parse_goal
from slipstream.tuning.tuner import Tuner, Tuning
from tests.unit.reporting.records import BUSY, make_conditions
from tests.unit.tuning.synthetic_engine import KINDS, SyntheticEngine, serve
from tests.unit.tuning.test_trials import LENGTH, SCHEDULE, plan_for

WARM = BenchWarmUp(rounds=3, seconds_per_token=(0.1, 0.1, 0.1), flat=True)
PROMPTS = tuple(
    Prompt(id=f"{kind} 0", kind=kind, prompt_ids=(1,), max_tokens=8, origin="ours")
    for kind in KINDS
)
WORKLOAD = Workload(name="two kinds", prompts=PROMPTS, warm_up=(), left_out={})


@dataclass
class Machine:
    """Engines that differ by their plan; `eager_costs` is what a step takes without compilation."""

    engine: SyntheticEngine = field(default_factory=SyntheticEngine)
    eager_costs: float = 1.0
    plans: list[LaunchPlan] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    load: MachineLoad | None = None
    chance: Random = field(default_factory=lambda: Random(3))
    others: dict[str, LaunchPlan] = field(default_factory=dict)
    ngram_costs: float = 1.0
    ngram_fails_at: int | None = None

    def start(self, plan: LaunchPlan, bench: Bench, **_: Any) -> StartFigures:
        self.plans.append(plan)
        factor = self.eager_costs if plan.find("--enforce-eager") else 1.0
        if is_ngram(plan) and read_start(plan).draft_length == self.ngram_fails_at:
            raise EngineError("no such drafts", hint="see its log")
        factor *= self.ngram_costs if is_ngram(plan) else 1.0
        costs = {
            name: getattr(self.engine, name) * factor
            for name in ("fixed", "per_sequence", "per_token", "plain_fixed", "plain_per_sequence")
        }
        engine = SyntheticEngine(**costs, noise=self.engine.noise)
        samples = [
            sample
            for load in bench.concurrencies
            for kind in KINDS
            for sample in serve(engine, kind, load, read_start(plan), self.chance)
        ]
        return StartFigures(9.0, WARM, (), tuple(samples), self.load)

    def tune(self, goal: str = "latency", *, concurrency: int = 8, starts: int = 3) -> Tuning:
        plan = plan_for("--enforce-eager")
        tuner = Tuner(
            plan=plan,
            plain=plan_for("--enforce-eager", drafts=False),
            bench=Bench(WORKLOAD, (1,)),
            runner="V1",
            longest=15,
            max_sequences=16,
            environment={},
            logs=Path("logs"),
            progress=self.said.append,
            others=self.others,
        )
        conditions, aim = make_conditions(plan=plan, host=None), parse_goal([goal])
        return tuner.tune(conditions, goal=aim, concurrency=concurrency, starts=starts)


def is_ngram(plan: LaunchPlan) -> bool:
    return plan.speculation is not None and plan.speculation.method.value == "ngram"


def plan_ngram() -> LaunchPlan:
    ngram = '{"method": "ngram", "num_speculative_tokens": 6, "prompt_lookup_max": 4}'
    return plan_for("--enforce-eager", "--speculative-config", ngram)


def read_start(plan: LaunchPlan) -> EngineStart:
    words = plan.argv()
    if "--speculative-config" not in words:
        return EngineStart(0, ())
    settings: Mapping[str, Any] = json.loads(words[words.index("--speculative-config") + 1])
    ranges = settings.get("num_speculative_tokens_per_batch_size", ())
    return EngineStart(settings["num_speculative_tokens"], (), tuple(map(tuple, ranges)))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(tuner_module, "measure_start", made.start)
    return made


def find_truth(engine: SyntheticEngine, load: int) -> dict[int, float]:
    shares = dict.fromkeys(KINDS, 1 / len(KINDS))
    return {length: engine.token_seconds(shares, length, load) for length in range(16)}


@pytest.mark.parametrize("load", [1, 8, 16])
def test_three_starts_choose_what_a_grid_of_sixteen_would(machine: Machine, load: int) -> None:
    done = machine.tune(concurrency=load)
    truth, choice = find_truth(machine.engine, load), done.profile.choice
    assert [bool(start.draft_length) for start in done.starts] == [True, False, True]
    assert min(truth.values()) / truth[choice.draft_length] > 0.97
    told = done.plan.find(LENGTH)
    assert told is not None
    assert (told.source, told.value) == ("measured", str(choice.draft_length))
    served = {one.draft_length for one in done.profile.confirmations}
    assert len(served) == 3
    assert choice.draft_length in served
    assert all(abs(one.off_by) < 0.1 for one in done.profile.confirmations)
    assert Tuning.model_validate_json(done.to_json()) == done


@pytest.mark.parametrize("costs", [1.4, 1.0])
def test_a_start_more_tries_compilation_and_takes_it_where_it_is_faster(
    machine: Machine, costs: float
) -> None:
    machine.eager_costs = costs
    machine.engine = SyntheticEngine(per_sequence=0, per_token=1e-6)
    done = machine.tune(starts=4)
    (trial,) = done.trials
    assert trial.adopted == (costs > 1) == (done.plan.find("--enforce-eager") is None)
    assert trial.gain == pytest.approx(costs - 1, abs=0.1)
    assert done.untried == ()


@pytest.mark.parametrize("costs", [0.5, 1.3])
def test_another_method_is_taken_where_its_tokens_come_faster(
    machine: Machine, costs: float
) -> None:
    machine.others, machine.ngram_costs = {"ngram": plan_ngram()}, costs
    done = machine.tune(starts=4)
    (trial,) = done.trials
    assert trial.adopted == is_ngram(done.plan) == (costs < 1)
    assert done.starts[-1].draft_length == 6
    assert done.untried == ("ngram, 3 drafted tokens", "compiled")


def test_a_setting_whose_engine_fails_is_named_and_the_others_are_tried(machine: Machine) -> None:
    machine.others, machine.ngram_costs = {"ngram": plan_ngram()}, 0.5
    machine.ngram_fails_at = 6
    done = machine.tune(starts=6)
    assert [text.partition(":")[0] for text in done.failed] == ["ngram, 6 drafted tokens failed"]
    assert [trial.what for trial in done.trials] == ["ngram, 3 drafted tokens", "compiled"]
    assert done.failed[0] in machine.said
    assert done.failed[0] in render_text(describe_tuning(done))


def test_what_comes_after_another_method_is_tried_with_that_method(machine: Machine) -> None:
    machine.others, machine.ngram_costs = {"ngram": plan_ngram()}, 0.5
    machine.eager_costs = 1.4
    done = machine.tune(starts=6)
    assert [trial.adopted for trial in done.trials] == [True, False, True]
    assert is_ngram(machine.plans[-1])
    assert machine.plans[-1].find("--enforce-eager") is None
    assert is_ngram(done.plan)
    assert done.plan.find("--enforce-eager") is None


def test_a_schedule_is_tried_before_it_is_taken(machine: Machine) -> None:
    machine.engine = SyntheticEngine(fixed=0.05, per_token=0.004, plain_per_sequence=0.004)
    done = machine.tune(concurrency=1, starts=4)
    assert done.profile.choice.schedule
    (trial,) = done.trials
    assert trial.adopted
    assert done.plan.find(SCHEDULE) is not None
    assert machine.tune(concurrency=1).plan.find(SCHEDULE) is None


def test_what_was_tuned_on_a_busy_machine_is_not_sold_as_tuned(machine: Machine) -> None:
    machine.load = BUSY
    done = machine.tune()
    assert done.starts[0].machine == machine.load
    report = describe_tuning(done)
    assert (report.answer, "ffmpeg" in report.sentence) == ("cannot tell", True)


def test_where_drafts_cost_more_than_they_give_the_plan_has_none(machine: Machine) -> None:
    machine.engine = SyntheticEngine(fixed=0.3)
    done = machine.tune()
    assert done.plan.drafter is None
    assert describe_tuning(done).figure == "plain"


def test_the_report_has_the_choice_the_tables_and_a_panel_per_load(machine: Machine) -> None:
    done = machine.tune()
    report = describe_tuning(done)
    assert (report.answer, report.figure) == ("tuned", f"k = {done.profile.choice.draft_length}")
    sections = {section.title: section for section in report.filled}
    assert {"predicted tokens per second", "what a step costs", "starts"} <= {*sections}
    table = sections["predicted and served"].table
    assert table is not None
    assert len(table.rows) == len(done.profile.confirmations)
    text = render_text(report)
    assert all(title in text for title, section in sections.items() if not section.in_full)
    assert render_tuning_html(done).count("<svg") >= 6
    assert "## predicted and served" in render_markdown(report)
    missed = machine.tune("tpot<1ms@p95", concurrency=16)
    assert not missed.profile.choice.meets_goal
    assert describe_tuning(missed).answer == "failed"
