"""The shipped kinds of prompts, with fixed ids: written in `data/`, or made from a seed.

The tasks of `agent` are measured by themselves, as wholes, and so are no part of `all`.

Token ids drawn at random are the floor: no drafter foresees them, and no user sends them. So
`random` is measured only by name, and `all` is all that people might ask.
"""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from slipstream.measuring.workloads import agent_tasks
from slipstream.measuring.workloads.agent_tasks import make_agent_task
from slipstream.measuring.workloads.long_context import SIZES, make_long_prompt
from slipstream.measuring.workloads.workload import CountTokens, Prompt
from slipstream.records import Record

DATA = Path(__file__).parent / "data"
WRITTEN = ("code", "reasoning", "dialogue", "prose", "json", "tools", "translation")
KINDS = (*WRITTEN, *SIZES, "random")
TASK_KINDS = tuple(agent_tasks.SIZES)
FAMILIES = {"all": (*WRITTEN, *SIZES), "long": tuple(SIZES), "agent": TASK_KINDS}
PROMPTS_PER_KIND = 24
TASKS_PER_KIND = 8
WARM_UPS_PER_KIND = 4

# Ordinary tokens in every vocabulary: Mistral's Tekken keeps its first 1,000 for other uses,
# and the smallest in use ends at 32,000.
RANDOM_IDS = (1000, 30000)
RANDOM_LENGTHS = (32, 64, 128, 256, 512, 1024)
RANDOM_MAX_TOKENS = 256


class _Call(Record):
    """An earlier tool call in the conversation, with its result."""

    call: str
    arguments: dict[str, Any]
    result: Any


class _Written(Record):
    """A line of `data/`; its texts alternate between user and assistant."""

    id: str
    max_tokens: int
    system: str | None = None
    tools: str | None = None
    json_schema: dict[str, Any] | None = None
    turns: tuple[str | _Call, ...]


def make_prompts(
    kind: str, count_tokens: CountTokens, *, warm_up: bool = False
) -> tuple[Prompt, ...]:
    """Return a class's prompts or tasks, or the others with which it is warmed up."""
    if kind in WRITTEN:
        folder = DATA / "warm-up" if warm_up else DATA
        lines = (folder / f"{kind}.jsonl").read_text().splitlines()
        return tuple(_make_written(kind, _Written.model_validate_json(line)) for line in lines)
    count, middle = (WARM_UPS_PER_KIND, "warm-") if warm_up else (PROMPTS_PER_KIND, "")
    if kind in TASK_KINDS:
        count = 1 if warm_up else TASKS_PER_KIND
    names = {number: f"{kind}-{middle}{number:02d}" for number in range(1, count + 1)}
    if kind in TASK_KINDS:
        tasks = (make_agent_task(kind, name, count_tokens) for name in names.values())
        return tuple(turn for task in tasks for turn in task)
    if kind == "random":
        return tuple(_make_random(name) for name in names.values())
    return tuple(
        make_long_prompt(kind, name, number, count_tokens) for number, name in names.items()
    )


def _make_written(kind: str, line: _Written) -> Prompt:
    extra: dict[str, Any] = {}
    if line.tools is not None:
        tools = _read_toolsets()[line.tools]
        extra["tools"] = [{"type": "function", "function": tool} for tool in tools]
        # The target sees the tools all the same, and no server must know how it calls them:
        # vLLM refuses any other choice unless it was started with a parser for the calls.
        extra["tool_choice"] = "none"
    if line.json_schema is not None:
        shape = {"name": "answer", "strict": True, "schema": line.json_schema}
        extra["response_format"] = {"type": "json_schema", "json_schema": shape}
    return Prompt(
        id=line.id,
        kind=kind,
        messages=tuple(_list_messages(line)),
        max_tokens=line.max_tokens,
        extra=extra,
        origin="slipstream",
    )


def _list_messages(line: _Written) -> Iterator[dict[str, Any]]:
    if line.system is not None:
        yield {"role": "system", "content": line.system}
    texts = 0
    for number, turn in enumerate(line.turns):
        if isinstance(turn, str):
            yield {"role": "assistant" if texts % 2 else "user", "content": turn}
            texts += 1
        else:
            yield from _list_call(turn, f"call{number:05d}")


def _list_call(turn: _Call, name: str) -> Iterator[dict[str, Any]]:
    """Yield a call and its result; Mistral's templates want names of nine characters."""
    function = {"name": turn.call, "arguments": json.dumps(turn.arguments, ensure_ascii=False)}
    called = [{"id": name, "type": "function", "function": function}]
    yield {"role": "assistant", "content": "", "tool_calls": called}
    result = json.dumps(turn.result, ensure_ascii=False)
    yield {"role": "tool", "tool_call_id": name, "content": result}


def _make_random(name: str) -> Prompt:
    chance = Random(name)
    length = chance.choice(RANDOM_LENGTHS)
    return Prompt(
        id=name,
        kind="random",
        prompt_ids=tuple(chance.randrange(*RANDOM_IDS) for _ in range(length)),
        max_tokens=RANDOM_MAX_TOKENS,
        origin="slipstream",
    )


@cache
def _read_toolsets() -> dict[str, list[dict[str, Any]]]:
    toolsets: dict[str, list[dict[str, Any]]] = json.loads((DATA / "toolsets.json").read_text())
    return toolsets
