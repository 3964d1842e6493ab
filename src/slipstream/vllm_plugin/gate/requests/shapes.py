"""The shape of turns and tools, checked before vLLM, whose own check of a faulty list is costly.

vLLM 0.32 tries all types that an entry may have and lists every error: an item of a response makes
236. 4,000 faulty ones, in 52 kB, took 20 s of the API server and 5 GB. Here vLLM is asked about one
entry at a time, if it is not plainly sound, and the first faulty one ends the request.
"""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from slipstream.vllm_plugin.gate.answers import Refusal
from slipstream.vllm_plugin.gate.requests.limits import Document, walk
from slipstream.vllm_plugin.gate.routes import MESSAGES, RESPONSES

Item = dict[str, Any]
Judge = Callable[[Item], object]

CHAT = "/v1/chat/completions"
# Where an API has lists of objects; a chat's `content` may have bare texts as well.
OBJECTS = ("messages", "system", "tools", "previous_input_messages")
FURTHER = {CHAT: ("documents",), RESPONSES: ("input",)}
WITHIN = ("content", "output", "summary", "tools", "tool_calls")
STRICT = (MESSAGES, f"{MESSAGES}/count_tokens", RESPONSES)
# The list that vLLM judges by many types, and the class that does.
JUDGED = {
    CHAT: ("messages", "vllm.entrypoints.openai.chat_completion.protocol", "ChatCompletionRequest"),
    RESPONSES: ("input", "vllm.entrypoints.openai.responses.protocol", "ResponsesRequest"),
}
_STATUSES = ("in_progress", "completed", "incomplete")
# Fields that are text: those that may be there, and those that must.
_OPTIONAL = {"type", "id", "status"}
_NEEDED = {
    "function_call": {"call_id", "name", "arguments"},
    "function_call_output": {"call_id", "output"},
    "message": {"role", "content"},
}
_PARTS = {
    **dict.fromkeys(("user", "system", "developer"), "input_text"),
    "assistant": "output_text",
}
_ROLES = {*_PARTS, "tool"}
# The others vLLM 0.32 refuses after all, when it makes turns of them.
_KINDS = {*_NEEDED, "custom_tool_call", "custom_tool_call_output", "reasoning"}
MOST_VALUES = 1000  # In one entry with a single part.
MOST_JUDGED = 4096


def require_sound_shapes(document: Document, path: str) -> None:
    """Refuse what is not an object where the API has objects, and the first faulty entry."""
    for field in (*OBJECTS, *FURTHER.get(path, ())):
        if isinstance(document.get(field), list):
            _require_objects(document[field], field, WITHIN if path in STRICT else ())
    prompt = document.get("prompt")
    if isinstance(prompt, list) and len(set(map(type, prompt))) > 1:
        raise Refusal(400, "prompt has entries of several types", field="prompt")
    if path in JUDGED:
        _require_entries(document, *JUDGED[path])


def _require_objects(entries: list[Any], field: str, within: tuple[str, ...]) -> None:
    waiting = [entries]
    while waiting:
        for entry in waiting.pop():
            if not isinstance(entry, dict):
                raise Refusal(400, f"{field} has an entry that is not an object", field=field)
            waiting += [entry[name] for name in within if isinstance(entry.get(name), list)]


def _require_entries(document: Document, field: str, module: str, name: str) -> None:
    entries, protocol = document.get(field), sys.modules.get(module)
    if not isinstance(entries, list) or protocol is None:  # In unit tests vLLM is not imported.
        return
    judge: Judge = partial(_judge, getattr(protocol, name), field)
    is_plain = _is_plain_turn if field == "messages" else _is_plain_item
    judged = 0
    for number, entry in enumerate(entries):
        try:
            for part in () if is_plain(entry) else _take_apart(entry):
                judged += 1
                if judged > MOST_JUDGED or not _is_small(part):
                    raise ValueError("too much to judge")
                judge(part)
        except ValueError as fault:
            kind = str(entry.get("type", "message"))[:40]
            what = f"{field}[{number}] is not of this API, or faulty: {kind}"
            raise Refusal(400, what, field=field) from fault


def _judge(request: Callable[..., object], field: str, entry: Item) -> None:
    request(model="m", **{field: [entry]})


def _take_apart(entry: Item) -> Iterator[Item]:
    """Yield an entry once for each part in its lists that is not plain text."""
    if not isinstance(kind := entry.get("type", "message"), str) or kind not in _KINDS:
        raise ValueError("an item of another kind")
    lists = [name for name in WITHIN if isinstance(entry.get(name), list)]
    single = {**entry, **{name: entry[name][:1] for name in lists}}
    yield single
    for name in lists:
        for part in entry[name]:
            if not isinstance(part, dict):
                raise ValueError("a part that is not an object")
            if part is not entry[name][0] and not _is_text(part, part.get("type")):
                yield {**single, name: [part]}


def _is_small(entry: Item) -> bool:
    values = 0
    for container in walk(entry):
        values += len(container)
        if values > MOST_VALUES:
            return False
    return True


def _is_plain_turn(turn: Item) -> bool:
    """Return whether a turn is surely valid: vLLM does not read the parts of these roles."""
    return (
        turn.keys() <= {"role", "content", "name", "tool_call_id"}
        and all(
            isinstance(value, str) or (name == "content" and isinstance(value, list))
            for name, value in turn.items()
        )
        and turn.get("role") in _ROLES
        and "content" in turn
    )


def _is_plain_item(item: Item) -> bool:
    """Return whether a response's item is surely sound; most of a conversation is."""
    kind = item.get("type", "message")
    if not isinstance(kind, str) or (needed := _NEEDED.get(kind)) is None:
        return False
    if not needed <= item.keys() <= needed | _OPTIONAL:
        return False
    if item.get("status", "completed") not in _STATUSES:
        return False
    return item.get("role", "user") in _PARTS and all(
        isinstance(value, str) or (name == "content" and _has_plain_parts(item, value))
        for name, value in item.items()
    )


def _has_plain_parts(item: Item, parts: Any) -> bool:
    """Return whether a turn's parts are text; vLLM needs a type for an assistant's."""
    kind = _PARTS[item["role"]]
    if not isinstance(parts, list) or (kind == "output_text" and "type" not in item):
        return False
    return all(_is_text(part, kind) for part in parts)


def _is_text(part: Item, kind: Any) -> bool:
    return (
        part.keys() == {"type", "text"}
        and part["type"] == kind
        and kind in ("input_text", "output_text", "text")
        and isinstance(part["text"], str)
    )
