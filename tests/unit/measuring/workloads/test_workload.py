"""Tokens are guessed, or counted by the target's tokenizer; what is too long is told apart."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from slipstream.measuring.workloads.workload import (
    TEMPLATE_TOKENS,
    TOOLS_TOKENS,
    TURN_TOKENS,
    Prompt,
    count_prompt_tokens,
    estimate_tokens,
    split_by_fit,
)

TOOL = {"type": "function", "function": {"name": "look_up"}}
CALL = {"id": "1", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}


def make_prompt(*messages: dict[str, Any], max_tokens: int = 10, **fields: Any) -> Prompt:
    return Prompt(
        id="a", kind="a", messages=messages, max_tokens=max_tokens, origin="here", **fields
    )


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", 0),
        ("hello there", 3),
        ("a" * 100, 21),
        ("12.50", 6),
        ("at 12", 5),
        ("x = y;\n", 6),
        ('{"a": [1]}', 7),
        ("氷", 4),
        ("\ud800", 2),
    ],
)
def test_a_guess_counts_letters_digits_signs_and_bytes(text: str, tokens: int) -> None:
    assert estimate_tokens(text) == tokens


@given(some.text(), some.text())
def test_more_text_is_never_guessed_to_be_less(first: str, second: str) -> None:
    assert estimate_tokens(first + second) >= max(estimate_tokens(first), estimate_tokens(second))


def test_all_that_a_template_shows_is_counted() -> None:
    asked = {"role": "user", "content": "Hi?"}
    called = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    prompt = make_prompt(asked, called, extra={"tools": [TOOL]})
    shown = len("Hi?") + len(json.dumps([CALL])) + len(json.dumps([TOOL]))
    frame = TEMPLATE_TOKENS + 2 * TURN_TOKENS + TOOLS_TOKENS
    assert count_prompt_tokens(prompt, len) == shown + frame


def test_token_ids_need_no_template() -> None:
    assert count_prompt_tokens(make_prompt(prompt_ids=(5, 6, 7)), len) == 3


def test_a_prompt_must_fit_together_with_its_answer() -> None:
    longest = make_prompt(prompt_ids=(1,) * 90, max_tokens=10)
    longer = make_prompt(prompt_ids=(1,) * 90, max_tokens=11)
    assert split_by_fit([longer, longest], 100, len) == ([longest], [longer])
