"""The suite sent to one engine, at concurrency 1, and what of it the plain engine refuses.

Each request has a cache salt of its own: nothing comes from the prefix cache, and so an engine
computes the same tokens for the same prompt whichever API it came over.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import httpx

from slipstream.errors import EngineError
from slipstream.measuring.client.completions import Answer, ask_all
from slipstream.measuring.verifying.conformance.answers import EventReader, ParsedAnswer, WireError
from slipstream.measuring.verifying.conformance.apis import APIS
from slipstream.measuring.verifying.conformance.cases import CASES, Case, Way
from slipstream.serving.supervision.engine_process import is_healthy

NO_REASONING = "the plan has no --reasoning-parser"

_SHOWN_CHARACTERS = 300

Report = Callable[[int, int], None]


class CallRequest(NamedTuple):
    """A case over one API."""

    case: Case
    way: Way

    @property
    def name(self) -> str:
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


class CallReply(NamedTuple):
    """A parsed answer, with its tokens if the API reports them."""

    answer: ParsedAnswer
    tokens: Answer | None = None
    refused: bool = False


@dataclass(frozen=True, slots=True)
class PlainCalls:
    """The answers of the plain engine, and the requests that it refuses."""

    requests: Sequence[CallRequest]
    replies: Mapping[str, CallReply]
    skipped: Mapping[str, str]


def ask_plain(url: str, report: Report, *, reasoning: bool) -> PlainCalls:
    """Send the requests to the plain engine; those that it refuses are named and left out."""
    skipped = {case.name: NO_REASONING for case in CASES if case.reasons and not reasoning}
    if (refusal := find_refusal(url)) is not None:
        skipped |= {case.name: refusal for case in CASES if case.tools}
    requests = [
        CallRequest(case, way) for case in CASES if case.name not in skipped for way in case.ways
    ]
    replies = ask_requests(url, requests, report)
    refused = {name: str(one.answer.failure) for name, one in replies.items() if one.refused}
    kept = [request for request in requests if request.name not in refused]
    return PlainCalls(kept, replies, skipped | refused)


def find_refusal(url: str) -> str | None:
    """Return why an engine takes no tools: without a parser vLLM refuses even forced calls."""
    request = CallRequest(CASES[0], Way("chat", False))

    async def send(client: httpx.AsyncClient, request: CallRequest, model: str) -> CallReply:
        body = {**request.make_body(model, salt="conformance"), "max_completion_tokens": 1}
        return await _ask(client, request, body)

    (reply,) = ask_all(url, [request], send)
    return reply.answer.failure if reply.refused else None


def ask_requests(
    url: str, requests: Sequence[CallRequest], report: Report = lambda *_: None
) -> dict[str, CallReply]:
    """Send the requests one by one; a failure counts as an answer as long as the engine lives."""

    async def send(
        client: httpx.AsyncClient, numbered: tuple[int, CallRequest], model: str
    ) -> CallReply:
        number, request = numbered
        body = request.make_body(model, salt=f"conformance-{number}")
        return await _ask(client, request, body)

    def check(number: int, reply: CallReply) -> None:
        if reply.answer.failure and not is_healthy(url):
            raise EngineError(
                f"the engine stopped answering after '{requests[number].name}'",
                hint="look into the engine's log",
            )
        report(number + 1, len(requests))

    replies = ask_all(url, list(enumerate(requests)), send, on_answer=check)
    return {request.name: one for request, one in zip(requests, replies, strict=True)}


async def _ask(client: httpx.AsyncClient, request: CallRequest, body: dict[str, Any]) -> CallReply:
    api = APIS[request.way.api]
    reader, stream, whole = EventReader(), api(), bytearray()
    try:
        async with client.stream("POST", api.path, json=body) as response:
            if response.status_code != httpx.codes.OK:
                return _read_refusal(response.status_code, await response.aread())
            async for data in response.aiter_bytes():
                whole += data
                for event in reader.take(data) if request.way.streamed else ():
                    stream.take(event)
        if request.way.streamed:
            return CallReply(stream.finish(), _make_answer(stream.prompt_ids, stream.token_ids))
        document = httpx.Response(200, content=bytes(whole)).json()
        return CallReply(api.read_whole(document), _read_tokens(document))
    except (WireError, httpx.HTTPError) as fault:
        return _fail(str(fault) or type(fault).__name__)
    except (LookupError, TypeError, ValueError, AttributeError) as fault:
        return _fail(f"cannot be read: {type(fault).__name__} {fault}")


def _fail(why: str) -> CallReply:
    return CallReply(ParsedAnswer(failure=why[:_SHOWN_CHARACTERS]))


def _read_refusal(status: int, body: bytes) -> CallReply:
    try:
        why = str(httpx.Response(status, content=body).json()["error"]["message"])
    except (ValueError, LookupError, TypeError):
        why = body.decode(errors="replace")
    return _fail(f"answered {status}: {why}")._replace(refused=400 <= status < 500)


def _read_tokens(document: dict[str, Any]) -> Answer | None:
    choices = document.get("choices")
    if not choices:
        return None
    return _make_answer(document.get("prompt_token_ids") or (), choices[0].get("token_ids") or ())


def _make_answer(prompt_ids: Sequence[int], token_ids: Sequence[int]) -> Answer | None:
    if not prompt_ids:
        return None
    return Answer(prompt_ids=tuple(prompt_ids), token_ids=tuple(token_ids))
