"""Parsed answers with tool calls in one form for all APIs, what two arms' differ in, and events.

Streams are assembled as the official `openai` and `anthropic` libraries do it; an engine test holds
ours against them. We do not depend on them: they would hide what they repair.
"""

import json
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from slipstream.measuring.client.sample import ToolCall
from slipstream.records import Record

CUT_OFF = frozenset(("length", "incomplete", "max_tokens"))

CallVerdict = Literal["changed", "tie", "not repeated", "engine"]

_SHOWN_CHARACTERS = 200


class WireError(Exception):
    """An answer that breaks its API's format."""


class ParsedAnswer(Record):
    """A parsed answer; `ending` is the API's own finish reason."""

    reasoning: str = ""
    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    ending: str = ""
    failure: str | None = None

    @property
    def is_cut_off(self) -> bool:
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
        return json.loads(call.arguments)
    except ValueError:
        return call.arguments


class CallDifference(Record):
    """A request that the arms answered differently, and whether speculation is the cause.

    `tie`: the target found both ways equally likely. `not repeated`: both answers are valid, and
    asked again the engine with drafts answered as the one without. `engine`: what came without
    drafts is invalid already.
    """

    request: str
    verdict: CallVerdict
    because: str
    reports: tuple[str, ...]
    plain: ParsedAnswer
    drafted: ParsedAnswer


class CallCheck(Record):
    """The answers of both arms to the same requests, parsed as a client would.

    `plain_invalid` and `drafted_invalid` say by request what is wrong with an answer: arguments
    that are no JSON or do not fit their schema, a stream that breaks off, a server error.
    """

    requests: int
    same: int
    plain_calls: int
    drafted_calls: int
    cut_off: int
    differences: tuple[CallDifference, ...]
    plain_invalid: dict[str, str]
    drafted_invalid: dict[str, str]
    skipped: dict[str, str]

    @property
    def changed(self) -> tuple[CallDifference, ...]:
        return tuple(one for one in self.differences if one.verdict == "changed")


class StreamEvent(NamedTuple):
    """One server-sent event: its name, empty if it has none, and its data."""

    name: str
    data: str

    def read(self) -> dict[str, Any]:
        """Return the data as an object; an error that was sent as one is raised."""
        shown = self.data[:_SHOWN_CHARACTERS]
        try:
            document = json.loads(self.data)
        except ValueError:
            raise WireError(f"an event is not JSON: {shown}") from None
        if not isinstance(document, dict):
            raise WireError(f"an event is not an object: {shown}")
        if self.name == "error" or document.get("type") == "error" or document.get("error"):
            raise WireError(f"an error within the stream: {shown}")
        return document


class EventReader:
    """Splits bytes that may be cut anywhere, at line ends only: data may hold other separators."""

    def __init__(self) -> None:
        self._rest = b""
        self._name = ""
        self._data: list[str] = []

    def take(self, data: bytes) -> Iterator[StreamEvent]:
        """Yield the events that these bytes complete."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            text = line.removesuffix(b"\r").decode(errors="replace")
            field, _, value = text.partition(":")
            if field == "event":
                self._name = value.removeprefix(" ")
            elif field == "data":
                self._data.append(value.removeprefix(" "))
            elif not text and self._data:
                yield StreamEvent(self._name, "\n".join(self._data))
                self._name, self._data = "", []
