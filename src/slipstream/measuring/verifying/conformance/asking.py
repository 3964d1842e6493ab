"""The suite sent to one engine, one request at a time.

Each request has a cache salt of its own: nothing comes from the prefix cache, and so an engine
computes the same tokens for the same prompt whichever API it came over.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import httpx

from slipstream.errors import EngineError
from slipstream.measuring.client.completions import Answer
from slipstream.measuring.client.endpoint import Endpoint, open_client, read_model
from slipstream.measuring.verifying.conformance import chat_api, messages_api, responses_api
from slipstream.measuring.verifying.conformance.answers import ParsedAnswer, WireError
from slipstream.measuring.verifying.conformance.cases import (
    CASES,
    ApiName,
    Case,
    Way,
)
from slipstream.measuring.verifying.conformance.events import Event, EventReader
from slipstream.serving.supervision.engine_process import is_healthy

_SHOWN_CHARACTERS = 300


class Assembler(Protocol):
    """Assembles the events of a stream."""

    @property
    def prompt_ids(self) -> Sequence[int]:
        """Return the prompt, where the API tells it."""

    @property
    def token_ids(self) -> Sequence[int]:
        """Return the answer's tokens, where the API tells them."""

    def take(self, event: Event) -> None:
        """Add one event."""

    def finish(self) -> ParsedAnswer:
        """Return the answer."""


class Api(NamedTuple):
    """One API: its requests and its answers."""

    path: str
    make_body: Callable[[Case], dict[str, Any]]
    read_whole: Callable[[dict[str, Any]], ParsedAnswer]
    assembler: Callable[[], Assembler]


APIS: dict[ApiName, Api] = {
    "chat": Api(chat_api.PATH, chat_api.make_body, chat_api.read_whole, chat_api.ChatAssembler),
    "responses": Api(
        responses_api.PATH,
        responses_api.make_body,
        responses_api.read_whole,
        responses_api.ResponsesAssembler,
    ),
    "messages": Api(
        messages_api.PATH,
        messages_api.make_body,
        messages_api.read_whole,
        messages_api.MessagesAssembler,
    ),
}


class CallRequest(NamedTuple):
    """A case over one API."""

    case: Case
    way: Way

    @property
    def name(self) -> str:
        """Return the request's name for reports."""
        return f"{self.case.name}, {APIS[self.way.api].path}{', streamed' * self.way.streamed}"

    def make_body(self, model: str, *, salt: str) -> dict[str, Any]:
        """Return what is sent; without reasoning it is switched off, if the template knows how."""
        return {
            **APIS[self.way.api].make_body(self.case),
            "model": model,
            "temperature": 0.0,
            "stream": self.way.streamed,
            "cache_salt": salt,
            "chat_template_kwargs": {"enable_thinking": self.case.reasons},
        }


class Asked(NamedTuple):
    """A parsed answer, with its tokens if the API reports them."""

    answer: ParsedAnswer
    tokens: Answer | None = None
    refused: bool = False


def ask_requests(
    url: str, requests: Sequence[CallRequest], report: Callable[[int, int], None]
) -> dict[str, Asked]:
    """Send the requests one by one; a failure counts as an answer as long as the engine lives."""

    async def run() -> dict[str, Asked]:
        asked = {}
        async with open_client(Endpoint(url)) as client:
            model = await read_model(client)
            for number, request in enumerate(requests):
                body = request.make_body(model, salt=f"conformance-{number}")
                asked[request.name] = await _ask(client, request, body)
                if asked[request.name].answer.failure and not is_healthy(url):
                    raise EngineError(
                        f"the engine stopped answering after '{request.name}'",
                        hint="look into the engine's log",
                    )
                report(len(asked), len(requests))
        return asked

    return asyncio.run(run())


def find_refusal(url: str) -> str | None:
    """Return why an engine takes no tools: without a parser vLLM refuses even forced calls."""
    request = CallRequest(CASES[0], Way("chat", False))

    async def run() -> Asked:
        async with open_client(Endpoint(url)) as client:
            body = request.make_body(await read_model(client), salt="conformance")
            return await _ask(client, request, {**body, "max_completion_tokens": 1})

    asked = asyncio.run(run())
    return asked.answer.failure if asked.refused else None


async def _ask(client: httpx.AsyncClient, request: CallRequest, body: dict[str, Any]) -> Asked:
    api = APIS[request.way.api]
    reader, assembler, whole = EventReader(), api.assembler(), bytearray()
    try:
        async with client.stream("POST", api.path, json=body) as response:
            if response.status_code != httpx.codes.OK:
                return _read_refusal(response.status_code, await response.aread())
            async for data in response.aiter_bytes():
                if not request.way.streamed:
                    whole += data
                    continue
                for event in reader.take(data):
                    assembler.take(event)
        if request.way.streamed:
            return Asked(
                assembler.finish(), _make_answer(assembler.prompt_ids, assembler.token_ids)
            )
        told = httpx.Response(200, content=bytes(whole)).json()
        return Asked(api.read_whole(told), _read_tokens(told))
    except (WireError, httpx.HTTPError) as fault:
        return _fail(str(fault) or type(fault).__name__)
    except (LookupError, TypeError, ValueError, AttributeError) as fault:
        return _fail(f"cannot be read: {type(fault).__name__} {fault}")


def _fail(why: str) -> Asked:
    return Asked(ParsedAnswer(failure=why[:_SHOWN_CHARACTERS]))


def _read_refusal(status: int, body: bytes) -> Asked:
    try:
        why = str(httpx.Response(status, content=body).json()["error"]["message"])
    except (ValueError, LookupError, TypeError):
        why = body.decode(errors="replace")
    failed = _fail(f"answered {status}: {why}")
    return failed._replace(refused=400 <= status < 500)


def _read_tokens(told: dict[str, Any]) -> Answer | None:
    choices = told.get("choices")
    if not choices:
        return None
    return _make_answer(told.get("prompt_token_ids") or (), choices[0].get("token_ids") or ())


def _make_answer(prompt_ids: Sequence[int], token_ids: Sequence[int]) -> Answer | None:
    if not prompt_ids:
        return None
    return Answer(
        prompt_ids=tuple(prompt_ids), token_ids=tuple(token_ids), finish_reason="", seconds=0
    )
