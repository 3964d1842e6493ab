"""`/v1/messages`: requests, whole answers, and streams of content blocks."""

import json
from typing import Any

from slipstream.measuring.verifying.conformance.answers import ParsedAnswer, ToolCall, WireError
from slipstream.measuring.verifying.conformance.cases import Case, Turn
from slipstream.measuring.verifying.conformance.events import Event

PATH = "/v1/messages"

# Which field of a content block each kind of delta adds to, and the field that brings it.
_ADDS_TO = {
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "thinking"),
    "input_json_delta": ("json", "partial_json"),
}
_CHOICES = {"auto": "auto", "required": "any"}


def make_body(case: Case) -> dict[str, Any]:
    """Return the fields of a request, without the model and the way of answering."""
    body: dict[str, Any] = {
        "messages": [message for turn in case.turns for message in _list_messages(turn)],
        "max_tokens": case.max_tokens,
    }
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
        kind = _CHOICES.get(case.choice)
        choice = {"type": kind} if kind else {"type": "tool", "name": case.choice}
        body["tool_choice"] = {**choice, "disable_parallel_tool_use": not case.parallel}
    if case.schema is not None:
        body["output_config"] = {"format": {"type": "json_schema", "schema": case.schema}}
    return body


def _list_messages(turn: Turn) -> list[dict[str, Any]]:
    if isinstance(turn, str):
        return [{"role": "user", "content": turn}]
    used = [
        {
            "type": "tool_use",
            "id": call.id,
            "name": call.name,
            "input": json.loads(call.arguments),
        }
        for call in turn
    ]
    results = [
        {"type": "tool_result", "tool_use_id": call.id, "content": call.result} for call in turn
    ]
    return [{"role": "assistant", "content": used}, {"role": "user", "content": results}]


def read_whole(document: dict[str, Any]) -> ParsedAnswer:
    """Parse a message that came at once; its arguments are an object already."""
    blocks = [
        {**block, "json": json.dumps(block["input"], ensure_ascii=False)}
        if block["type"] == "tool_use"
        else block
        for block in document["content"]
    ]
    return _read_blocks(blocks, document.get("stop_reason"))


def _read_blocks(blocks: list[dict[str, Any]], ending: str | None) -> ParsedAnswer:
    return ParsedAnswer(
        reasoning="".join(one["thinking"] for one in blocks if one["type"] == "thinking"),
        text="".join(one["text"] for one in blocks if one["type"] == "text"),
        calls=tuple(
            ToolCall(id=one.get("id") or "", name=one.get("name") or "", arguments=one["json"])
            for one in blocks
            if one["type"] == "tool_use"
        ),
        ending=ending or "",
    )


class MessagesAssembler:
    """Adds deltas as `anthropic` does; arguments must be whole JSON, where it takes a part."""

    prompt_ids: tuple[int, ...] = ()
    token_ids: tuple[int, ...] = ()

    def __init__(self) -> None:
        self._blocks: list[dict[str, Any]] = []
        self._open: set[int] = set()
        self._ending: str | None = None
        self._begun = self._stopped = False

    def take(self, event: Event) -> None:
        """Add one event."""
        document = event.read()
        kind = document.get("type", "")
        if kind == "message_start":
            self._begun = True
        elif not self._begun:
            raise WireError(f"{kind} came before message_start")
        elif kind == "content_block_start":
            self._start(document)
        elif kind == "content_block_delta":
            self._add(document)
        elif kind == "content_block_stop":
            self._open.discard(document["index"])
        elif kind == "message_delta":
            self._ending = document["delta"].get("stop_reason")
        elif kind == "message_stop":
            self._stopped = True

    def _start(self, document: dict[str, Any]) -> None:
        if document["index"] != len(self._blocks):
            raise WireError(f"block {document['index']} began in place {len(self._blocks)}")
        self._open.add(document["index"])
        self._blocks.append({**document["content_block"], "json": ""})

    def _add(self, document: dict[str, Any]) -> None:
        delta = document["delta"]
        if delta["type"] not in _ADDS_TO:
            return
        field, source = _ADDS_TO[delta["type"]]
        if document["index"] not in self._open:
            raise WireError(f"a delta for block {document['index']}, which is not open")
        block = self._blocks[document["index"]]
        if field not in block:
            raise WireError(f"{delta['type']} for a block of {block['type']}")
        block[field] += delta[source]

    def finish(self) -> ParsedAnswer:
        """Return the message; WireError if the stream broke off before its end."""
        if not self._stopped or self._open:
            raise WireError("the stream ended without message_stop")
        for block in self._blocks:
            if block["type"] == "tool_use" and not block["json"]:
                block["json"] = json.dumps(block.get("input") or {}, ensure_ascii=False)
        return _read_blocks(self._blocks, self._ending)
