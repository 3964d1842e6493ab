"""The official Python clients, pointed at a run by what `connect` says, and a tool to call."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import anthropic
import openai

from tests.engine.secured.conftest import Secured

QUESTION = "What is the weather in Ålesund?"
SCHEMA = {
    "type": "object",
    "properties": {"unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}},
    "required": ["unit"],
    "additionalProperties": False,
}
# OpenAI's client reads the arguments of strict tools only.
FUNCTION = {"name": "weather", "parameters": SCHEMA, "strict": True}
TOKENS = 48
# A model of this size may fill a call with blanks, which the grammar lets it.
CALL_TOKENS = 512
_connections: dict[str, Any] = {}


@contextmanager
def connect(secured: Secured, client: str, key: str = "none") -> Iterator[str]:
    """Have this process's variables be those that `connect` names; return the model's name."""
    if client not in _connections:
        shown = secured.service.command("connect", client, "--json").stdout
        _connections[client] = json.loads(shown)
    told = _connections[client]
    # What a program of Node's is told to trust, a Python one has to be told as well.
    trust = dict.fromkeys(("SSL_CERT_FILE", *told["trust"]), str(secured.pair.file))
    variables = {**trust, **told["variables"], **dict.fromkeys(told["key_variables"], key)}
    with patch.dict(os.environ, variables):
        for name in told["cleared"]:
            os.environ.pop(name, None)
        yield told["model"]


def call_by_chat(client: openai.OpenAI, model: str) -> tuple[str, Any]:
    """Have a tool called over Chat Completions, streamed; return its name and arguments."""
    with client.chat.completions.stream(
        model=model,
        messages=[{"role": "user", "content": QUESTION}],
        tools=[{"type": "function", "function": FUNCTION}],
        tool_choice={"type": "function", "function": {"name": "weather"}},
        max_tokens=CALL_TOKENS,
    ) as stream:
        (call,) = stream.get_final_completion().choices[0].message.tool_calls or []
    assert call.type == "function"
    return call.function.name, json.loads(call.function.arguments)


def call_by_responses(client: openai.OpenAI, model: str) -> tuple[str, Any]:
    """Have a tool called over Responses, streamed."""
    with client.responses.stream(
        model=model,
        input=QUESTION,
        tools=[{"type": "function", **FUNCTION}],
        tool_choice={"type": "function", "name": "weather"},
        max_output_tokens=CALL_TOKENS,
        store=False,
    ) as stream:
        calls = [one for one in stream.get_final_response().output if one.type == "function_call"]
    (call,) = calls
    return call.name, json.loads(call.arguments)


def call_by_messages(client: anthropic.Anthropic, model: str) -> tuple[str, Any]:
    """Have a tool called over Messages, streamed."""
    with client.messages.stream(
        model=model,
        messages=[{"role": "user", "content": QUESTION}],
        tools=[{"name": "weather", "input_schema": SCHEMA, "strict": True}],
        tool_choice={"type": "tool", "name": "weather"},
        max_tokens=CALL_TOKENS,
    ) as stream:
        calls = [one for one in stream.get_final_message().content if one.type == "tool_use"]
    (call,) = calls
    return call.name, call.input
