"""Estimated token counts of prompts, and which prompts fit into a context.

The guess is on the high side for English: by a fifth with SmolLM2's vocabulary of 49,000, more
with larger ones. Other languages in Latin letters may take a third more than guessed there. Who
has the target's tokenizer hands in its count.
"""

import json
import re
from collections.abc import Callable, Iterable
from math import ceil

from slipstream.measuring.workloads.workload import Prompt

CountTokens = Callable[[str], int]

TEMPLATE_TOKENS = 64
TURN_TOKENS = 8
TOOLS_TOKENS = 160

_PIECE = re.compile(r"[A-Za-z]{1,5}| (?=\d)|[^\w\s]{1,2}|[^A-Za-z ]")


def estimate_tokens(text: str) -> int:
    """Guess: a token for five letters, two signs, a number's start, a digit, a byte beyond ASCII.

    A twentieth is added for names, which fall into more pieces than other words.
    """
    pieces = len(_PIECE.findall(text)) + len(text.encode(errors="replace")) - len(text)
    return ceil(1.05 * pieces)


def count_prompt_tokens(prompt: Prompt, count_tokens: CountTokens) -> int:
    """Count what the target reads before it answers, with what a chat template may add."""
    if prompt.prompt_ids:
        return len(prompt.prompt_ids)
    texts = [_read_text(message) for message in prompt.messages]
    tokens = TEMPLATE_TOKENS + sum(TURN_TOKENS + count_tokens(text) for text in texts)
    if tools := prompt.extra.get("tools"):
        tokens += TOOLS_TOKENS + count_tokens(json.dumps(tools, ensure_ascii=False))
    return tokens


def split_by_fit(
    prompts: Iterable[Prompt], context: int, count_tokens: CountTokens
) -> tuple[list[Prompt], list[Prompt]]:
    """Split the prompts into those that fit into a context with their answers, and the others."""
    fitting: list[Prompt] = []
    others: list[Prompt] = []
    for prompt in prompts:
        tokens = count_prompt_tokens(prompt, count_tokens) + prompt.max_tokens
        (fitting if tokens <= context else others).append(prompt)
    return fitting, others


def _read_text(message: dict[str, object]) -> str:
    """Return all text of a message that a template may show."""
    shown = [message[name] for name in ("content", "tool_calls") if message.get(name)]
    return "\n".join(
        one if isinstance(one, str) else json.dumps(one, ensure_ascii=False) for one in shown
    )
