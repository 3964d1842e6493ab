"""A whole tuning over an engine whose costs are known; only the engine's process is missing."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest

from slipstream.hardware import load_host
from slipstream.measuring.bench import Bench, BenchWarmUp
from slipstream.measuring.engine_start import StartFigures
from slipstream.measuring.machine_watch import MachineLoad
from slipstream.measuring.workloads import Prompt, Workload
from slipstream.planning.plan import LaunchPlan
from slipstream.planning.settings import Choice
from slipstream.reporting.pages.tuning import render_tuning_html, render_tuning_markdown
from slipstream.reporting.text.tuning import describe_tuning, render_tuning_text
from slipstream.tuning import tuner as tuner_module
from slipstream.tuning.application import set_variables
from slipstream.tuning.experiment import EngineStart
from slipstream.tuning.goal import parse_goal
from slipstream.tuning.trials import BINDING, IN_ENGINE, THREADS, list_variants
from slipstream.tuning.tuner import Tuner, Tuning
from tests.unit.tuning.pieces import make_conditions
from tests.unit.tuning.synthetic_engine import KINDS, SyntheticEngine, serve
from tests.unit.tuning.test_application import LENGTH, SCHEDULE, plan_for

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

    def start(self, plan: LaunchPlan, bench: Bench, **_: Any) -> StartFigures:
        self.plans.append(plan)
        factor = self.eager_costs if plan.find("--enforce-eager") else 1.0
        factor *= self.ngram_costs if is_ngram(plan) else 1.0
        costs = {
            name: getattr(self.engine, name) * factor
            for name in ("fixed", "by_sequence", "by_token", "plain_fixed", "plain_by_sequence")
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
            say=self.said.append,
            others=self.others,
        )
        return tuner.tune(
            make_conditions(plan), goal=parse_goal(goal), concurrency=concurrency, starts=starts
        )


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


def test_three_starts_choose_what_a_grid_of_sixteen_would(machine: Machine) -> None:
    for load in (1, 8, 16):
        done = machine.tune(concurrency=load)
        truth = find_truth(machine.engine, load)
        assert len(done.starts) == 3
        assert min(truth.values()) / truth[done.profile.choice.draft_length] > 0.97
        told = done.plan.find(LENGTH)
        assert told is not None
        assert (told.source, told.value) == ("measured", str(done.profile.choice.draft_length))


def test_the_neighbours_are_served_too(machine: Machine) -> None:
    done = machine.tune()
    served = {one.draft_length for one in done.profile.confirmations}
    assert len(served) == 3
    assert done.profile.choice.draft_length in served
    assert all(abs(one.off_by) < 0.1 for one in done.profile.confirmations)


def test_every_start_is_in_the_record_with_its_reason(machine: Machine) -> None:
    done = machine.tune()
    assert [bool(start.draft_length) for start in done.starts] == [True, False, True]
    assert all(start.because and start.concurrencies for start in done.starts)
    assert Tuning.model_validate_json(done.to_json()) == done


def test_a_start_more_tries_compilation_and_takes_it_where_it_is_faster(machine: Machine) -> None:
    machine.eager_costs = 1.4
    machine.engine = SyntheticEngine(by_sequence=0, by_token=1e-6)
    done = machine.tune(starts=4)
    (trial,) = done.trials
    assert trial.adopted
    assert trial.gain == pytest.approx(0.4, abs=0.1)
    assert done.plan.find("--enforce-eager") is None
    assert done.untried == ()


def test_what_is_not_faster_is_left_and_what_was_not_tried_is_named(machine: Machine) -> None:
    machine.engine = SyntheticEngine(by_sequence=0, by_token=1e-6)
    done = machine.tune(starts=4)
    (trial,) = done.trials
    assert not trial.adopted
    assert done.plan.find("--enforce-eager") is not None
    assert machine.tune(starts=3).untried == ("compiled",)


def test_another_method_is_taken_where_its_tokens_come_faster(machine: Machine) -> None:
    machine.others, machine.ngram_costs = {"ngram": plan_ngram()}, 0.5
    done = machine.tune(starts=4)
    (trial,) = done.trials
    assert (trial.what, trial.adopted) == ("ngram, 6 drafted tokens", True)
    assert is_ngram(done.plan)
    assert done.plan.speculation is not None
    length = done.plan.speculation.length
    assert length is not None
    assert (length.value, length.source) == (6, "measured")
    assert done.starts[-1].draft_length == 6
    assert done.untried == ("ngram, 3 drafted tokens", "compiled")


def test_what_comes_after_another_method_is_tried_with_that_method(machine: Machine) -> None:
    machine.others, machine.ngram_costs = {"ngram": plan_ngram()}, 0.5
    machine.eager_costs = 1.4
    done = machine.tune(starts=6)
    assert [trial.adopted for trial in done.trials] == [True, False, True]
    assert is_ngram(machine.plans[-1])
    assert machine.plans[-1].find("--enforce-eager") is None
    assert is_ngram(done.plan)
    assert done.plan.find("--enforce-eager") is None


def test_a_method_that_is_no_faster_is_left(machine: Machine) -> None:
    machine.others, machine.ngram_costs = {"ngram": plan_ngram()}, 1.3
    done = machine.tune(starts=4)
    assert [trial.adopted for trial in done.trials] == [False]
    assert not is_ngram(done.plan)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            {IN_ENGINE: "0", THREADS: "2"},
            {BINDING: "0-1"},
        ),
        (
            {BINDING: "0-14"},
            {IN_ENGINE: "0", THREADS: "16"},
        ),
    ],
)
def test_a_cpu_is_tried_with_and_without_a_worker_process(
    before: dict[str, str], after: dict[str, str], machine: Machine
) -> None:
    done = machine.tune()
    plan = set_variables(done.plan, before, "planned")
    (variant,) = [one for one in list_variants(plan, done.profile, {}) if "worker" in one.what]
    changed = variant.change(plan, "tried")
    assert {one.flag: one.value for one in changed.variables} == {
        **{one.flag: one.value for one in done.plan.variables},
        **after,
    }
    assert changed.decisions == plan.decisions


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({IN_ENGINE: "0", THREADS: "3"}, {BINDING: "4-5,7"}),
        ({BINDING: "4-5"}, {IN_ENGINE: "0", THREADS: "3"}),
        ({BINDING: "auto"}, None),
    ],
)
def test_a_worker_process_is_bound_to_the_cpus_of_the_machine(
    before: dict[str, str], after: dict[str, str] | None, machine: Machine
) -> None:
    done = machine.tune()
    host = load_host("cpu-server")
    processor = host.processor.model_copy(update={"usable_cpus": (4, 5, 7)})
    conditions = done.profile.conditions.model_copy(
        update={"host": host.model_copy(update={"processor": processor})}
    )
    profile = done.profile.model_copy(update={"conditions": conditions})
    plan = set_variables(done.plan, before, "planned")
    changed = [
        variant.change(plan, "tried")
        for variant in list_variants(plan, profile, {})
        if "worker" in variant.what
    ]
    tried = [{one.flag: one.value for one in plan.variables} for plan in changed]
    kept = {one.flag: one.value for one in done.plan.variables}
    assert tried == ([] if after is None else [{**kept, **after}])


def test_a_schedule_is_tried_before_it_is_taken(machine: Machine) -> None:
    machine.engine = SyntheticEngine(fixed=0.05, by_token=0.004, plain_by_sequence=0.004)
    done = machine.tune(concurrency=1, starts=4)
    assert done.profile.choice.schedule
    (trial,) = done.trials
    assert trial.adopted
    assert done.plan.find(SCHEDULE) is not None
    assert machine.tune(concurrency=1).plan.find(SCHEDULE) is None


def test_a_limit_that_nothing_holds_is_told(machine: Machine) -> None:
    done = machine.tune("tpot<1ms@p95", concurrency=16)
    assert not done.profile.choice.meets_goal
    assert "no load keeps the limit" in render_tuning_text(done)


def test_what_was_tuned_on_a_busy_machine_is_not_sold_as_tuned(machine: Machine) -> None:
    machine.load = MachineLoad(
        cores=2, seconds=60, other_cpu_share=0.45, steal_share=0, slowdown=1, busiest="ffmpeg"
    )
    done = machine.tune()
    assert done.starts[0].machine == machine.load
    assert describe_tuning(done).answer == "cannot tell"
    assert render_tuning_text(done).startswith(
        "Tune again when the machine is quiet: it was busy, other processes used 0.9 of 2 cores, "
        "most of it ffmpeg. By these times alone, k = "
    )


def test_where_drafts_cost_more_than_they_give_the_plan_has_none(machine: Machine) -> None:
    machine.engine = SyntheticEngine(fixed=0.3)
    done = machine.tune()
    assert done.plan.drafter is None
    assert "no drafts for concurrency 8" in render_tuning_text(done)


def test_the_report_tells_the_choice_the_table_and_the_starts(machine: Machine) -> None:
    done = machine.tune()
    text = render_tuning_text(done)
    assert text.startswith(f"k = {done.profile.choice.draft_length} for concurrency 8: ")
    for part in (
        "predicted tokens per second",
        "what a step costs",
        "starts",
        "not tried: compiled",
    ):
        assert part in text
    page, markdown = render_tuning_html(done), render_tuning_markdown(done)
    assert page.count("<svg") >= 6
    assert "## predicted and served" in markdown


@pytest.mark.parametrize(
    ("machine_name", "before", "tried"),
    [
        ("cpu-server", None, ["in float32"]),
        ("cpu-server", "float32", ["in bfloat16"]),
        ("gb10", None, []),
    ],
)
def test_a_cpu_is_tried_in_the_other_dtype(
    machine_name: str, before: str | None, tried: list[str], machine: Machine
) -> None:
    done = machine.tune()
    conditions = done.profile.conditions.model_copy(update={"host": load_host(machine_name)})
    profile = done.profile.model_copy(update={"conditions": conditions})
    plan = done.plan.change(dtype=before and Choice(before, "hardware", "planned"))
    variants = [one for one in list_variants(plan, profile, {}) if one.what.startswith("in ")]
    assert [one.what for one in variants] == tried
    for one in variants:
        changed = one.change(plan, "measured so").settings.dtype
        assert changed == Choice(one.what.removeprefix("in "), "measured", "measured so")
