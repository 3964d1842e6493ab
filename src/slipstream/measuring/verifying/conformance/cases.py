"""The cases: tools and schemas that have failed under speculation, each with its report.

They are in `cases.json`. Strings, numbers and lists are bounded wherever the grammar can bound
them, so that even a small model's arguments end. Most answers are streamed: that is where a step of
several tokens meets a parser that was written for one.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

ApiName = Literal["chat", "responses", "messages"]


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that a model may call."""

    name: str
    description: str
    schema: dict[str, Any]

    def describe(self) -> dict[str, Any]:
        """Return it as OpenAI's APIs describe a function."""
        return {"name": self.name, "description": self.description, "parameters": self.schema}


@dataclass(frozen=True, slots=True)
class EarlierCall:
    """A call that was made earlier in the conversation, and its result."""

    id: str
    name: str
    arguments: str
    result: str


Turn = str | tuple[EarlierCall, ...]
"""What the user said, or the calls of one answer."""


class Way(NamedTuple):
    """The API of a case, and whether the answer is streamed."""

    api: ApiName
    streamed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One case; `choice` is auto, required, or the name of the tool that must be called."""

    name: str
    turns: Sequence[Turn]
    tools: Sequence[Tool] = ()
    choice: str = "auto"
    parallel: bool = True
    strict: bool = True
    schema: dict[str, Any] | None = None
    max_tokens: int = 64
    reasons: bool = False
    ways: Sequence[Way]
    reports: Sequence[str] = ()


def _read_case(entry: dict[str, Any]) -> Case:
    turns = [
        turn if isinstance(turn, str) else tuple(EarlierCall(**call) for call in turn)
        for turn in entry["turns"]
    ]
    ways = [Way(way.partition(" ")[0], "whole" not in way) for way in entry["ways"]]
    known: dict[str, Any] = {"turns": turns, "ways": ways}
    if "tools" in entry:
        known["tools"] = [TOOLS[name] for name in entry["tools"]]
    if "schema" in entry:
        known["schema"] = _DATA["schemas"][entry["schema"]]
    return Case(**(entry | known))


_DATA = json.loads((Path(__file__).parent / "cases.json").read_text())
REPORTS: dict[str, str] = _DATA["reports"]
TOOLS = {name: Tool(name, **entry) for name, entry in _DATA["tools"].items()}
CASES = tuple(map(_read_case, _DATA["cases"]))
