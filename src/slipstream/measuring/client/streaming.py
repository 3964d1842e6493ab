"""One streamed request, measured: the times and number of its tokens, and its drafts.

A chunk is not a token: with speculation it holds several, so tokens are counted by the server
alone. vLLM puts a request's drafts beside the usage in the stream's last chunk.
"""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import httpx

from slipstream.measuring.client.completions import Request, list_drafts
from slipstream.measuring.client.endpoint import SILENCE_SECONDS
from slipstream.measuring.client.sample import Sample, ToolCall
from slipstream.measuring.client.wire import HttpConnection, Wire

ERROR_CHARACTERS = 300
FAILED = ("abort", "error")

OnTokens = Callable[[Request, float, Sequence[int]], None]
"""Gets the tokens of a chunk, with the seconds since its request was sent."""


class StreamReader:
    """The content of a stream, byte by byte; errors are kept and not raised.

    `on_chunk` gets the time, the tokens and the text of each chunk, also of chunks that arrive
    together.
    """

    def __init__(self, on_chunk: Callable[[float, Sequence[int], str], None] | None = None) -> None:
        self._on_chunk = on_chunk
        self.fault: str | None = None
        self.first_at: float | None = None
        self.last_at: float | None = None
        self.longest_pause: float | None = None
        self.token_ids: list[int] = []
        self.texts: list[str] = []
        self.finish_reason: str | None = None
        self.usage: dict[str, Any] | None = None
        self.drafts: dict[str, Any] = {}
        self._calls: dict[int, list[str]] = {}
        self._rest = b""

    def take(self, data: bytes, now: float) -> None:
        """Process bytes that arrived at a time, cut anywhere."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        try:
            for line in lines:
                if line.startswith(b"data:") and (event := line[5:].strip()) != b"[DONE]":
                    self._take_event(json.loads(event), now)
        except (ValueError, TypeError, AttributeError, LookupError):
            self.fault = self.fault or f"cannot read {_shorten(lines)}"

    def _take_event(self, document: dict[str, Any], now: float) -> None:
        if choices := document.get("choices"):
            self._take_choice(choices[0], now)
        elif fault := document.get("error") or (document.get("object") == "error" and document):
            self.fault = self.fault or f"error in the stream: {_shorten(fault)}"
        if usage := document.get("usage"):
            self.usage, self.drafts = usage, list_drafts(document)

    def _take_choice(self, choice: dict[str, Any], now: float) -> None:
        """Count a token; the first chunk of a chat has only a role, the last may be empty."""
        delta = choice.get("delta")
        text = choice.get("text") if delta is None else delta.get("content")
        ids = choice.get("token_ids")
        if text or ids or (delta and _thinks_or_calls(delta)):
            if self.last_at is None:
                self.first_at = now
            else:
                self.longest_pause = max(self.longest_pause or 0.0, now - self.last_at)
            self.last_at = now
            self.texts.append(text or "")
            self.token_ids += ids or ()
            if self._on_chunk:
                self._on_chunk(now, ids or (), text or "")
        for part in (delta or {}).get("tool_calls") or ():
            self._take_call(part)
        self.finish_reason = choice.get("finish_reason") or self.finish_reason

    def _take_call(self, part: dict[str, Any]) -> None:
        """Add to a call, which comes in parts: its name first, its arguments piece by piece."""
        call = self._calls.setdefault(part.get("index") or 0, ["", ""])
        function = part.get("function") or {}
        call[0] += function.get("name") or ""
        call[1] += function.get("arguments") or ""

    def describe(self, began: float) -> dict[str, Any]:
        usage = self.usage or {}
        details = usage.get("prompt_tokens_details") or {}
        return {
            "first_token_seconds": None if self.first_at is None else self.first_at - began,
            "longest_pause_seconds": self.longest_pause,
            "prompt_tokens": usage.get("prompt_tokens") or 0,
            "cached_tokens": details.get("cached_tokens"),
            "output_tokens": usage.get("completion_tokens") or 0,
            "token_ids": tuple(self.token_ids),
            "text": "".join(self.texts),
            "finish_reason": self.finish_reason,
            "calls": tuple(
                ToolCall(name=name, arguments=arguments)
                for _, (name, arguments) in sorted(self._calls.items())
            ),
            **self.drafts,
        }

    def find_fault(self) -> str | None:
        """Return what is wrong with a stream that is over, if anything is."""
        if self.fault is not None:
            return self.fault
        if self.finish_reason is None or self.finish_reason in FAILED:
            return f"the stream ended with finish reason {self.finish_reason}"
        if self.usage is None:
            return "the server reported no usage, so the number of tokens is unknown"
        return None


async def stream(
    wire: Wire,
    request: Request,
    *,
    model: str,
    concurrency: int,
    load_began: float,
    on_tokens: OnTokens | None = None,
) -> Sample:
    def watch(now: float, token_ids: Sequence[int], _: str) -> None:
        if on_tokens is not None and token_ids:
            on_tokens(request, now - began, token_ids)

    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    post = wire.make_post(request.path, request.make_body(model) | streamed)
    reader, began = StreamReader(watch), time.monotonic()
    try:
        async with wire.borrow() as connection:
            began = time.monotonic()
            fault = await _wait(connection, connection.send(post, reader.take))
            fault = fault or _find_refusal(connection) or reader.find_fault()
    except OSError as gone:
        fault = reader.fault or f"{type(gone).__name__}: {gone}"
    ended = reader.last_at if fault is None and reader.last_at else time.monotonic()
    request_fields: dict[str, Any] = {
        "prompt_id": request.prompt_id,
        "kind": request.kind,
        "concurrency": concurrency,
        "began_at": began - load_began,
        "seconds": ended - began,
    }
    try:
        return Sample(**request_fields, **reader.describe(began), error=fault)
    except (TypeError, AttributeError, ValueError) as odd:
        return Sample(**request_fields, error=fault or f"cannot read the answer: {_shorten(odd)}")


async def _wait(connection: HttpConnection, done: asyncio.Future[None]) -> str | None:
    """Wait for the answer's end; say what came before it: a long silence."""
    while not done.done():
        if time.monotonic() - connection.heard_at >= SILENCE_SECONDS:
            return f"no data for {SILENCE_SECONDS} s"
        await asyncio.wait((done,), timeout=SILENCE_SECONDS)
    done.result()
    return None


def _find_refusal(connection: HttpConnection) -> str | None:
    status = connection.reader.status
    if status == httpx.codes.OK:
        return None
    return f"answered {status}: {_shorten(connection.refusal.decode(errors='replace'))}"


def _thinks_or_calls(delta: dict[str, Any]) -> bool:
    return bool(delta.get("reasoning") or delta.get("reasoning_content") or delta.get("tool_calls"))


def _shorten(fault: object) -> str:
    return " ".join(str(fault).split())[:ERROR_CHARACTERS]
