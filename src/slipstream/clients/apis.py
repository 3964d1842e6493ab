"""The three APIs that clients use: their requests with a tool, and their streams.

Only what clients depend on is read: text, tool calls, the end, and the tokens of the prompt.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Json = dict[str, Any]
Choose = Literal["auto", "forced"]

COUNT_PATH = "/v1/messages/count_tokens"
TOOL = "set_unit"
# Strict, as vLLM has other arguments be any JSON; the enumeration bounds what can come.
SCHEMA: Json = {
    "type": "object",
    "properties": {"unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}},
    "required": ["unit"],
    "additionalProperties": False,
}
_FUNCTION: Json = {"name": TOOL, "description": "Set the unit of temperatures.", "strict": True}


@dataclass(slots=True)
class Streamed:
    text: str = ""
    names: list[str] = field(default_factory=list)
    arguments: dict[Any, str] = field(default_factory=dict)
    prompt_tokens: int | None = None
    complete: bool = False
    error: str | None = None

    def find_call_fault(self) -> str | None:
        """Return what keeps the stream from being one call of the tool; None if it is."""
        if not self.names:
            return f"no tool call, only the text {self.text[:80]!r}"
        if self.names != [TOOL]:
            return f"{', '.join(self.names)} was called instead of {TOOL}"
        try:
            given = json.loads("".join(self.arguments.values()))
        except ValueError:
            return f"its arguments are not JSON: {''.join(self.arguments.values())[:80]!r}"
        allowed = SCHEMA["properties"]["unit"]["enum"]
        fits = isinstance(given, dict) and given.keys() == {"unit"} and given["unit"] in allowed
        return None if fits else f"its arguments break the schema: {json.dumps(given)[:80]}"


def _offer(choose: Choose | None, tool: Json, named: Json) -> Json:
    """Return a request's part about the tool, if there is to be one."""
    forced = {"tool_choice": named} if choose == "forced" else {}
    return {"tools": [tool], **forced} if choose else {}


class ChatCompletions:
    """OpenAI's Chat Completions, used by most clients."""

    path = "/v1/chat/completions"

    def ask(self, text: str, tokens: int, choose: Choose | None = None) -> Json:
        tool = {"type": "function", "function": {**_FUNCTION, "parameters": SCHEMA}}
        return {
            "messages": [{"role": "user", "content": text}],
            "max_tokens": tokens,
            "stream_options": {"include_usage": True},
            **_offer(choose, tool, {"type": "function", "function": {"name": TOOL}}),
        }

    def read(self, streamed: Streamed, event: Mapping[str, Any]) -> None:
        if usage := event.get("usage"):
            streamed.prompt_tokens = usage["prompt_tokens"]
        for choice in event["choices"]:
            delta = choice["delta"]
            streamed.text += delta.get("content") or ""
            for call in delta.get("tool_calls") or ():
                function, number = call["function"], call["index"]
                if function.get("name"):
                    streamed.names.append(function["name"])
                piece = function.get("arguments") or ""
                streamed.arguments[number] = streamed.arguments.get(number, "") + piece
            streamed.complete = streamed.complete or choice.get("finish_reason") is not None


class Responses:
    """OpenAI's Responses, used by Codex."""

    path = "/v1/responses"

    def ask(self, text: str, tokens: int, choose: Choose | None = None) -> Json:
        tool = {"type": "function", **_FUNCTION, "parameters": SCHEMA}
        named = {"type": "function", "name": TOOL}
        common = {"input": text, "max_output_tokens": tokens, "store": False}
        return {**common, **_offer(choose, tool, named)}

    def read(self, streamed: Streamed, event: Mapping[str, Any]) -> None:
        kind = event["type"]
        if kind == "response.output_text.delta":
            streamed.text += event["delta"]
        elif kind == "response.output_item.done" and event["item"]["type"] == "function_call":
            streamed.names.append(event["item"]["name"])
            streamed.arguments[event["item"]["call_id"]] = event["item"]["arguments"]
        elif kind in ("response.completed", "response.incomplete"):
            streamed.prompt_tokens = event["response"]["usage"]["input_tokens"]
            streamed.complete = True
        elif kind in ("response.failed", "error"):
            streamed.error = json.dumps(event)


class Messages:
    """Anthropic's Messages, used by Claude Code."""

    path = "/v1/messages"

    def ask(self, text: str, tokens: int, choose: Choose | None = None) -> Json:
        offer = _offer(
            choose, {**_FUNCTION, "input_schema": SCHEMA}, {"type": "tool", "name": TOOL}
        )
        return {"messages": [{"role": "user", "content": text}], "max_tokens": tokens, **offer}

    def read(self, streamed: Streamed, event: Mapping[str, Any]) -> None:
        kind = event["type"]
        if kind == "message_start":
            streamed.prompt_tokens = _count_prompt(event["message"]["usage"])
        elif kind == "content_block_start" and event["content_block"]["type"] == "tool_use":
            streamed.names.append(event["content_block"]["name"])
            streamed.arguments[event["index"]] = ""
        elif kind == "content_block_delta" and event["delta"]["type"] == "text_delta":
            streamed.text += event["delta"]["text"]
        elif kind == "content_block_delta" and event["delta"]["type"] == "input_json_delta":
            streamed.arguments[event["index"]] += event["delta"]["partial_json"]
        elif kind == "message_delta":
            usage = event.get("usage") or {}
            streamed.prompt_tokens = _count_prompt(usage) or streamed.prompt_tokens
        elif kind == "message_stop":
            streamed.complete = True
        elif kind == "error":
            streamed.error = json.dumps(event["error"])


def _count_prompt(usage: Mapping[str, Any]) -> int:
    """Return the tokens of a prompt: Anthropic's count leaves out those that the cache held."""
    parts = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    return sum(usage.get(part) or 0 for part in parts)


# Each has a route, makes request bodies without the model's name and the stream flag, and reads
# the events of a stream; one of another form raises KeyError and the like.
Api = ChatCompletions | Responses | Messages
