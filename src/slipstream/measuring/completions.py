"""A client of any OpenAI-compatible server that tells token ids: asks, and counts the drafts.

vLLM reports the drafts of each request if it was started with
`--per-request-spec-decode-metrics summary`; without it they are zero.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import httpx

from slipstream.errors import EngineError

TIMEOUT_SECONDS = 600
BODY_CHARACTERS = 2000

_HINT = "look into the server's log"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One question: messages for the chat template, or else a prompt in token ids."""

    messages: tuple[Mapping[str, str], ...] = ()
    prompt_ids: tuple[int, ...] = ()
    max_tokens: int
    temperature: float = 0.0
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back, in tokens, and how many drafts had their first, second, ... accepted."""

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    finish_reason: str
    seconds: float
    drafts: int = 0
    accepted: int = 0
    accepted_by_position: tuple[int, ...] = ()


def ask_all(
    url: str,
    requests: Sequence[Request],
    *,
    concurrency: int,
    on_answer: Callable[[int, Answer], None],
) -> None:
    """Keep `concurrency` requests in flight until all are answered; one that fails ends it.

    `on_answer` gets each request's number with its answer, in the order of the answers.
    """
    if requests:
        asyncio.run(_ask_all(url, requests, concurrency, on_answer))


def open_client(url: str) -> httpx.AsyncClient:
    """Open a client of the server at a base URL, which is the one without /v1."""
    return httpx.AsyncClient(
        base_url=url,
        timeout=TIMEOUT_SECONDS,
        limits=httpx.Limits(max_connections=None),
        trust_env=False,  # a proxy would be measured along
    )


async def read_model(client: httpx.AsyncClient) -> str:
    """Ask the server for the name of its model."""
    listed = await _call(client, "GET", "/v1/models")
    try:
        return str(listed["data"][0]["id"])
    except (KeyError, IndexError, TypeError) as fault:
        raise EngineError(f"{client.base_url} lists no model", hint=_HINT) from fault


async def ask(client: httpx.AsyncClient, request: Request, *, model: str) -> Answer:
    """Ask one question and wait for the whole answer."""
    path = "/v1/chat/completions" if request.messages else "/v1/completions"
    prompt = (
        {"messages": list(request.messages)}
        if request.messages
        else {"prompt": list(request.prompt_ids)}
    )
    body = {
        **prompt,
        "model": model,
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "return_token_ids": True,
        **request.extra,
    }
    started = time.monotonic()
    told = await _call(client, "POST", path, body)
    seconds = time.monotonic() - started
    try:
        return _read_answer(told, seconds)
    except (KeyError, IndexError, TypeError, AttributeError) as fault:
        raise EngineError(
            f"{client.base_url} answered without token ids",
            details=(str(told)[:BODY_CHARACTERS],),
            hint="ask a vLLM server: it tells them where `return_token_ids` is asked for",
        ) from fault


async def _ask_all(
    url: str,
    requests: Sequence[Request],
    concurrency: int,
    on_answer: Callable[[int, Answer], None],
) -> None:
    waiting = iter(enumerate(requests))
    async with open_client(url) as client:
        model = await read_model(client)

        async def work() -> None:
            for number, request in waiting:
                on_answer(number, await ask(client, request, model=model))

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(concurrency, len(requests))):
                    group.create_task(work())
        except BaseExceptionGroup as faults:
            raise faults.exceptions[0] from faults.exceptions[0].__cause__


async def _call(client: httpx.AsyncClient, method: str, path: str, body: Any = None) -> Any:
    try:
        answer = await client.request(method, path, json=body)
    except httpx.HTTPError as fault:
        why = f"{type(fault).__name__} {fault}".strip()
        raise EngineError(f"no answer from {client.base_url}: {why}", hint=_HINT) from fault
    if answer.status_code != httpx.codes.OK:
        raise EngineError(
            f"{path} of {client.base_url} answered {answer.status_code}",
            details=(answer.text[:BODY_CHARACTERS],),
            hint=_HINT,
        )
    try:
        return answer.json()
    except ValueError as fault:
        raise EngineError(
            f"{path} of {client.base_url} answered something else than JSON",
            details=(answer.text[:BODY_CHARACTERS],),
            hint=_HINT,
        ) from fault


def _read_answer(told: dict[str, Any], seconds: float) -> Answer:
    """Read an answer; a chat tells its prompt beside the choice, a completion within it."""
    choice = told["choices"][0]
    prompt_ids = told.get("prompt_token_ids") or choice["prompt_token_ids"]
    drafts = (told.get("metrics") or {}).get("speculative_decoding") or {}
    return Answer(
        prompt_ids=tuple(prompt_ids),
        token_ids=tuple(choice["token_ids"]),
        finish_reason=choice["finish_reason"],
        seconds=seconds,
        drafts=drafts.get("num_spec_steps", 0),
        accepted=drafts.get("num_accepted_draft_tokens", 0),
        accepted_by_position=_count_by_position(drafts.get("acceptance_histogram") or ()),
    )


def _count_by_position(histogram: Sequence[int]) -> tuple[int, ...]:
    """Turn 'drafts with exactly n accepted' into 'drafts with the n-th accepted'."""
    return tuple(accumulate(reversed(histogram[1:])))[::-1]
