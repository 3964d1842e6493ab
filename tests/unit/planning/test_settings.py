"""A saved plan cannot smuggle an argument past its typed settings."""

import json
from pathlib import Path

import pytest

from slipstream.errors import InvalidInputError
from slipstream.planning import LaunchPlan
from slipstream.records import read_record
from tests.unit.planning.test_planner import plan


@pytest.mark.parametrize("flag", ["--middleware", "--speculative-config", "--host", "--no-such"])
def test_the_rest_of_a_saved_plan_holds_no_typed_and_no_unknown_flag(
    flag: str, tmp_path: Path
) -> None:
    saved = json.loads(plan().to_json())
    choice = {"value": "0.0.0.0", "source": "user", "because": "edited"}
    saved["settings"]["rest"] = {flag: choice}
    (tmp_path / "plan.json").write_text(json.dumps(saved))
    with pytest.raises(InvalidInputError) as refused:
        read_record(tmp_path / "plan.json", LaunchPlan, hint="none")
    assert flag in refused.value.details[0]


def test_the_rest_of_a_saved_speculation_names_no_other_drafter(tmp_path: Path) -> None:
    saved = json.loads(plan().to_json())
    choice = {"value": "another/drafter", "source": "user", "because": "edited"}
    saved["settings"]["speculation"]["rest"] = {"model": choice}
    (tmp_path / "plan.json").write_text(json.dumps(saved))
    with pytest.raises(InvalidInputError) as refused:
        read_record(tmp_path / "plan.json", LaunchPlan, hint="none")
    assert "model" in refused.value.details[0]


def test_the_rest_of_a_saved_plan_keeps_other_flags() -> None:
    made = plan(raw=("--seed", "3"))
    assert LaunchPlan.model_validate_json(made.to_json()) == made
