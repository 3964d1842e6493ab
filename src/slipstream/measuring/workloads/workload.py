"""`Prompt` and `Workload`: what is asked, under ids that stay, and what was left out and why."""

from hashlib import sha256
from typing import Any

from pydantic import Field

from slipstream.records import Record


class Prompt(Record):
    """One request: messages for the chat template, or else token ids.

    `extra` has the request's further fields: sampling parameters, tools, a response format.
    """

    id: str
    kind: str
    messages: tuple[dict[str, Any], ...] = ()
    prompt_ids: tuple[int, ...] = ()
    max_tokens: int = Field(ge=1)
    extra: dict[str, Any] = Field(default_factory=dict)
    origin: str


class Workload(Record):
    """Prompts to measure, others of their kinds to warm up with, and what stayed away and why."""

    name: str
    prompts: tuple[Prompt, ...]
    warm_up: tuple[Prompt, ...] = ()
    left_out: dict[str, str] = Field(default_factory=dict)

    @property
    def kinds(self) -> tuple[str, ...]:
        """List the classes of prompts in their order."""
        return tuple(dict.fromkeys(prompt.kind for prompt in self.prompts))

    @property
    def sha256(self) -> str:
        """Name exactly what is asked, wherever it was read from."""
        asked = (prompt.model_dump_json(exclude={"origin"}) for prompt in self.prompts)
        return sha256("\n".join(asked).encode()).hexdigest()
