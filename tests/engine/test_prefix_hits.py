"""After a prefix hit a drafter drafts as it does after reading the whole prompt.

vLLM 0.32 drops the last block of every hit for a drafter; our plans keep it.
"""

from pathlib import Path
from typing import Any

import pytest

from slipstream.engines.vllm import CPU_BLOCK_TOKENS
from slipstream.planning.settings.speculation import KEPT_BLOCK
from slipstream.proving_ground import SHIPPED_DRAFTER
from tests.engine.comparison import find_divergences
from tests.engine.offline import Answer, Arm, run_arm, speculative_config

pytestmark = [pytest.mark.engine, pytest.mark.beside]

RULES = " ".join(
    f"Rule {number}: a function named step_{number} must return the sum of its two arguments "
    f"plus {number}, and never print anything."
    for number in range(1, 16)
)
QUESTIONS = ("Write step_3 in Python.", "Explain rule 7 in one sentence.")


@pytest.fixture(scope="module")
def chats(tokenizer: Any) -> list[list[int]]:
    return [
        tokenizer.apply_chat_template(
            [{"role": "system", "content": RULES}, {"role": "user", "content": question}],
            add_generation_prompt=True,
            return_dict=False,
        )
        for question in QUESTIONS
    ]


def list_steps(answers: list[Answer]) -> list[list[int]]:
    return [answer.accepted_by_step for answer in answers]


def list_cached(arm: Arm) -> list[int]:
    assert all(answer.cached_tokens == 0 for answer in arm.alone)
    return [answer.cached_tokens for answer in arm.batched]


def test_the_kept_block_changes_neither_text_nor_acceptance(
    target: Path, chats: list[list[int]], tmp_path: Path
) -> None:
    config = speculative_config(SHIPPED_DRAFTER)
    configs = {"plain": None, "dropped": config, "kept": config | {KEPT_BLOCK: True}}
    arms = {
        name: run_arm(target, "float32", chats, tmp_path, one, prefix_caching=True)
        for name, one in configs.items()
    }
    for arm in arms.values():
        assert find_divergences(arms["plain"].alone, arm.alone) == []
        assert find_divergences(arms["plain"].alone, arm.batched) == []
    kept, dropped = arms["kept"], arms["dropped"]
    assert list_steps(kept.batched) == list_steps(kept.alone) == list_steps(dropped.alone)
    assert sum(answer.accepted for answer in kept.batched) > 0
    whole = [len(prompt) - 1 - (len(prompt) - 1) % CPU_BLOCK_TOKENS for prompt in chats]
    assert max(list_cached(kept)) == max(whole)
    assert list_cached(kept) == list_cached(arms["plain"])
    lost = [tokens - CPU_BLOCK_TOKENS for tokens in list_cached(kept)]
    assert list_cached(dropped) == lost


def test_in_bfloat16_the_kept_block_changes_neither(
    target: Path, chats: list[list[int]], tmp_path: Path
) -> None:
    config = speculative_config(SHIPPED_DRAFTER) | {KEPT_BLOCK: True}
    arm = run_arm(target, "bfloat16", chats, tmp_path, config, prefix_caching=True)
    parted = find_divergences(arm.alone, arm.batched)
    assert [one for one in parted if not one.is_near_tie] == []
    same = {*range(len(chats))} - {one.prompt for one in parted}
    assert same
    alone, cached = (
        sum(answers[one].accepted for one in same) for answers in (arm.alone, arm.batched)
    )
    steps = sum(arm.alone[one].steps for one in same)
    assert abs(alone - cached) <= max(1, 0.05 * steps)
    assert min(list_cached(arm)) > 0
