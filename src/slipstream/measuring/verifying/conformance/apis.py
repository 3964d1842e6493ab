"""The three APIs: requests, whole answers, and streams assembled event by event.

An instance of an API assembles one stream. `/v1/responses` says the same thrice, and all three must
agree: the library returns the response of the last event, agents such as Codex use each finished
item, and what is shown meanwhile comes from the deltas.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

from slipstream.measuring.client.sample import ToolCall
from slipstream.measuring.verifying.conformance.answers import ParsedAnswer, StreamEvent, WireError
from slipstream.measuring.verifying.conformance.cases import ApiName, Case, EarlierCall
from slipstream.measuring.verifying.regret import PINNED

Json = dict[str, Any]


def _list_turns(
    case: Case, list_calls: Callable[[Sequence[EarlierCall]], list[Json]]
) -> list[Json]:
    """Return the messages of a case; `list_calls` writes earlier calls with their results."""
    turns = [
        [{"role": "user", "content": turn}] if isinstance(turn, str) else list_calls(turn)
        for turn in case.turns
    ]
    return [message for turn in turns for message in turn]


def _choose_tool(case: Case, named: Json) -> Json:
    choice = case.choice if case.choice in ("auto", "required") else named
    return {"tool_choice": choice, "parallel_tool_calls": case.parallel}


class ChatApi:
    """Adds deltas as `openai` does: strings are appended, calls are found by their index."""

    path = "/v1/chat/completions"

    def __init__(self) -> None:
        self.prompt_ids: tuple[int, ...] = ()
        self.token_ids: list[int] = []
        self._message: Json = {}
        self._ending: str | None = None
        self._done = False

    @staticmethod
    def _list_calls(calls: Sequence[EarlierCall]) -> list[Json]:
        tool_calls = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in calls
        ]
        results = [{"role": "tool", "tool_call_id": one.id, "content": one.result} for one in calls]
        return [{"role": "assistant", "content": "", "tool_calls": tool_calls}, *results]

    @classmethod
    def make_body(cls, case: Case) -> Json:
        """Return the fields of a request, without the model and the way of answering."""
        body: Json = {
            "messages": _list_turns(case, cls._list_calls),
            "max_completion_tokens": case.max_tokens,
            "return_token_ids": True,
            **PINNED,
        }
        if case.tools:
            body["tools"] = [
                {"type": "function", "function": {**tool.describe(), "strict": case.strict}}
                for tool in case.tools
            ]
            body |= _choose_tool(case, {"type": "function", "function": {"name": case.choice}})
        if case.schema is not None:
            document = {"name": "answer", "schema": case.schema, "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": document}
        return body

    @staticmethod
    def read_whole(document: Json) -> ParsedAnswer:
        choice = document["choices"][0]
        return _read_message(choice["message"], choice["finish_reason"])

    def take(self, event: StreamEvent) -> None:
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
        if self._ending is None or not self._done:
            raise WireError("the stream ended without finish_reason and [DONE]")
        return _read_message(self._message, self._ending)


def _read_message(message: Json, ending: str | None) -> ParsedAnswer:
    reasoning = message.get("reasoning") or message.get("reasoning_content")
    calls = [{**call, **call["function"]} for call in message.get("tool_calls") or ()]
    return _make_answer(reasoning, message.get("content"), calls, ending)


def _make_answer(
    reasoning: str | None, text: str | None, calls: Sequence[Json], ending: str | None
) -> ParsedAnswer:
    """Return an answer in one form for all APIs; what is missing is empty."""
    tool_calls = [{name: call.get(name) or "" for name in ToolCall.model_fields} for call in calls]
    return ParsedAnswer(
        reasoning=reasoning or "",
        text=text or "",
        calls=tuple(ToolCall(**call) for call in tool_calls),
        ending=ending or "",
    )


def add_delta(message: Json, delta: Json) -> None:
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


def _add_entry(entries: list[Json], entry: Json) -> None:
    index = entry.get("index")
    if not isinstance(index, int):
        raise WireError(f"a delta of a call has no index: {entry}")
    if index >= len(entries):
        # As the library does it: in the next place, whatever the index.
        index = len(entries)
        entries.append({})
    add_delta(entries[index], entry)


class ResponsesApi:
    """Follows the events of one response."""

    path = "/v1/responses"
    prompt_ids: Sequence[int] = ()
    token_ids: Sequence[int] = ()

    def __init__(self) -> None:
        self._items: list[Json] = []
        self._done: dict[int, Json] = {}
        self._response: Json | None = None

    @staticmethod
    def _list_calls(calls: Sequence[EarlierCall]) -> list[Json]:
        tool_calls: list[Json] = [
            {
                "type": "function_call",
                "call_id": call.id,
                "name": call.name,
                "arguments": call.arguments,
            }
            for call in calls
        ]
        return tool_calls + [
            {"type": "function_call_output", "call_id": call.id, "output": call.result}
            for call in calls
        ]

    @classmethod
    def make_body(cls, case: Case) -> Json:
        body: Json = {
            "input": _list_turns(case, cls._list_calls),
            "max_output_tokens": case.max_tokens,
            "store": False,
            **PINNED,
        }
        if case.tools:
            body["tools"] = [
                {"type": "function", **tool.describe(), "strict": case.strict}
                for tool in case.tools
            ]
            body |= _choose_tool(case, {"type": "function", "name": case.choice})
        if case.schema is not None:
            named = {"name": "answer", "schema": case.schema, "strict": True}
            body["text"] = {"format": {"type": "json_schema", **named}}
        return body

    @staticmethod
    def read_whole(document: Json) -> ParsedAnswer:
        if document.get("status") not in ("completed", "incomplete"):
            raise WireError(f"the response is {document.get('status')}")
        return _read_items(document["output"], document["status"])

    def take(self, event: StreamEvent) -> None:
        if event.data == "[DONE]":
            return
        document = event.read()
        kind = document.get("type", "").removeprefix("response.")
        if kind in ("completed", "incomplete"):
            self._response = document["response"]
        elif kind == "failed":
            raise WireError(f"the response failed: {document['response'].get('error')}")
        elif kind == "output_item.added":
            place = document["output_index"]
            if place != len(self._items):
                raise WireError(f"item {place} was added in place {len(self._items)}")
            self._items.append(dict(document["item"]))
        elif kind == "output_item.done":
            self._done[document["output_index"]] = document["item"]
        elif kind == "content_part.added":
            item = self._find(document)
            item["content"] = [*(item.get("content") or ()), dict(document["part"])]
        elif kind in ("output_text.delta", "reasoning_text.delta"):
            part = self._find(document)["content"][document["content_index"]]
            part["text"] = (part.get("text") or "") + document["delta"]
        elif kind == "function_call_arguments.delta":
            item = self._find(document)
            item["arguments"] = (item.get("arguments") or "") + document["delta"]

    def _find(self, document: Json) -> Json:
        item = self._items[document["output_index"]]
        if item.get("id") != document.get("item_id"):
            raise WireError(
                f"{document['type']} is for item {document.get('item_id')}, which is not open"
            )
        return item

    def finish(self) -> ParsedAnswer:
        """Return the response; the events must not contradict it."""
        if self._response is None:
            raise WireError("the stream ended without response.completed")
        answer = self.read_whole(self._response)
        done = [self._done[place] for place in sorted(self._done)]
        for source, items in (("deltas", self._items), ("finished items", done)):
            if _read_items(items, answer.ending) != answer:
                raise WireError(f"the {source} are not what response.completed says: {items}")
        return answer


def _read_items(items: list[Json], ending: str) -> ParsedAnswer:
    def join(kind: str) -> str:
        own = [part for one in items if one["type"] == kind for part in one.get("content") or ()]
        return "".join(part.get("text") or "" for part in own)

    calls = [{**one, "id": one.get("call_id")} for one in items if one["type"] == "function_call"]
    return _make_answer(join("reasoning"), join("message"), calls, ending)


# Which field of a content block each kind of delta adds to, and the field that brings it.
_ADDS_TO = {
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "thinking"),
    "input_json_delta": ("json", "partial_json"),
}


class MessagesApi:
    """Adds deltas as `anthropic` does; arguments must be whole JSON, where it takes a part."""

    path = "/v1/messages"
    prompt_ids: Sequence[int] = ()
    token_ids: Sequence[int] = ()

    def __init__(self) -> None:
        self._blocks: list[Json] = []
        self._open: set[int] = set()
        self._ending: str | None = None
        self._begun = self._stopped = False

    @staticmethod
    def _list_calls(calls: Sequence[EarlierCall]) -> list[Json]:
        used = [
            {
                "type": "tool_use",
                "id": call.id,
                "name": call.name,
                "input": json.loads(call.arguments),
            }
            for call in calls
        ]
        results = [
            {"type": "tool_result", "tool_use_id": call.id, "content": call.result}
            for call in calls
        ]
        return [{"role": "assistant", "content": used}, {"role": "user", "content": results}]

    @classmethod
    def make_body(cls, case: Case) -> Json:
        turns = _list_turns(case, cls._list_calls)
        body: Json = {"messages": turns, "max_tokens": case.max_tokens}
        if case.tools:
            body["tools"] = [
                {
                    "name": tool.name,
                    "description": tool.description,
                    "input_schema": tool.schema,
                    "strict": case.strict,
                }
                for tool in case.tools
            ]
            kind = {"auto": "auto", "required": "any"}.get(case.choice)
            choice = {"type": kind} if kind else {"type": "tool", "name": case.choice}
            body["tool_choice"] = {**choice, "disable_parallel_tool_use": not case.parallel}
        if case.schema is not None:
            body["output_config"] = {"format": {"type": "json_schema", "schema": case.schema}}
        return body

    @staticmethod
    def read_whole(document: Json) -> ParsedAnswer:
        """Parse a message that came at once; its arguments are an object already."""
        blocks = [
            {**block, "json": json.dumps(block["input"], ensure_ascii=False)}
            if block["type"] == "tool_use"
            else block
            for block in document["content"]
        ]
        return _read_blocks(blocks, document.get("stop_reason"))

    def take(self, event: StreamEvent) -> None:
        document = event.read()
        kind = document.get("type", "")
        if kind == "message_start":
            self._begun = True
        elif not self._begun:
            raise WireError(f"{kind} came before message_start")
        elif kind == "content_block_start":
            if document["index"] != len(self._blocks):
                raise WireError(f"block {document['index']} began in place {len(self._blocks)}")
            self._open.add(document["index"])
            self._blocks.append({**document["content_block"], "json": ""})
        elif kind == "content_block_delta":
            self._add(document["index"], document["delta"])
        elif kind == "content_block_stop":
            self._open.discard(document["index"])
        elif kind == "message_delta":
            self._ending = document["delta"].get("stop_reason")
        elif kind == "message_stop":
            self._stopped = True

    def _add(self, index: int, delta: Json) -> None:
        if delta["type"] not in _ADDS_TO:
            return
        field, source = _ADDS_TO[delta["type"]]
        if index not in self._open:
            raise WireError(f"a delta for block {index}, which is not open")
        block = self._blocks[index]
        if field not in block:
            raise WireError(f"{delta['type']} for a block of {block['type']}")
        block[field] += delta[source]

    def finish(self) -> ParsedAnswer:
        if not self._stopped or self._open:
            raise WireError("the stream ended without message_stop")
        for block in self._blocks:
            if block["type"] == "tool_use" and not block["json"]:
                block["json"] = json.dumps(block.get("input") or {}, ensure_ascii=False)
        return _read_blocks(self._blocks, self._ending)


def _read_blocks(blocks: list[Json], ending: str | None) -> ParsedAnswer:
    def join(kind: str, field: str) -> str:
        return "".join(one[field] for one in blocks if one["type"] == kind)

    calls = [{**one, "arguments": one["json"]} for one in blocks if one["type"] == "tool_use"]
    return _make_answer(join("thinking", "thinking"), join("text", "text"), calls, ending)


Api = type[ChatApi] | type[ResponsesApi] | type[MessagesApi]
APIS: dict[ApiName, Api] = {"chat": ChatApi, "responses": ResponsesApi, "messages": MessagesApi}
