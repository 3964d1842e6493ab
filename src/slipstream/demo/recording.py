"""`Take`: one streamed answer, each token with its time and whether it was drafted.

A step brings the accepted tokens of a draft and one of the target's own, in one chunk of the
stream: all tokens of a chunk but the last were drafted.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import httpx

from slipstream.errors import EngineError
from slipstream.measuring.client.completions import Request
from slipstream.measuring.client.endpoint import (
    SILENCE_SECONDS,
    Endpoint,
    no_answer,
    open_client,
    read_model,
)
from slipstream.measuring.client.streaming import StreamReader
from slipstream.measuring.client.wire import Wire
from slipstream.measuring.workloads import Prompt
from slipstream.records import Record

Decode = Callable[[Sequence[int]], str]

# With every core computing, a short answer may wait in the server and come whole.
ATTEMPTS = 3


class Token(Record):
    """One token; seconds since the request was sent."""

    id: int
    text: str
    seconds: float
    drafted: bool


class Take(Record):
    """One answer; `drafts` and `accepted` are the engine's own counts, zero without a drafter."""

    prompt: Prompt
    tokens: tuple[Token, ...]
    drafts: int
    accepted: int

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Return the ids alone."""
        return tuple(token.id for token in self.tokens)

    @property
    def seconds(self) -> float:
        """Return the time of the whole answer."""
        return self.tokens[-1].seconds

    @property
    def seconds_per_token(self) -> float:
        """Return the time per token after the first chunk: decoding alone, without prefill."""
        began = self.tokens[0].seconds
        return (self.seconds - began) / sum(token.seconds > began for token in self.tokens)

    @property
    def steps(self) -> int:
        """Count the target's passes after the first token: its drafts, or else its tokens."""
        began = self.tokens[0].seconds
        return self.drafts or sum(token.seconds > began for token in self.tokens)

    @property
    def decode_seconds(self) -> float:
        """Return the time after the first chunk."""
        return self.seconds - self.tokens[0].seconds

    @property
    def came_at_once(self) -> bool:
        """Return whether nothing can be told of its speed."""
        return self.tokens[0].seconds == self.seconds


class Chunk(NamedTuple):
    """Text that arrived together, and when."""

    seconds: float
    token_ids: tuple[int, ...]


def record(url: str, prompt: Prompt, decode: Decode) -> Take:
    """Send a greedy request and record when each token arrives."""
    for _ in range(ATTEMPTS):
        taken = asyncio.run(_ask(Endpoint(url), prompt, decode))
        if not taken.came_at_once:
            return taken
    raise EngineError(
        f"the tokens for {prompt.id} came all at once, {ATTEMPTS} times",
        hint="end what else computes on this machine, or ask for longer answers: --max-tokens",
    )


async def _ask(endpoint: Endpoint, prompt: Prompt, decode: Decode) -> Take:
    async with open_client(endpoint) as client:
        model = await read_model(client)
    wire = Wire(endpoint)
    try:
        return await _take(wire, prompt, model, decode)
    except OSError as fault:
        raise no_answer(endpoint.base, fault) from fault
    finally:
        wire.close()


async def _take(wire: Wire, prompt: Prompt, model: str, decode: Decode) -> Take:
    request = Request(messages=prompt.messages, max_tokens=prompt.max_tokens, extra=prompt.extra)
    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    post = wire.make_post(request.path, request.make_body(model) | streamed)
    reader = StreamReader()
    chunks: list[Chunk] = []
    async with wire.borrow() as connection:
        began = time.monotonic()

        def take(data: bytes, now: float) -> None:
            """Read an event at a time: two chunks that arrive together are still two."""
            for line in data.splitlines(keepends=True):
                known = len(reader.token_ids)
                reader.take(line, now)
                if new := tuple(reader.token_ids[known:]):
                    chunks.append(Chunk(now - began, new))

        await asyncio.wait_for(connection.send(post, take), SILENCE_SECONDS)
        fault = reader.find_fault()
        if connection.reader.status != httpx.codes.OK:
            fault = connection.refusal.decode(errors="replace")
    if fault or not chunks:
        raise EngineError(
            f"{prompt.id} was not answered: {fault or 'no token came'}",
            hint="look into the engine's log",
        )
    return Take(
        prompt=prompt,
        tokens=mark_tokens(chunks, decode, drafted=reader.drafts.drafts > 0),
        drafts=reader.drafts.drafts,
        accepted=reader.drafts.accepted,
    )


def mark_tokens(chunks: Sequence[Chunk], decode: Decode, *, drafted: bool) -> tuple[Token, ...]:
    """Return each token its text, and mark what was drafted, where anything was."""
    texts = iter(_split_text([token for chunk in chunks for token in chunk.token_ids], decode))
    return tuple(
        Token(
            id=token,
            text=next(texts),
            seconds=chunk.seconds,
            drafted=drafted and place < len(chunk.token_ids) - 1,
        )
        for chunk in chunks
        for place, token in enumerate(chunk.token_ids)
    )


def _split_text(token_ids: Sequence[int], decode: Decode) -> list[str]:
    """Return the text that each token adds; a character of several tokens comes with the last."""
    grown = [
        decode(token_ids[:count]).rstrip("\N{REPLACEMENT CHARACTER}")
        for count in range(len(token_ids) + 1)
    ]
    return [after[len(before) :] for before, after in pairwise(grown)]
