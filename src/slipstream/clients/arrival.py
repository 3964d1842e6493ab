"""One answer of a chat as it streams: its parts, and its figures at the end.

vLLM sends the tokens of a step as one chunk: those of the draft that were accepted, then one of the
target's own. A server that is behind joins steps, so there may be more steps than chunks.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

import httpx
from pydantic import ValidationError

from slipstream.clients.apis import ChatCompletions
from slipstream.clients.connection import ServedModel
from slipstream.clients.marking import Marker
from slipstream.errors import EngineError
from slipstream.measuring.client.endpoint import (
    BODY_CHARACTERS,
    KEY_HINT,
    LOG_HINT,
    Endpoint,
    no_answer,
    open_client,
)
from slipstream.measuring.client.sample import Sample
from slipstream.measuring.client.streaming import StreamReader
from slipstream.records import Record
from slipstream.steering.ledger import LedgerLine

_HINTS = {
    400: "/new starts a conversation without the earlier turns",
    401: KEY_HINT,
    403: KEY_HINT,
    404: "slipstream chat again, which reads the model's name again",
    413: "/new starts a conversation without the earlier turns",
    429: "try again in a moment",
    503: "try again in a moment",
}


class AnswerPart(Record):
    """What a chunk adds to an answer.

    `drafted` counts the characters at the beginning of `text` that accepted draft tokens wrote,
    None where that cannot be known.
    """

    schema_version: Literal[1] = 1
    event: Literal["text"] = "text"
    turn: int
    seconds: float
    tokens: int
    text: str
    drafted: int | None


class ChatAnswer(Record):
    """An answer with its figures; None where the server does not report one.

    `chunks` are those with tokens. `steps` and `accepted` are the server's own counts, with the
    step that read the prompt.
    """

    schema_version: Literal[1] = 1
    event: Literal["answer"] = "answer"
    turn: int
    model: str
    plain: bool
    text: str
    finish_reason: str | None
    interrupted: bool
    output_tokens: int
    first_token_seconds: float | None
    tokens_per_second: float | None
    chunks: int
    steps: int | None
    accepted: int | None
    same_text: bool | None = None
    # Whether the compared texts are sampled, and so differ by chance.
    sampled: bool | None = None

    @property
    def tokens_per_step(self) -> float | None:
        return self.output_tokens / self.steps if self.steps else None

    @property
    def tokens_per_chunk(self) -> float | None:
        """Return a bound of the tokens per step: a chunk holds at least one step."""
        return self.output_tokens / self.chunks if self.chunks else None


Show = Callable[[AnswerPart], None]


class ArrivingAnswer:
    """One answer on its way: what has come of it, and when."""

    def __init__(self, turn: int, marker: Marker | None, show: Show) -> None:
        self.request_id: str | None = None
        self._reader, self._began = StreamReader(self._take), time.monotonic()
        self._turn, self._marker, self._show = turn, marker, show
        self._parts: list[AnswerPart] = []
        self._chunks = 0

    async def receive(self, served: ServedModel, request: dict[str, Any]) -> None:
        """Send the request and show each part of the answer as it comes."""
        endpoint = Endpoint(served.url, key=served.key.secret, certificate=served.certificate)
        extensions = {"trace": self._trace(served)}
        async with open_client(endpoint) as http:
            try:
                async with http.stream(
                    "POST", ChatCompletions.path, **request, extensions=extensions
                ) as answer:
                    await self._read(answer)
            except httpx.HTTPError as fault:
                if self._reader.first_at is None:
                    raise no_answer(http.base_url, fault) from fault
                raise _break_off(f"{type(fault).__name__} {fault}".strip()) from fault
        if (why := self._reader.find_fault()) is not None:
            raise _break_off(why)

    async def _read(self, answer: httpx.Response) -> None:
        status = answer.status_code
        if status != httpx.codes.OK:
            body = await anext(answer.aiter_text(BODY_CHARACTERS), "")
            raise EngineError(
                f"{ChatCompletions.path} of {answer.url.copy_with(path='/')} answered {status}",
                details=(body,) if body else (),
                hint=_HINTS.get(status, LOG_HINT),
            )
        self.request_id = answer.headers.get("x-request-id")
        async for data in answer.aiter_bytes():
            self._reader.take(data, time.monotonic())
            for part in self._parts:
                self._show(part)
            self._parts.clear()

    def _trace(self, served: ServedModel) -> Callable[[str, Any], Any]:
        watch = served.watch()

        async def trace(event: str, info: Any) -> None:
            if event.endswith("send_request_headers.started"):
                self._began = time.monotonic()
            if watch is not None:
                await watch(event, info)

        return trace

    def _take(self, now: float, token_ids: Sequence[int], text: str) -> None:
        self._chunks += bool(token_ids)
        drafted = self._marker.find_drafted(token_ids, text) if self._marker else None
        part = AnswerPart(
            turn=self._turn,
            seconds=now - self._began,
            tokens=len(token_ids),
            text=text,
            drafted=drafted,
        )
        self._parts.append(part)

    def describe(
        self, model: str, line: LedgerLine | None, *, plain: bool, interrupted: bool
    ) -> ChatAnswer:
        """Return what came, with the figures of the stream and of the ledger."""
        sample = self._measure()
        tokens = len(sample.token_ids) if interrupted else sample.output_tokens
        later = sample.seconds - (sample.first_token_seconds or 0)
        steps, accepted = _count_steps(sample, line)
        return ChatAnswer(
            turn=self._turn,
            model=model,
            plain=plain,
            interrupted=interrupted,
            text=sample.text,
            finish_reason=sample.finish_reason,
            output_tokens=tokens,
            first_token_seconds=sample.first_token_seconds,
            tokens_per_second=(tokens - 1) / later if tokens > 1 and later > 0 else None,
            chunks=self._chunks,
            steps=steps,
            accepted=accepted,
        )

    def _measure(self) -> Sample:
        """Return what came as a measured request, which is checked."""
        ended = self._reader.last_at or time.monotonic()
        request_fields: dict[str, Any] = {
            "prompt_id": "",
            "kind": "",
            "concurrency": 1,
            "began_at": 0.0,
        }
        came = self._reader.describe(self._began)
        try:
            return Sample(**request_fields, seconds=ended - self._began, **came)
        except ValidationError as fault:
            raise _break_off(f"its figures cannot be read: {fault.errors()[0]['msg']}") from fault


def _count_steps(sample: Sample, line: LedgerLine | None) -> tuple[int | None, int | None]:
    """Return the steps of an answer and its accepted draft tokens, as the ledger or vLLM has them.

    vLLM counts the steps that drafted; a last draft may be accepted beyond the end of an answer.
    """
    if line is not None:
        return line.steps, sum(line.accepted) + line.copied_accepted
    if sample.drafts <= 0:
        return None, None
    return max(sample.drafts + 1, sample.output_tokens - sample.accepted), sample.accepted


def _break_off(why: str) -> EngineError:
    return EngineError(
        f"the answer was interrupted: {why}", hint="send it again, or slipstream status"
    )
