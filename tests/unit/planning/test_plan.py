"""A plan as a record: saved and loaded, changed, compared, and its twin without drafts."""

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from slipstream.errors import InvalidInputError
from slipstream.planning import LaunchPlan
from slipstream.planning.plan import diff_plans
from slipstream.planning.settings import Choice
from slipstream.records import read_record
from tests.unit.planning.test_planner import plan

METRICS = ("--per-request-spec-decode-metrics", "summary")
AS_JSON = ("--speculative_config", json.dumps({"method": "dflash", "num_speculative_tokens": 3}))


def test_a_refused_plan_loads_back_identically() -> None:
    made = plan("apple-laptop", engine=("--seed", "3", "-cc.mode", "0"))
    loaded = LaunchPlan.model_validate_json(made.to_json())
    assert (loaded, loaded.argv()) == (made, made.argv())


@pytest.mark.parametrize(
    ("name", "is_part"),
    [
        ("--middleware", False),
        ("--speculative-config", False),
        ("--host", False),
        ("--no-such", False),
        ("model", True),
    ],
)
def test_the_rest_of_a_saved_plan_holds_no_typed_and_no_unknown_flag(
    name: str, is_part: bool, tmp_path: Path
) -> None:
    saved = json.loads(plan().to_json())
    settings = saved["settings"]["speculation"] if is_part else saved["settings"]
    settings["rest"] = {name: {"value": "x", "source": "user", "because": "edited"}}
    (tmp_path / "plan.json").write_text(json.dumps(saved))
    with pytest.raises(InvalidInputError) as refused:
        read_record(tmp_path / "plan.json", LaunchPlan, hint="none")
    assert name in refused.value.details[0]


def test_no_stage_can_change_a_setting_to_what_the_engine_refuses() -> None:
    with pytest.raises(ValidationError):
        plan().change(sequences=Choice(0, "measured", "a bug"))


def test_each_changed_setting_is_listed_with_the_second_plans_reason() -> None:
    assert diff_plans(plan(), plan()) == ()
    found = {entry.flag: entry for entry in diff_plans(plan(), plan(users=4, draft_length=7))}
    assert set(found) == {"--max-num-seqs", "--speculative-config.num_speculative_tokens"}
    sequences = found["--max-num-seqs"]
    assert (sequences.left, sequences.right, sequences.because) == ("32", "4", "requested")
    eager = {one.flag: one for one in diff_plans(plan("gb10"), plan("h100"))}["--enforce-eager"]
    assert (eager.left, eager.right) == ("set", None)


@pytest.mark.parametrize("words", [(), METRICS, AS_JSON])
def test_only_what_asks_for_drafts_is_gone_in_the_twin_without_them(words: tuple[str, ...]) -> None:
    made = plan(engine=words)
    twin = made.without_drafts()
    gone = [one for one in made.decisions if one not in twin.decisions]
    assert twin.drafter is None
    assert gone
    assert all("spec" in one.flag for one in gone)
    assert not [word for word in twin.argv() if "spec" in word]
    metrics = made.settings.draft_metrics
    assert twin.change(speculation=made.speculation, draft_metrics=metrics) == made
    assert twin.without_drafts() == twin
