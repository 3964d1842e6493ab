"""Speculation changes no token: exactly so in float32, up to near-ties in bfloat16."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from slipstream.cli.main import run
from slipstream.planning import LaunchPlan
from tests.engine.comparison import find_divergences
from tests.engine.conftest import RunArm
from tests.engine.offline import BATCH_SIZE, Arm, run_arm

pytestmark = [pytest.mark.engine, pytest.mark.beside]


def count_accepted(arm: Arm) -> int:
    return sum(answer.accepted for answer in (*arm.alone, *arm.batched))


def test_the_target_knows_what_it_was_taught(arm: RunArm, tokenizer: Any) -> None:
    answers = [tokenizer.decode(answer.token_ids) for answer in arm("float32", "plain").alone]
    assert "def fibonacci(n)" in answers[0]
    assert "#!/bin/bash" in answers[1]


def test_drafts_that_all_fail_change_no_token(arm: RunArm) -> None:
    """Over HTTP, where test_http.py asks for them, some are accepted."""
    plain, drafted = arm("float32", "plain"), arm("float32", "noise")
    assert len(plain.alone) == BATCH_SIZE
    assert find_divergences(plain.alone, drafted.alone) == []
    assert find_divergences(plain.alone, drafted.batched) == []
    assert all(answer.steps > 0 for answer in drafted.alone if len(answer.token_ids) > 1)
    assert count_accepted(drafted) == 0


@pytest.mark.weekly
def test_in_bfloat16_answers_part_only_at_near_ties(arm: RunArm) -> None:
    plain, drafted = arm("bfloat16", "plain"), arm("bfloat16", "echo")
    comparisons = {
        "plain in batches of 8": plain.batched,
        "drafted, alone": drafted.alone,
        "drafted, in batches of 8": drafted.batched,
    }
    for name, answers in comparisons.items():
        divergences = find_divergences(plain.alone, answers)
        equal = len(answers) - len(divergences)
        gaps = ", ".join(f"{divergence.gap:.3f}" for divergence in divergences)
        sys.stdout.write(
            f"\nbfloat16 against plain alone: {name}: {equal} of {len(answers)} equal,"
            f" gaps of the two leading at the first difference: {gaps or 'none'}\n"
        )
        assert [divergence for divergence in divergences if not divergence.is_near_tie] == []
    assert count_accepted(drafted) >= 20


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
