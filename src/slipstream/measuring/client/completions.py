"""Requests, and complete answers as token ids, where time does not matter.

vLLM reports the drafts of each request if it was started with
`--per-request-spec-decode-metrics summary`; without it they are zero.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, TypeVar

import httpx

from slipstream.errors import EngineError
from slipstream.measuring.client.endpoint import (
    BODY_CHARACTERS,
    Endpoint,
    call,
    open_client,
    read_model,
)
from slipstream.steering.drafts import Drafts

Item = TypeVar("Item")
Got = TypeVar("Got")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request: messages for the chat template, or a prompt as token ids.

    `extra` adds to the body, or takes out of it what is None there: some servers refuse a
    request with a key that they do not know.
    """

    prompt_id: str = ""
    kind: str = ""
    messages: tuple[Mapping[str, str], ...] = ()
    prompt_ids: tuple[int, ...] = ()
    max_tokens: int
    temperature: float = 0.0
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self.messages else "/v1/completions"

    def make_body(self, model: str) -> dict[str, Any]:
        """Return the request body, without the stream flag."""
        prompt = (
            {"messages": list(self.messages)}
            if self.messages
            else {"prompt": list(self.prompt_ids)}
        )
        body = {
            **prompt,
            "model": model,
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "return_token_ids": True,
            **self.extra,
        }
        return {key: value for key, value in body.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer in tokens, with its drafts."""

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    finish_reason: str = ""
    drafts: Drafts = field(default_factory=Drafts)


def ask_all(
    endpoint: Endpoint | str,
    items: Sequence[Item],
    send: Callable[[httpx.AsyncClient, Item, str], Awaitable[Got]],
    *,
    concurrency: int = 1,
    on_answer: Callable[[int, Got], None] = lambda *_: None,
    on_failure: Callable[[EngineError], Got] | None = None,
) -> list[Got]:
    """Send every item with a client and the model's name; return the answers in their order.

    `on_answer` gets an item's number with its answer as soon as that comes. The first failure ends
    it, unless `on_failure` returns what stands in the answer's place.
    """
    server = Endpoint(endpoint) if isinstance(endpoint, str) else endpoint

    async def run() -> list[Got]:
        async with open_client(server) as client:
            model = server.model or (await read_model(client))[0]

            async def work(number: int, item: Item) -> Got:
                try:
                    answer = await send(client, item, model)
                except EngineError as fault:
                    if on_failure is None:
                        raise
                    answer = on_failure(fault)
                on_answer(number, answer)
                return answer

            return await work_off(items, work, concurrency)

    return asyncio.run(run()) if items else []


async def work_off(
    items: Sequence[Item], work: Callable[[int, Item], Awaitable[Got]], concurrency: int
) -> list[Got]:
    """Work on numbered items, so many at a time; return the results in their order."""
    waiting, results = iter(enumerate(items)), dict[int, Got]()

    async def take() -> None:
        for number, item in waiting:
            results[number] = await work(number, item)

    await work_together(min(concurrency, len(items)), take)
    return [results[number] for number in sorted(results)]


async def ask(client: httpx.AsyncClient, request: Request, model: str) -> Answer:
    document = await call(client, "POST", request.path, request.make_body(model))
    try:
        return _read_answer(document)
    except (LookupError, TypeError, AttributeError, ValueError) as fault:
        raise EngineError(
            f"{client.base_url} answered without token ids",
            details=(str(document)[:BODY_CHARACTERS],),
            hint="use a vLLM server: it returns them for `return_token_ids`",
        ) from fault


async def work_together(
    workers: int,
    work: Callable[[], Coroutine[Any, Any, None]],
    tasks: list[asyncio.Task[None]] | None = None,
) -> None:
    """Run workers until all are done; an exception of one cancels the others and is raised as is.

    `tasks` receives the workers, for one of them to cancel the others.
    """
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(workers):
                task = group.create_task(work())
                if tasks is not None:
                    tasks.append(task)
    except BaseExceptionGroup as faults:
        raise faults.exceptions[0] from faults.exceptions[0].__cause__


def _read_answer(document: dict[str, Any]) -> Answer:
    """Read an answer; a chat has its prompt beside the choice, a completion within it."""
    choice = document["choices"][0]
    prompt_ids = document.get("prompt_token_ids") or choice["prompt_token_ids"]
    counts = list_drafts(document)
    accepted = counts["accepted_by_position"]
    return Answer(
        prompt_ids=tuple(prompt_ids),
        token_ids=tuple(choice["token_ids"]),
        finish_reason=choice["finish_reason"],
        drafts=Drafts(drafts=counts["drafts"], drafted=counts["drafted"], accepted=accepted),
    )


def list_drafts(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return what vLLM counts of a request's drafts, in an answer or in a stream's last chunk."""
    metrics = (document.get("metrics") or {}).get("speculative_decoding") or {}
    histogram = metrics.get("acceptance_histogram") or ()
    return {
        "drafts": metrics.get("num_spec_steps", 0),
        "drafted": metrics.get("num_draft_tokens", 0),
        "accepted": metrics.get("num_accepted_draft_tokens", 0),
        # From 'drafts with exactly n accepted' to 'drafts with the n-th accepted'.
        "accepted_by_position": tuple(accumulate(reversed(histogram[1:])))[::-1],
    }
