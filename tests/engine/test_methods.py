"""Other ways of drafting, as `slipstream plan --method` plans them: the text stays the same."""

import os
import sys
from pathlib import Path

import pytest

from slipstream.cli.main import run
from slipstream.planning import LaunchPlan
from tests.engine.comparison import find_divergences
from tests.engine.conftest import RunArm
from tests.engine.offline import run_arm

pytestmark = [pytest.mark.engine, pytest.mark.beside]


@pytest.mark.parametrize("method", ["ngram", "draft_model"])
def test_a_planned_method_drafts_and_changes_no_token(
    method: str,
    target: Path,
    prompts: list[list[int]],
    arm: RunArm,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A model that drafts for itself is always right; n-grams are where a prompt repeats itself."""
    model = ("--drafter", str(target)) if method == "draft_model" else ()
    words = ["plan", str(target), "--method", method, *model, "--context", "512", "--json"]
    assert run(words, os.environ) == 0
    plan = LaunchPlan.model_validate_json(capsys.readouterr().out)
    assert plan.speculation is not None
    drafted = run_arm(target, "float32", prompts, tmp_path, plan.speculation.to_config())
    assert find_divergences(arm("float32", "plain").alone, drafted.alone) == []
    assert find_divergences(arm("float32", "plain").alone, drafted.batched) == []
    accepted = sum(answer.accepted for answer in drafted.alone)
    steps = sum(answer.steps for answer in drafted.alone)
    sys.stdout.write(f"\n{method}: {accepted} drafted tokens accepted in {steps} steps\n")
    assert accepted > (2 * steps if method == "draft_model" else 0)
