"""A profile changes what it measured, says so with its figures, and nothing else."""

import json
from typing import Any

import pytest

from slipstream.checkpoints.checkpoint import Weights
from slipstream.errors import InvalidInputError
from slipstream.hardware import Host, load_host
from slipstream.planning.plan import LaunchPlan
from slipstream.planning.planner import make_plan
from slipstream.planning.settings import Choice
from slipstream.planning.settings.options import make_options
from slipstream.tuning import trials
from slipstream.tuning.choice import settle
from slipstream.tuning.goal import Goal, parse_goal
from slipstream.tuning.profile import SpeedProfile
from slipstream.tuning.speed_model import SpeedModel
from slipstream.tuning.trials import BINDING, IN_ENGINE, THREADS, list_variants, set_drafts
from tests.unit.planning.pieces import DRAFTER, TARGET
from tests.unit.reporting.records import make_conditions
from tests.unit.tuning.pieces import make_model

LENGTH = "--speculative-config.num_speculative_tokens"
SCHEDULE = f"{LENGTH}_per_batch_size"
SMALL = {"weights": Weights(total_bytes=1 << 30)}
PAIR = TARGET.model_copy(update=SMALL), DRAFTER.model_copy(update=SMALL)
STEEP = make_model((0.05, 0.0, 0.002), (0.05, 0.001), likely=0.85)


def plan_for(*raw: str, host: str = "gb10", drafts: bool = True) -> LaunchPlan:
    options = make_options(engine=raw, users=16)
    options = options if drafts else options.without_speculation()
    return make_plan(load_host(host), *PAIR, None, options)


def apply_profile(plan: LaunchPlan, profile: SpeedProfile) -> LaunchPlan:
    return trials.apply_profile(plan, plan_for(drafts=False), profile)


def profile_for(
    length: int,
    load: int = 8,
    *,
    plan: LaunchPlan | None = None,
    goal: Goal | None = None,
    model: SpeedModel = STEEP,
) -> SpeedProfile:
    goal = goal or Goal(name="latency")
    return SpeedProfile(
        conditions=make_conditions(plan=plan, host=None),
        goal=goal,
        max_sequences=model.max_sequences,
        shares=dict(model.shares),
        points=(),
        step_time=model.steps,
        acceptance=model.acceptance,
        predictions=(),
        choice=settle(model, goal, model.predict(length, load)),
    )


def speculation_of(plan: LaunchPlan) -> dict[str, Any]:
    words = plan.argv()
    settings: dict[str, Any] = json.loads(words[words.index("--speculative-config") + 1])
    return settings


def changed(before: LaunchPlan, after: LaunchPlan) -> set[str]:
    old = {decision.flag: decision for decision in before.decisions}
    new = {decision.flag: decision for decision in after.decisions}
    assert all(
        decision.source == "measured" for flag, decision in new.items() if old.get(flag) != decision
    )
    return {flag for flag in old.keys() | new.keys() if old.get(flag) != new.get(flag)}


def test_the_draft_length_changes_with_its_figures_and_nothing_else() -> None:
    plan = plan_for()
    tuned = apply_profile(plan, profile_for(3))
    assert changed(plan, tuned) == {LENGTH}
    decision = tuned.find(LENGTH)
    assert decision is not None
    assert (decision.value, "at concurrency 8" in decision.because) == ("3", True)
    assert LaunchPlan.model_validate_json(tuned.to_json()) == tuned


def test_no_drafts_takes_the_speculation_out_and_notes_why() -> None:
    tuned = apply_profile(plan_for(), profile_for(0))
    assert tuned.drafter is None
    assert "--speculative-config" not in tuned.argv()
    assert tuned.notes[-1].startswith("tuned: no drafts")


@pytest.mark.parametrize(
    "words",
    [
        ("--speculative-config", '{"method": "dflash", "num_speculative_tokens": 9}'),
        ("--spec-method", "dflash", "--spec-model", "d", "--spec-tokens", "9"),
        (SCHEDULE, "[[1, 4, 9]]"),
    ],
)
def test_speculation_is_changed_however_it_was_given(words: tuple[str, ...]) -> None:
    plan = plan_for(*words)
    before, tuned = speculation_of(plan), speculation_of(apply_profile(plan, profile_for(3)))
    assert tuned["num_speculative_tokens"] == 3
    assert "num_speculative_tokens_per_batch_size" not in tuned
    assert tuned["model"] == before["model"]
    scheduled = speculation_of(set_drafts(plan, 15, ((1, 1, 15), (2, 8, 4)), "tried"))
    assert scheduled["num_speculative_tokens"] == 15
    assert scheduled["num_speculative_tokens_per_batch_size"] == [[1, 1, 15], [2, 8, 4]]


def test_a_schedule_is_not_taken_unmeasured() -> None:
    plan, profile = plan_for(), profile_for(15, 1)
    assert profile.choice.schedule
    assert apply_profile(plan, profile).find(SCHEDULE) is None
    assert changed(plan, set_drafts(plan, 15, ((1, 8, 15), (9, 16, 7)), "tried")) >= {SCHEDULE}


def test_compilation_is_set_and_taken_out_and_nothing_else() -> None:
    plan = plan_for()
    (eagerly,) = list_variants(plan, profile_for(3), {})
    eager = eagerly.change(plan, "tried")
    assert changed(plan, eager) == {"--enforce-eager"}
    (compiled,) = list_variants(eager, profile_for(3), {})
    assert compiled.change(eager, "tried").argv() == plan.argv()


def test_on_a_gpu_with_graphs_steering_and_adaptive_verification_are_tried() -> None:
    plan, host = plan_for(host="h100"), load_host("h100")
    profile = profile_for(15, 1, plan=plan)
    profile = profile.model_copy(
        update={"conditions": profile.conditions.model_copy(update={"host": host})}
    )
    found = {one.start.method: one for one in list_variants(plan, profile, {}) if one.start.method}
    assert found.keys() == {"steered", "adaptive"}
    tried = {way: trials.find_way(make_trial(one.what)) for way, one in found.items()}
    assert tried == {"steered": "steered", "adaptive": "adaptive"}
    assert trials.find_way(make_trial("compiled")) is None
    steered = speculation_of(found["steered"].change(plan, "tried"))
    ranges = steered["num_speculative_tokens_per_batch_size"]
    assert sorted({length for _, _, length in ranges}) == [3, 7, 15]
    assert found["steered"].start.concurrencies[0] == 1
    assert len(found["steered"].start.concurrencies) > 1
    adaptive = found["adaptive"].change(found["steered"].change(plan, "tried"), "tried")
    assert speculation_of(adaptive)["enable_adaptive_verification"]
    assert "num_speculative_tokens_per_batch_size" not in speculation_of(adaptive)
    assert list_variants(plan_for(host="gb10"), profile, {})[0].start.method is None


def make_trial(what: str) -> trials.Trial:
    return trials.Trial(
        what=what,
        concurrency=1,
        seconds_per_token=0.01,
        seconds_per_token_before=0.02,
        needed=0.05,
        adopted=True,
    )


def test_with_lora_only_our_steering_is_tried() -> None:
    host = load_host("h100")
    assert trials.list_ways(plan_for("--enable-lora", host="h100"), host) == ("steered",)
    assert trials.list_ways(plan_for("--enforce-eager", host="h100"), host) == ()


@pytest.mark.parametrize("goal", ["throughput", "tpot<40ms@p95"])
def test_the_load_beyond_which_nothing_is_won_becomes_the_most_sequences(goal: str) -> None:
    plan, aim = plan_for(), parse_goal([goal])
    tuned = apply_profile(plan, profile_for(3, 5, goal=aim))
    assert changed(plan, tuned) == {LENGTH, "--max-num-seqs"}
    assert tuned.argv()[tuned.argv().index("--max-num-seqs") + 1] == "5"
    assert changed(plan, apply_profile(plan, profile_for(3, 40, goal=aim))) == {LENGTH}


def test_longer_drafts_get_room_in_a_step() -> None:
    plan, flag = plan_for("--max-num-batched-tokens", "64", LENGTH, "2"), "--max-num-batched-tokens"
    decision = apply_profile(plan, profile_for(7)).find(flag)
    assert decision is not None
    assert decision.value == str(16 * 8)
    assert apply_profile(plan, profile_for(3)).find(flag) == plan.find(flag)


def test_a_plan_without_drafts_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="does not draft"):
        apply_profile(plan_for(drafts=False), profile_for(3))


def on_host(profile: SpeedProfile, host: Host) -> SpeedProfile:
    conditions = profile.conditions.model_copy(update={"host": host})
    return profile.model_copy(update={"conditions": conditions})


@pytest.mark.parametrize(
    ("cpus", "before", "after"),
    [
        ((), {IN_ENGINE: "0", THREADS: "2"}, {BINDING: "0-1"}),
        ((), {BINDING: "0-14"}, {IN_ENGINE: "0", THREADS: "16"}),
        ((4, 5, 7), {IN_ENGINE: "0", THREADS: "3"}, {BINDING: "4-5,7"}),
        ((4, 5, 7), {BINDING: "4-5"}, {IN_ENGINE: "0", THREADS: "3"}),
        ((4, 5, 7), {BINDING: "auto"}, None),
    ],
)
def test_a_cpu_is_tried_with_and_without_a_worker_process(
    cpus: tuple[int, ...], before: dict[str, str], after: dict[str, str] | None
) -> None:
    base, profile, host = plan_for(), profile_for(3), load_host("cpu-server")
    if cpus:
        processor = host.processor.model_copy(update={"usable_cpus": cpus})
        profile = on_host(profile, host.model_copy(update={"processor": processor}))
    given = {name: Choice(value, "hardware", "planned") for name, value in before.items()}
    plan = base.change_variables(given)
    changed = [
        variant.change(plan, "tried")
        for variant in list_variants(plan, profile, {})
        if "worker" in variant.what
    ]
    kept = {one.flag: one.value for one in base.variables}
    tried = [{one.flag: one.value for one in plan.variables} for plan in changed]
    assert tried == ([] if after is None else [{**kept, **after}])
    assert all(one.decisions == plan.decisions for one in changed)


@pytest.mark.parametrize(
    ("machine", "before", "tried"),
    [
        ("cpu-server", None, ["in float32"]),
        ("cpu-server", "float32", ["in bfloat16"]),
        ("gb10", None, []),
    ],
)
def test_a_cpu_is_tried_in_the_other_dtype(
    machine: str, before: str | None, tried: list[str]
) -> None:
    plan = plan_for().change(dtype=before and Choice(before, "hardware", "planned"))
    variants = list_variants(plan, on_host(profile_for(3), load_host(machine)), {})
    found = [one for one in variants if one.what.startswith("in ")]
    assert [one.what for one in found] == tried
    for one in found:
        changed = one.change(plan, "measured so").settings.dtype
        assert changed == Choice(one.what.removeprefix("in "), "measured", "measured so")
