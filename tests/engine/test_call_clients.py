"""Tool calls as the official libraries read them, held against our own reading of the wire.

The server drafts, in float32: asked twice, it says the same.
"""

import json
from collections.abc import Callable
from typing import Any

import anthropic
import openai
import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState

from slipstream.measuring.verifying.conformance import chat_api, messages_api, responses_api
from slipstream.measuring.verifying.conformance.answers import ParsedAnswer
from slipstream.measuring.verifying.conformance.asking import CallRequest, ask_requests
from slipstream.measuring.verifying.conformance.cases import CASES, ApiName, Way
from tests.engine.server import Server

pytestmark = pytest.mark.engine

CASE_NAMES = ("parallel", "unicode")


def ask_chat(url: str, body: dict[str, Any]) -> ParsedAnswer:
    client, state = openai.OpenAI(base_url=f"{url}/v1", api_key="none"), ChatCompletionStreamState()
    stream = client.chat.completions.create(
        model="target", messages=body["messages"], stream=True, extra_body=body
    )
    for chunk in stream:
        state.handle_chunk(chunk)
    return chat_api.read_whole(state.get_final_completion().to_dict())


def ask_responses(url: str, body: dict[str, Any]) -> ParsedAnswer:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
    with client.responses.stream(model="target", input=body["input"], extra_body=body) as stream:
        return responses_api.read_whole(stream.get_final_response().to_dict())


def ask_messages(url: str, body: dict[str, Any]) -> ParsedAnswer:
    client = anthropic.Anthropic(base_url=url, api_key="none")
    with client.messages.stream(
        model="target",
        max_tokens=body["max_tokens"],
        messages=body["messages"],
        extra_body=body,
    ) as stream:
        return messages_api.read_whole(stream.get_final_message().to_dict())


CLIENTS: dict[ApiName, Callable[[str, dict[str, Any]], ParsedAnswer]] = {
    "chat": ask_chat,
    "responses": ask_responses,
    "messages": ask_messages,
}


@pytest.mark.parametrize("api", CLIENTS)
def test_our_reading_of_a_stream_is_that_of_the_official_library(
    server: Server, api: ApiName
) -> None:
    requests = [CallRequest(one, Way(api, True)) for one in CASES if one.name in CASE_NAMES]
    asked = ask_requests(server.url, requests, lambda done, of: None)
    for request in requests:
        ours = asked[request.name].answer
        theirs = CLIENTS[api](server.url, request.make_body("target", salt="official"))
        assert ours.failure is None
        assert ours.calls
        assert theirs.is_same(ours), json.dumps([theirs.to_json(), ours.to_json()], indent=2)
