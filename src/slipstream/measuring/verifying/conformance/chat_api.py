"""`/v1/chat/completions`: requests, whole answers, and streams assembled delta by delta."""

from typing import Any

from slipstream.measuring.verifying.conformance.answers import ParsedAnswer, ToolCall, WireError
from slipstream.measuring.verifying.conformance.cases import Case, Turn
from slipstream.measuring.verifying.conformance.events import Event
from slipstream.measuring.verifying.regret import PINNED

PATH = "/v1/chat/completions"


def make_body(case: Case) -> dict[str, Any]:
    """Return the fields of a request, without the model and the way of answering."""
    body: dict[str, Any] = {
        "messages": [message for turn in case.turns for message in _list_messages(turn)],
        "max_completion_tokens": case.max_tokens,
        "return_token_ids": True,
        **PINNED,
    }
    if case.tools:
        body["tools"] = [
            {"type": "function", "function": {**tool.describe(), "strict": case.strict}}
            for tool in case.tools
        ]
        named = {"type": "function", "function": {"name": case.choice}}
        body["tool_choice"] = case.choice if case.choice in ("auto", "required") else named
        body["parallel_tool_calls"] = case.parallel
    if case.schema is not None:
        document = {"name": "answer", "schema": case.schema, "strict": True}
        body["response_format"] = {"type": "json_schema", "json_schema": document}
    return body


def _list_messages(turn: Turn) -> list[dict[str, Any]]:
    if isinstance(turn, str):
        return [{"role": "user", "content": turn}]
    calls = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for call in turn
    ]
    results = [{"role": "tool", "tool_call_id": one.id, "content": one.result} for one in turn]
    return [{"role": "assistant", "content": "", "tool_calls": calls}, *results]


def read_whole(document: dict[str, Any]) -> ParsedAnswer:
    """Parse an answer that came at once."""
    choice = document["choices"][0]
    return _read_message(choice["message"], choice["finish_reason"])


def _read_message(message: dict[str, Any], ending: str | None) -> ParsedAnswer:
    return ParsedAnswer(
        reasoning=message.get("reasoning") or message.get("reasoning_content") or "",
        text=message.get("content") or "",
        calls=tuple(
            ToolCall(
                id=call.get("id") or "",
                name=call["function"].get("name") or "",
                arguments=call["function"].get("arguments") or "",
            )
            for call in message.get("tool_calls") or ()
        ),
        ending=ending or "",
    )


class ChatAssembler:
    """Adds deltas as `openai` does: strings are appended, calls are found by their index."""

    def __init__(self) -> None:
        self.prompt_ids: tuple[int, ...] = ()
        self.token_ids: list[int] = []
        self._message: dict[str, Any] = {}
        self._ending: str | None = None
        self._done = False

    def take(self, event: Event) -> None:
        """Add one event."""
        if event.data == "[DONE]":
            self._done = True
            return
        document = event.read()
        self.prompt_ids = tuple(document.get("prompt_token_ids") or self.prompt_ids)
        for choice in document.get("choices") or ():
            add_delta(self._message, choice.get("delta") or {})
            self.token_ids += choice.get("token_ids") or ()
            self._ending = choice.get("finish_reason") or self._ending

    def finish(self) -> ParsedAnswer:
        """Return the message; WireError if the stream broke off before its end."""
        if self._ending is None or not self._done:
            raise WireError("the stream ended without finish_reason and [DONE]")
        return _read_message(self._message, self._ending)


def add_delta(message: dict[str, Any], delta: dict[str, Any]) -> None:
    """Add a delta to a message in place.

    A name or an id that is sent twice is doubled, as it is for every user of the library.
    """
    for key, value in delta.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            entries = message.setdefault(key, [])
            for entry in value:
                _add_entry(entries, entry)
        elif isinstance(value, str) and isinstance(message.get(key), str) and key != "type":
            message[key] += value
        elif isinstance(value, dict) and isinstance(message.get(key), dict):
            add_delta(message[key], value)
        elif value is not None or key not in message:
            message[key] = value


def _add_entry(entries: list[dict[str, Any]], entry: dict[str, Any]) -> None:
    index = entry.get("index")
    if not isinstance(index, int):
        raise WireError(f"a delta of a call has no index: {entry}")
    if index < len(entries):
        add_delta(entries[index], entry)
    else:
        # As the library does it: in the next place, whatever the index.
        entries.append({})
        add_delta(entries[-1], entry)
