"""The user's own prompts: JSONL, OpenAI-style logs, or recorded requests.

Lines that cannot be read are one error. A line that can be read and not asked is left out
with its reason: a recording also holds what the server refused.
"""

import json
from collections import Counter
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from slipstream.errors import InvalidInputError
from slipstream.measuring.workloads.lines import (
    PROMPTS_HINT,
    Line,
    Turn,
    find_obstacle,
    find_request,
    read_lines,
)
from slipstream.measuring.workloads.workload import Prompt
from slipstream.records import Record, describe_faults

MAX_TOKENS = 512
OWN_HINT = f"{PROMPTS_HINT}; name a published set with its file: gsm8k:PATH"
LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")


class _Parameters(Record, extra="ignore", allow_inf_nan=False):
    """Parameters of a request that change what it measures."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    response_format: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    max_output_tokens: int | None = Field(default=None, ge=1)
    n: Literal[1] | None = None


class _Question(Line):
    """A line with its request's parameters, which are parsed only when it is used."""

    parameters: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def gather_parameters(cls, line: Any) -> Any:
        """Collect the parameters of the line and of the logged request in it."""
        if not isinstance(line, dict):
            return line
        stated = {**find_request(line), **line}
        known = {name: stated[name] for name in _Parameters.model_fields if name in stated}
        return {**line, "parameters": known}


def read_own_file(path: Path) -> tuple[tuple[Prompt, ...], dict[str, str]]:
    """Read a file of prompts; give them, and the lines left out with the reason for each."""
    lines = read_lines([path], _Question, hint=OWN_HINT)
    prompts: dict[str, Prompt] = {}
    left_out: dict[str, str] = {}
    for line in lines:
        outcome = _make_prompt(line.record, path.name.partition(".")[0], line.place)
        if isinstance(outcome, str):
            left_out[line.place] = outcome
        elif prompts.setdefault(outcome.id, outcome) is not outcome:
            left_out[line.place] = "a duplicate"
    if not prompts:
        reasons = sorted(Counter(left_out.values()).items())
        raise InvalidInputError(
            f"no usable prompt in the {len(lines)} lines of {path}",
            details=tuple(f"{reason}: {count}" for reason, count in reasons),
            hint=OWN_HINT,
        )
    return tuple(prompts.values()), left_out


def _make_prompt(line: _Question, kind: str, place: str) -> Prompt | str:
    """Return a line's prompt, or the reason why it cannot be used."""
    if (obstacle := find_obstacle(line.turns)) is not None:
        return obstacle
    try:
        parameters = _Parameters.model_validate(line.parameters)
    except ValidationError as fault:
        return "; ".join(describe_faults(fault))
    limits = (getattr(parameters, name) for name in LIMITS)
    prompt = Prompt(
        id="",
        kind=line.kind or kind,
        messages=tuple(_make_message(turn) for turn in line.turns),
        max_tokens=next((limit for limit in limits if limit), MAX_TOKENS),
        extra=parameters.model_dump(exclude_none=True, exclude={*LIMITS, "n"}),
        origin=place,
    )
    content = json.dumps([prompt.messages, prompt.max_tokens, prompt.extra], sort_keys=True)
    name = f"{prompt.kind}-{sha256(content.encode()).hexdigest()[:10]}"
    return prompt.model_copy(update={"id": name})


def _make_message(turn: Turn) -> dict[str, Any]:
    further = turn.model_dump(include={"tool_calls", "tool_call_id", "name"}, exclude_none=True)
    return {"role": turn.role, "content": turn.text, **further}
