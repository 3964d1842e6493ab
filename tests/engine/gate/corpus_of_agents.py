"""Hostile requests in the forms of agents: Anthropic's messages, and OpenAI's responses."""

from typing import Any

from tests.engine.gate.hostile import (
    HELLO,
    MESSAGES,
    REFUSED,
    Hostile,
    chat,
    message,
    post,
    respond,
)

COUNT = f"{MESSAGES}/count_tokens"
COSTLY = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 10**5}}}
FORCED = {"type": "any"}


def gather(name: str, *expected: int, tool: dict[str, Any], **fields: Any) -> Hostile:
    """Make a response with a tool in a namespace."""
    inner = {"type": "function", "name": "a", **tool}
    space = {"type": "namespace", "name": "n", "description": "d", "tools": [inner]}
    return respond(name, *expected, tools=[space], **fields)


def add(name: str, schema: Any, *expected: int, **fields: Any) -> Hostile:
    """Make a message in which a turn of the system adds a tool."""
    definition = {"name": "a", "input_schema": schema}
    change = {"type": "tool_definition", "definition": definition}
    turn = {"role": "system", "content": [{"type": "tool_addition", "tool": change}]}
    return message(name, *expected, messages=[turn, HELLO], **fields)


def show(name: str, source: dict[str, Any]) -> Hostile:
    """Make a message with an image."""
    turn = {"role": "user", "content": [{"type": "image", "source": source}]}
    return message(name, messages=[turn])


AGENTS_PAST_LIMITS = (
    message("a message of many answers, in words", n="9"),
    message("a message with a thousand ends", stop_sequences=["a"] * 1000),
    message("a message with a costly form", *REFUSED, output_config={"format": {"schema": COSTLY}}),
    message("a message before the others", priority=-1),
    message("a message with an engine's arguments", vllm_xargs={"a": 1}),
    message("a message with a template's arguments", chat_template_kwargs={"tools": 1}),
    post("a message of nothing", MESSAGES, b""),
    post("a count of nothing", COUNT, b"null"),
    post("a count of ten megabytes", COUNT, b'{"messages": "' + b"x" * 10**7, 413),
    show("an image by an address", {"type": "url", "url": "http://10.0.0.1/"}),
    show("an image in a message", {"type": "base64", "media_type": "image/png", "data": "AAAA"}),
    add("a tool of a turn of a megabyte", {"x": "y" * 10**6}),
    respond("a response of another time", previous_response_id="resp_x"),
    respond("a response in the background", background=True, store=True),
    respond("a response with an id of the caller", request_id="resp_x"),
    respond(
        "a costly response", *REFUSED, text={"format": {"type": "json_schema", "schema": COSTLY}}
    ),
    respond(
        "a costly response that says it is text",
        *REFUSED,
        text={"type": "text", "format": {"type": "json_schema", "name": "a", "schema": COSTLY}},
    ),
    respond("a conversation of bare words", input=["x"] * 100_000),
    respond("a turn of bare words", input=[{"role": "user", "content": ["x"] * 100_000}]),
    respond("a hundred thousand wishes", include=["x"] * 100_000),
    chat("a chat of bare words", messages=["x"] * 100_000),
    message("a message of bare words", messages=["x"] * 100_000),
    gather("a tool in a space of a megabyte", tool={"parameters": {"x": "y" * 10**6}}),
)

# The gate asks vLLM's own classes about the first of them.
AGENTS_OF_FAULTY_LISTS = (
    respond("four thousand things of no type", input=[{"type": "x"}] * 4000),
    respond("a turn of parts of no type", input=[{"role": "user", "content": [{}] * 9000}]),
    chat("a chat of roles in numbers", messages=[{"role": 5, "content": "a"}] * 9000),
)

AGENTS_FOR_THE_ENGINE = (
    message("a message without an end", 400, max_tokens=0),
    message("a message of no role", 400, messages=[{"role": "root", "content": "a"}]),
    message("a message that is no list", 400, messages="hello"),
    message("a message with a block of no kind", 400, messages=[{"role": "user", "content": [{}]}]),
    message("a message of no model", 404, model="../../etc/passwd"),
    message("a message that thinks too long", 200, 400, thinking={"type": "x"}),
    message("a message with a tool of no schema", 400, tools=[{"name": "a"}]),
    message("a message with a tool of the host", 400, tools=[{"type": "web_search", "name": "w"}]),
    add("a tool that a turn removes twice", {"type": "object"}, 200, 400, 429, tool_choice=FORCED),
    post("a count of no turns", COUNT, {"model": "target", "messages": []}, 200, 400),
    respond("a response of two forms", 400, text=5),
    respond("a response to a thing of no type", 400, input=[{"type": "x"}]),
    gather("a tool of no space", 200, 400, 429, tool={"parameters": 5}, tool_choice="required"),
)
