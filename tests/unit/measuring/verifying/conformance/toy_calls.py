"""Answers with tool calls as vLLM sends them over its three APIs, whole or in chunks."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

CHUNK = 5


@dataclass(frozen=True, slots=True)
class ToyAnswer:
    """What a model said: reasoning, text and calls, in this order."""

    reasoning: str = ""
    text: str = ""
    calls: Sequence[tuple[str, str]] = ()
    cut_off: bool = False

    def list_parts(self) -> list[tuple[str, str, str]]:
        """Return kind, name and content of each part that is there."""
        parts = [("reasoning", "", self.reasoning), ("text", "", self.text)]
        parts += [("call", name, arguments) for name, arguments in self.calls]
        return [part for part in parts if part[2] or part[0] == "call"]


def fill(schema: dict[str, Any]) -> Any:
    """Return a value that fits one of our schemas."""
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema["type"]
    if kind == "object":
        return {name: fill(one) for name, one in schema["properties"].items()}
    if kind == "array":
        return [fill(schema["items"]) for _ in range(schema["minItems"])]
    return {"string": "é", "integer": schema.get("minimum", 1), "number": 1.5, "boolean": True}.get(
        kind if isinstance(kind, str) else kind[0]
    )


def make_answer(body: dict[str, Any]) -> ToyAnswer:
    """Do as a request asks: call the tool that is forced, or two if any, or fill the schema."""
    formats = (
        body.get("response_format", {}).get("json_schema", {}),
        body.get("text", {}).get("format", {}),
        body.get("output_config", {}).get("format", {}),
    )
    schema = next((one["schema"] for one in formats if one), None)
    if schema is not None:
        return ToyAnswer(text=json.dumps(fill(schema), ensure_ascii=False))
    tools = [one.get("function", one) for one in body["tools"]]
    schemas = {one["name"]: one.get("parameters") or one["input_schema"] for one in tools}
    name = find_forced(body) or next(iter(schemas))
    arguments = json.dumps(fill(schemas[name]), ensure_ascii=False)
    if body["tool_choice"] in ("auto", {"type": "auto", "disable_parallel_tool_use": False}):
        return ToyAnswer(text="I look it up. ", calls=[(name, arguments)])
    single = body.get("parallel_tool_calls") is False or find_forced(body)
    return ToyAnswer(calls=[(name, arguments)] * (1 if single else 2))


def find_forced(body: dict[str, Any]) -> str | None:
    choice = body["tool_choice"]
    if not isinstance(choice, dict):
        return None
    name: str | None = choice.get("name") or choice.get("function", {}).get("name")
    return name


def encode(text: str) -> list[int]:
    """Make tokens of a text that the toy engine can judge."""
    return [1 + ord(letter) % 23 for letter in text]


def cut(text: str, sizes: int | Sequence[int]) -> Iterator[str]:
    """Cut a text into pieces of these sizes, over and over."""
    at, turn, steps = 0, 0, [sizes] if isinstance(sizes, int) else list(sizes)
    while at < len(text):
        yield text[at : at + steps[turn % len(steps)]]
        at, turn = at + steps[turn % len(steps)], turn + 1


def write_whole(path: str, answer: ToyAnswer, prompt: list[int]) -> dict[str, Any]:
    """Return the answer as one document."""
    if path == "/v1/messages":
        return {"content": _list_blocks(answer), "stop_reason": _end(path, answer)}
    if path == "/v1/responses":
        return {"id": "resp_1", "status": _end(path, answer), "output": _list_items(answer)}
    calls = [
        {"id": f"call_{at}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for at, (name, arguments) in enumerate(answer.calls)
    ]
    message = {"content": answer.text or None, "reasoning": answer.reasoning, "tool_calls": calls}
    tokens = encode("".join(part[2] for part in answer.list_parts()))
    choice = {"message": message, "finish_reason": _end(path, answer), "token_ids": tokens}
    return {"choices": [choice], "prompt_token_ids": prompt}


def write_stream(
    path: str, answer: ToyAnswer, prompt: list[int], sizes: int | Sequence[int] = CHUNK
) -> str:
    """Return the answer as server-sent events, its text cut into pieces of the sizes."""
    if path == "/v1/messages":
        return "".join(_write(told["type"], told) for told in _stream_blocks(answer, sizes))
    if path == "/v1/responses":
        return "".join(_write(told["type"], told) for told in _stream_items(answer, sizes))
    chunks = _stream_chat(answer, prompt, sizes)
    return "".join(_write("", told) for told in chunks) + "data: [DONE]\n\n"


def _write(name: str, told: dict[str, Any]) -> str:
    # Not escaped, as pydantic writes it.
    data = json.dumps(told, ensure_ascii=False)
    return f"event: {name}\ndata: {data}\n\n" if name else f"data: {data}\n\n"


def _end(path: str, answer: ToyAnswer) -> str:
    if path == "/v1/responses":
        return "incomplete" if answer.cut_off else "completed"
    length, called, stop = {
        "/v1/messages": ("max_tokens", "tool_use", "end_turn"),
        "/v1/chat/completions": ("length", "tool_calls", "stop"),
    }[path]
    return length if answer.cut_off else called if answer.calls else stop


def _stream_chat(
    answer: ToyAnswer, prompt: list[int], sizes: int | Sequence[int]
) -> Iterator[dict[str, Any]]:
    def chunk(delta: dict[str, Any], tokens: str = "", ending: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": ending, "token_ids": encode(tokens)}
        about = {"id": "chat_1", "object": "chat.completion.chunk", "created": 1, "model": "toy"}
        return {**about, "choices": [choice]}

    yield {**chunk({"role": "assistant", "content": ""}), "prompt_token_ids": prompt}
    calls = 0
    for kind, name, content in answer.list_parts():
        if kind != "call":
            field = "content" if kind == "text" else kind
            yield from (chunk({field: piece}, piece) for piece in cut(content, sizes))
            continue
        head = {"id": f"call_{calls}", "type": "function", "index": calls}
        yield chunk({"tool_calls": [{**head, "function": {"name": name, "arguments": ""}}]})
        for piece in cut(content, sizes):
            function = {"arguments": piece}
            yield chunk({"tool_calls": [{"index": calls, "function": function}]}, piece)
        calls += 1
    yield chunk({}, ending=_end("/v1/chat/completions", answer))


def _list_items(answer: ToyAnswer) -> list[dict[str, Any]]:
    return [_make_item(at, *part) for at, part in enumerate(answer.list_parts())]


def _make_item(at: int, kind: str, name: str, content: str) -> dict[str, Any]:
    if kind == "call":
        call = {"call_id": f"call_{at}", "name": name, "arguments": content}
        return {"type": "function_call", "id": f"fc_{at}", "status": "completed", **call}
    if kind == "reasoning":
        part = {"type": "reasoning_text", "text": content}
        return {"type": "reasoning", "id": f"rs_{at}", "summary": [], "content": [part]}
    text = {"type": "output_text", "text": content, "annotations": []}
    about = {"role": "assistant", "status": "completed"}
    return {"type": "message", "id": f"msg_{at}", **about, "content": [text]}


def _stream_items(answer: ToyAnswer, sizes: int | Sequence[int]) -> Iterator[dict[str, Any]]:
    about = {
        **{"id": "resp_1", "object": "response", "created_at": 1, "model": "toy", "tools": []},
        **{"parallel_tool_calls": True, "tool_choice": "auto", "output": []},
    }
    yield {"type": "response.created", "response": {**about, "status": "in_progress"}}
    items = _list_items(answer)
    for at, (kind, _, content) in enumerate(answer.list_parts()):
        item, place = items[at], {"output_index": at, "item_id": items[at]["id"]}
        empty: dict[str, Any] = {"arguments": ""} if kind == "call" else {"content": []}
        yield {"type": "response.output_item.added", **place, "item": {**item, **empty}}
        deltas = {"call": "function_call_arguments", "text": "output_text"}
        delta = {"type": f"response.{deltas.get(kind, 'reasoning_text')}.delta", **place}
        if kind != "call":
            place["content_index"] = delta["content_index"] = 0
            part = {**item["content"][0], "text": ""}
            yield {"type": "response.content_part.added", **place, "part": part}
        if kind == "text":
            delta["logprobs"] = []
        yield from ({**delta, "delta": piece} for piece in cut(content, sizes))
        yield {"type": "response.output_item.done", **place, "item": item}
    ending = {"status": _end("/v1/responses", answer), "output": items}
    yield {"type": "response.completed", "response": {**about, **ending}}


def _list_blocks(answer: ToyAnswer) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    for at, (kind, name, content) in enumerate(answer.list_parts()):
        if kind == "call":
            used = {"id": f"toolu_{at}", "name": name, "input": json.loads(content)}
            blocks.append({"type": "tool_use", **used})
        elif kind == "reasoning":
            blocks.append({"type": "thinking", "thinking": content, "signature": "s"})
        else:
            blocks.append({"type": "text", "text": content})
    return blocks


def _stream_blocks(answer: ToyAnswer, sizes: int | Sequence[int]) -> Iterator[dict[str, Any]]:
    usage = {"input_tokens": 1, "output_tokens": 1}
    about = {"id": "msg_1", "type": "message", "role": "assistant", "model": "toy"}
    yield {"type": "message_start", "message": {**about, "content": [], "usage": usage}}
    empty: dict[str, dict[str, Any]] = {
        "call": {"input": {}},
        "text": {"text": ""},
        "reasoning": {"thinking": ""},
    }
    deltas = {"call": "input_json", "text": "text", "reasoning": "thinking"}
    fields = {"call": "partial_json"}
    for at, (kind, name, content) in enumerate(answer.list_parts()):
        block = {"type": {"call": "tool_use", "reasoning": "thinking"}.get(kind, kind)}
        named = {"id": f"toolu_{at}", "name": name} if kind == "call" else {}
        start = {**block, **named, **empty[kind]}
        yield {"type": "content_block_start", "index": at, "content_block": start}
        for piece in cut(content, sizes):
            delta = {"type": f"{deltas[kind]}_delta", fields.get(kind, deltas[kind]): piece}
            yield {"type": "content_block_delta", "index": at, "delta": delta}
        yield {"type": "content_block_stop", "index": at}
    ending = {"stop_reason": _end("/v1/messages", answer), "stop_sequence": None}
    yield {"type": "message_delta", "delta": ending, "usage": usage}
    yield {"type": "message_stop"}
