"""Tool calls as the official libraries read them, compared with our own reading of the wire.

A toy sends every case in chunks of several sizes. The real server drafts, in float32: asked twice,
it says the same.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import anthropic
import openai
import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState

from slipstream.measuring.verifying.conformance.answers import ParsedAnswer
from slipstream.measuring.verifying.conformance.apis import ChatApi, MessagesApi, ResponsesApi
from slipstream.measuring.verifying.conformance.asking import CallRequest, ask_requests
from slipstream.measuring.verifying.conformance.cases import CASES, ApiName, Case, Way
from tests.engine.server import Server
from tests.unit.measuring.verifying.conformance.toy_calls import ToyAnswer, write_stream
from tests.unit.measuring.verifying.toy_engine import ToyEngine, run_toy

pytestmark = [pytest.mark.engine, pytest.mark.beside]


@cache
def open_openai(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none")


@cache
def open_anthropic(url: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=url, api_key="none")


def ask_chat(url: str, body: dict[str, Any]) -> ParsedAnswer:
    client, state = open_openai(url), ChatCompletionStreamState()
    stream = client.chat.completions.create(
        model="target", messages=body["messages"], stream=True, extra_body=body
    )
    for chunk in stream:
        state.handle_chunk(chunk)
    # Not the final completion: for an answer that was cut off the library has only an error.
    return ChatApi.read_whole(state.current_completion_snapshot.to_dict())


def ask_responses(url: str, body: dict[str, Any]) -> ParsedAnswer:
    with open_openai(url).responses.stream(
        model="target", input=body["input"], extra_body=body
    ) as stream:
        return ResponsesApi.read_whole(stream.get_final_response().to_dict())


def ask_messages(url: str, body: dict[str, Any]) -> ParsedAnswer:
    with open_anthropic(url).messages.stream(
        model="target",
        max_tokens=body["max_tokens"],
        messages=body["messages"],
        extra_body=body,
    ) as stream:
        return MessagesApi.read_whole(stream.get_final_message().to_dict())


CLIENTS: dict[ApiName, Callable[[str, dict[str, Any]], ParsedAnswer]] = {
    "chat": ask_chat,
    "responses": ask_responses,
    "messages": ask_messages,
}


def list_differences(url: str, api: ApiName, cases: Sequence[Case]) -> list[Any]:
    """Return what the library read otherwise than we did, or what was no answer at all."""
    requests = [CallRequest(case, Way(api, True)) for case in cases]
    asked = ask_requests(url, requests, lambda done, of: None)
    found = []
    for request in requests:
        ours = asked[request.name].answer
        theirs = CLIENTS[api](url, request.make_body("target", salt="official"))
        if not theirs.is_same(ours) or not (ours.calls or request.case.schema):
            found.append((request.name, theirs, ours))
    return found


@pytest.mark.parametrize("api", CLIENTS)
@pytest.mark.parametrize("size", [7, 1000])
def test_every_case_is_read_as_the_official_library_reads_it(api: ApiName, size: int) -> None:
    def think(path: str, body: dict[str, Any], answer: ToyAnswer) -> str:
        return write_stream(path, replace(answer, reasoning="Hm, 東京?"), [1], size)

    with run_toy(ToyEngine(call=think)) as url:
        assert list_differences(url, api, CASES) == []


@pytest.mark.parametrize("api", CLIENTS)
def test_a_drafted_stream_is_read_as_the_official_library_reads_it(
    server: Server, api: ApiName
) -> None:
    named = [case for case in CASES if case.name == "named"]
    assert list_differences(server.url, api, named) == []
