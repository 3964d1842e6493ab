"""A profile changes what it measured, says so with its figures, and nothing else."""

import json
from typing import Any

import pytest

from slipstream.checkpoints.checkpoint import Weights
from slipstream.errors import InvalidInputError
from slipstream.hardware import load_host
from slipstream.planning.plan import LaunchPlan
from slipstream.planning.planner import make_plan
from slipstream.planning.settings.options import make_options
from slipstream.tuning import application
from slipstream.tuning.application import set_drafts, set_eager
from slipstream.tuning.choice import settle
from slipstream.tuning.goal import Goal, parse_goal
from slipstream.tuning.profile import SpeedProfile
from slipstream.tuning.speed_model import SpeedModel
from tests.unit.planning.pieces import DRAFTER, TARGET
from tests.unit.tuning.pieces import make_conditions, make_model

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
    return application.apply_profile(plan, plan_for(drafts=False), profile)


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
        conditions=make_conditions(plan),
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
    plan, profile = plan_for(), profile_for(3)
    tuned = apply_profile(plan, profile)
    assert changed(plan, tuned) == {LENGTH}
    decision = tuned.find(LENGTH)
    assert decision is not None
    assert decision.value == "3"
    assert "ms per token at concurrency 8" in decision.because
    assert "no drafts would take" in decision.because
    assert speculation_of(tuned)["num_speculative_tokens"] == 3
    assert LaunchPlan.model_validate_json(tuned.to_json()) == tuned


def test_no_drafts_takes_the_speculation_out_and_notes_why() -> None:
    plan = plan_for()
    tuned = apply_profile(plan, profile_for(0))
    assert tuned.drafter is None
    assert "--speculative-config" not in tuned.argv()
    assert tuned.notes[-1].startswith("tuned: no drafts, because 1.00 tokens in a step")


@pytest.mark.parametrize("schedule", [[], [[1, 4, 9]]])
def test_speculation_that_was_given_as_json_is_changed_inside(schedule: list[list[int]]) -> None:
    given: dict[str, Any] = {"method": "dflash", "num_speculative_tokens": 9}
    if schedule:
        given["num_speculative_tokens_per_batch_size"] = schedule
    plan = plan_for("--speculative-config", json.dumps(given))
    tuned = apply_profile(plan, profile_for(3))
    assert speculation_of(tuned)["num_speculative_tokens"] == 3
    assert "num_speculative_tokens_per_batch_size" not in speculation_of(tuned)
    scheduled = speculation_of(set_drafts(plan, 15, ((1, 1, 15), (2, 8, 4)), "asked"))
    assert scheduled["num_speculative_tokens"] == 15
    assert scheduled["num_speculative_tokens_per_batch_size"] == [[1, 1, 15], [2, 8, 4]]


def test_short_flags_are_changed_too() -> None:
    words = ("--spec-method", "dflash", "--spec-model", "d", "--spec-tokens", "9")
    tuned = apply_profile(plan_for(*words), profile_for(3))
    assert speculation_of(tuned)["num_speculative_tokens"] == 3
    assert speculation_of(tuned)["model"] == "d"


def test_an_old_schedule_goes_with_the_old_length() -> None:
    plan = plan_for(SCHEDULE, "[[1, 4, 9]]")
    assert plan.find(SCHEDULE)
    assert apply_profile(plan, profile_for(3)).find(SCHEDULE) is None


def test_a_schedule_is_added_only_where_it_is_asked_for() -> None:
    plan, profile = plan_for(), profile_for(15, 1)
    assert profile.choice.schedule
    assert apply_profile(plan, profile).find(SCHEDULE) is None
    tuned = set_drafts(plan, 15, ((1, 8, 15), (9, 16, 7)), "tried")
    assert changed(plan, tuned) - {LENGTH} == {SCHEDULE}
    decision = tuned.find(SCHEDULE)
    assert decision is not None
    assert (decision.source, decision.because) == ("measured", "tried")


def test_compilation_is_set_and_taken_out_and_nothing_else() -> None:
    plan = plan_for()
    eager = set_eager(plan, True, "tried")
    assert changed(plan, eager) == {"--enforce-eager"}
    assert set_eager(eager, False, "tried") == set_eager(plan, False, "tried")


def test_the_load_beyond_which_nothing_is_won_becomes_the_most_sequences() -> None:
    plan, goal = plan_for(), Goal(name="throughput")
    tuned = apply_profile(plan, profile_for(3, 5, goal=goal))
    decision = tuned.find("--max-num-seqs")
    assert decision is not None
    assert decision.value == "5"
    assert decision.because.startswith("more sequences do not increase the throughput")


def test_a_limit_becomes_the_most_sequences_of_a_step() -> None:
    plan = plan_for()
    goal = parse_goal("tpot<40ms@p95")
    tuned = apply_profile(plan, profile_for(3, 5, goal=goal))
    assert changed(plan, tuned) == {LENGTH, "--max-num-seqs"}
    assert tuned.argv()[tuned.argv().index("--max-num-seqs") + 1] == "5"
    wide = apply_profile(plan, profile_for(3, 40, goal=goal))
    assert changed(plan, wide) == {LENGTH}


def test_longer_drafts_get_room_in_a_step() -> None:
    plan = plan_for("--max-num-batched-tokens", "64", LENGTH, "2")
    tuned = apply_profile(plan, profile_for(7))
    decision = tuned.find("--max-num-batched-tokens")
    assert decision is not None
    assert decision.value == str(16 * 8)
    assert decision.because == "16 sequences x 8 tokens to verify (vllm#53970)"
    assert apply_profile(plan, profile_for(3)).find("--max-num-batched-tokens") == plan.find(
        "--max-num-batched-tokens"
    )


def test_a_plan_without_drafts_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="does not draft"):
        apply_profile(plan_for(drafts=False), profile_for(3))


def test_a_profile_of_another_machine_is_refused() -> None:
    profile = profile_for(3, plan=plan_for(host="h100"))
    with pytest.raises(InvalidInputError, match="another plan") as refused:
        apply_profile(plan_for(), profile)
    assert refused.value.details == ("gb10 is not h100",)
    assert apply_profile(plan_for(host="h100"), profile).find(LENGTH)
