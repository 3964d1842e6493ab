"""`Prompt` and `Workload`: prompts with stable ids, those left out with the reason, and what fits.

The guess of tokens is on the high side for English: by a fifth with SmolLM2's vocabulary of 49,000,
more with larger ones. Other languages in Latin letters may take a third more than guessed there.
Who has the target's tokenizer hands in its count.
"""

import json
import re
from collections.abc import Callable, Iterable
from hashlib import sha256
from math import ceil
from typing import Any

from pydantic import Field

from slipstream.records import Record

CountTokens = Callable[[str], int]

TEMPLATE_TOKENS = 64
TURN_TOKENS = 8
TOOLS_TOKENS = 160

_PIECE = re.compile(r"[A-Za-z]{1,5}| (?=\d)|[^\w\s]{1,2}|[^A-Za-z ]")


class Prompt(Record):
    """One request: messages for the chat template, or else token ids.

    `extra` has the request's further fields: sampling parameters, tools, a response format. The
    prompts of a `task` are its turns, asked one after the other; `expected_tool` is what the target
    is to call in this one.
    """

    id: str
    kind: str
    messages: tuple[dict[str, Any], ...] = ()
    prompt_ids: tuple[int, ...] = ()
    max_tokens: int = Field(ge=1)
    extra: dict[str, Any] = Field(default_factory=dict)
    origin: str
    task: str | None = None
    turn: int | None = None
    expected_tool: str | None = None

    @property
    def unit(self) -> str:
        """Return the unit that is drawn, left out and timed: the task, or the prompt itself."""
        return self.task or self.id


class Workload(Record):
    """Prompts to measure, others of their kinds for warm-up, and those left out with the reason."""

    name: str
    prompts: tuple[Prompt, ...]
    warm_up: tuple[Prompt, ...] = ()
    left_out: dict[str, str] = Field(default_factory=dict)

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(prompt.kind for prompt in self.prompts))

    @property
    def has_tasks(self) -> bool:
        return any(prompt.task is not None for prompt in self.prompts)

    def list_units(self, kind: str) -> list[tuple[Prompt, ...]]:
        """List a kind's tasks with their turns, or its prompts, each on its own."""
        units: dict[str, list[Prompt]] = {}
        for prompt in self.prompts:
            if prompt.kind == kind:
                units.setdefault(prompt.unit, []).append(prompt)
        return [tuple(turns) for turns in units.values()]

    @property
    def sha256(self) -> str:
        """Return the hash of the prompts, wherever they were read from."""
        texts = (
            prompt.model_dump_json(exclude={"origin"}, exclude_none=True) for prompt in self.prompts
        )
        return sha256("\n".join(texts).encode()).hexdigest()


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
