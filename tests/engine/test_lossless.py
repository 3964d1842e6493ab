"""Speculation changes no token: exactly so in float32, up to near-ties in bfloat16."""

import sys

import pytest

from tests.engine.comparison import find_divergences
from tests.engine.conftest import RunArm
from tests.engine.offline import BATCH_SIZE, Arm

pytestmark = [pytest.mark.engine, pytest.mark.beside]


def count_accepted(arm: Arm) -> int:
    return sum(answer.accepted for answer in (*arm.alone, *arm.batched))


@pytest.mark.parametrize("drafter", ["noise", "echo"])
def test_in_float32_every_token_equals_plain_greedy_decoding(arm: RunArm, drafter: str) -> None:
    plain, drafted = arm("float32", "plain"), arm("float32", drafter)
    assert len(plain.alone) == BATCH_SIZE
    assert find_divergences(plain.alone, drafted.alone) == []
    assert find_divergences(plain.alone, drafted.batched) == []
    assert all(answer.steps > 0 for answer in drafted.alone if len(answer.token_ids) > 1)


def test_both_rejection_and_acceptance_were_put_to_the_test(arm: RunArm) -> None:
    noise, echo = arm("float32", "noise"), arm("float32", "echo")
    assert count_accepted(noise) == 0
    assert count_accepted(echo) >= 20
    whole_blocks = sum(answer.accepted_by_step[-1] for answer in echo.alone)
    assert whole_blocks > 0, "no block was accepted to its end"


def test_every_token_comes_from_a_step_or_an_accepted_draft(arm: RunArm) -> None:
    echo = arm("float32", "echo")
    for answer in (*echo.alone, *echo.batched):
        surplus = 1 + answer.steps + answer.accepted - len(answer.token_ids)
        # The last block may reach past the end of the answer, and is cut there.
        assert 0 <= surplus <= 7


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
