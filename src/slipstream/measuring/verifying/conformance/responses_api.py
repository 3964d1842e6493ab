"""`/v1/responses`: requests, whole answers, and streams of typed events.

The library returns the response of the last event, agents such as Codex use each finished item,
and what is shown meanwhile comes from the deltas. All three must agree.
"""

from typing import Any

from slipstream.measuring.verifying.conformance.answers import ParsedAnswer, ToolCall, WireError
from slipstream.measuring.verifying.conformance.cases import Case, Turn
from slipstream.measuring.verifying.conformance.events import Event
from slipstream.measuring.verifying.regret import PINNED

PATH = "/v1/responses"

Item = dict[str, Any]


def make_body(case: Case) -> dict[str, Any]:
    """Return the fields of a request, without the model and the way of answering."""
    body: dict[str, Any] = {
        "input": [item for turn in case.turns for item in _list_items(turn)],
        "max_output_tokens": case.max_tokens,
        "store": False,
        **PINNED,
    }
    if case.tools:
        body["tools"] = [
            {"type": "function", **tool.describe(), "strict": case.strict} for tool in case.tools
        ]
        named = {"type": "function", "name": case.choice}
        body["tool_choice"] = case.choice if case.choice in ("auto", "required") else named
        body["parallel_tool_calls"] = case.parallel
    if case.schema is not None:
        document = {"type": "json_schema", "name": "answer", "schema": case.schema, "strict": True}
        body["text"] = {"format": document}
    return body


def _list_items(turn: Turn) -> list[Item]:
    if isinstance(turn, str):
        return [{"role": "user", "content": turn}]
    calls: list[Item] = [
        {
            "type": "function_call",
            "call_id": call.id,
            "name": call.name,
            "arguments": call.arguments,
        }
        for call in turn
    ]
    return [
        *calls,
        *(
            {"type": "function_call_output", "call_id": call.id, "output": call.result}
            for call in turn
        ),
    ]


def read_whole(document: dict[str, Any]) -> ParsedAnswer:
    """Parse a response object."""
    if document.get("status") not in ("completed", "incomplete"):
        raise WireError(f"the response is {document.get('status')}")
    return _read_items(document["output"], document["status"])


def _read_items(items: list[Item], ending: str) -> ParsedAnswer:
    return ParsedAnswer(
        reasoning=_join_texts(items, "reasoning"),
        text=_join_texts(items, "message"),
        calls=tuple(
            ToolCall(
                id=item.get("call_id") or "",
                name=item.get("name") or "",
                arguments=item.get("arguments") or "",
            )
            for item in items
            if item["type"] == "function_call"
        ),
        ending=ending,
    )


def _join_texts(items: list[Item], kind: str) -> str:
    parts = [part for item in items if item["type"] == kind for part in item.get("content") or ()]
    return "".join(part.get("text") or "" for part in parts)


class ResponsesAssembler:
    """Follows the events of one response."""

    prompt_ids: tuple[int, ...] = ()
    token_ids: tuple[int, ...] = ()

    def __init__(self) -> None:
        self._items: list[Item] = []
        self._done: dict[int, Item] = {}
        self._response: dict[str, Any] | None = None

    def take(self, event: Event) -> None:
        """Add one event."""
        if event.data == "[DONE]":
            return
        document = event.read()
        kind = document.get("type", "")
        if kind in ("response.completed", "response.incomplete"):
            self._response = document["response"]
        elif kind == "response.failed":
            raise WireError(f"the response failed: {document['response'].get('error')}")
        elif kind == "response.output_item.added":
            if document["output_index"] != len(self._items):
                raise WireError(
                    f"item {document['output_index']} was added in place {len(self._items)}"
                )
            self._items.append(dict(document["item"]))
        elif kind == "response.output_item.done":
            self._done[document["output_index"]] = document["item"]
        else:
            self._take_part(kind, document)

    def _take_part(self, kind: str, document: dict[str, Any]) -> None:
        if kind == "response.content_part.added":
            item = self._find(document)
            item["content"] = [*(item.get("content") or ()), dict(document["part"])]
        elif kind in ("response.output_text.delta", "response.reasoning_text.delta"):
            part = self._find(document)["content"][document["content_index"]]
            part["text"] = (part.get("text") or "") + document["delta"]
        elif kind == "response.function_call_arguments.delta":
            item = self._find(document)
            item["arguments"] = (item.get("arguments") or "") + document["delta"]

    def _find(self, document: dict[str, Any]) -> Item:
        item: Item = self._items[document["output_index"]]
        if item.get("id") != document.get("item_id"):
            raise WireError(
                f"{document['type']} is for item {document.get('item_id')}, which is not open"
            )
        return item

    def finish(self) -> ParsedAnswer:
        """Return the response; WireError if it never came or the events contradict it."""
        if self._response is None:
            raise WireError("the stream ended without response.completed")
        answer = read_whole(self._response)
        done = [self._done[place] for place in sorted(self._done)]
        for source, items in (("deltas", self._items), ("finished items", done)):
            if _read_items(items, answer.ending) != answer:
                raise WireError(f"the {source} are not what response.completed says: {items}")
        return answer
