"""`Prompt` and `Workload`: prompts with stable ids, and those left out with the reason."""

from hashlib import sha256
from typing import Any

from pydantic import Field

from slipstream.records import Record


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
        """List the classes of prompts in their order."""
        return tuple(dict.fromkeys(prompt.kind for prompt in self.prompts))

    @property
    def has_tasks(self) -> bool:
        """Return whether tasks are measured, and not prompts on their own."""
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
        asked = (
            prompt.model_dump_json(exclude={"origin"}, exclude_none=True) for prompt in self.prompts
        )
        return sha256("\n".join(asked).encode()).hexdigest()
