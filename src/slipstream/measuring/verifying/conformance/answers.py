"""Parsed answers with tool calls, in one form for all APIs.

Streams are assembled as the official `openai` and `anthropic` libraries do it; an engine test holds
ours against them. We do not depend on them: they would hide what they repair.
"""

import json
from typing import Any

from slipstream.records import Record

CUT_OFF = frozenset(("length", "incomplete", "max_tokens"))


class WireError(Exception):
    """An answer that breaks its API's format."""


class ToolCall(Record):
    """One call as it arrived; `arguments` is the JSON text, valid or not."""

    id: str
    name: str
    arguments: str

    def read_arguments(self) -> Any:
        """Return the parsed arguments; ValueError if they are not JSON."""
        return json.loads(self.arguments)


class ParsedAnswer(Record):
    """A parsed answer; `ending` is the API's own finish reason."""

    reasoning: str = ""
    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    ending: str = ""
    failure: str | None = None

    @property
    def is_cut_off(self) -> bool:
        """Return whether it ended because its tokens were used up."""
        return self.ending in CUT_OFF

    @property
    def content(self) -> tuple[str, str, list[tuple[str, Any]]]:
        """Return what it says: reasoning, text, and names of tools with their arguments.

        Arguments that are not JSON stay text; the ids of calls are random and left out.
        """
        return self.reasoning, self.text, [(call.name, _read_or_keep(call)) for call in self.calls]

    def is_same(self, other: "ParsedAnswer") -> bool:
        """Return whether a client sees no difference."""
        mine, others = ((one.content, one.ending, one.failure is None) for one in (self, other))
        return mine == others


def _read_or_keep(call: ToolCall) -> Any:
    try:
        return call.read_arguments()
    except ValueError:
        return call.arguments
