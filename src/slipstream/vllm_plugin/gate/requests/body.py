"""The body of a request: read completely within limits, and passed on unchanged."""

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from slipstream.serving.access.gate_file import GateSettings
from slipstream.vllm_plugin.gate.answers import Message, Receive, Refusal, try_later
from slipstream.vllm_plugin.gate.callers.key_ring import Headers

Result = TypeVar("Result")


class BodyMemory:
    """What bodies take that are larger than usual, of all requests together."""

    def __init__(self) -> None:
        self._taken = 0

    @contextmanager
    def hold(self) -> Iterator[Callable[[int, int], bool]]:
        """Yield what takes more for one body, up to a limit, as long as the block lasts."""
        held = 0

        def grow(size: int, most: int) -> bool:
            nonlocal held
            self._taken += max(0, size - held)
            held = max(held, size)
            return self._taken <= most

        try:
            yield grow
        finally:
            self._taken -= held


async def read_body(
    headers: Headers, receive: Receive, settings: GateSettings, grow: Callable[[int, int], bool]
) -> bytes | None:
    """Return the body, or None if the client left before its end."""
    limits, longest = settings.limits, settings.longest_body

    def require_room(size: int) -> None:
        if size > longest:
            raise Refusal(413, f"the body is larger than {longest} bytes")
        beyond = size - limits.body_bytes
        if beyond > 0 and not grow(beyond, settings.media.waiting_bytes):
            what = "the server cannot hold more images now"
            raise try_later(503, what, settings.retry_after_seconds, reason="media")

    declared = headers.get(b"content-length", b"0")
    require_room(int(declared) if declared.isdigit() else 0)
    parts, size = [], 0
    try:
        async with asyncio.timeout(limits.body_seconds):
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    return None
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                require_room(size)
                if not message.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError as fault:
        late = f"the body did not arrive within {limits.body_seconds:g} s"
        raise Refusal(408, late) from fault


async def await_leaving(receive: Receive) -> None:
    """Wait until the client disconnects; its body was read, so nothing else can come."""
    with suppress(OSError):
        while (await receive())["type"] != "http.disconnect":
            continue


async def unless_left(work: Coroutine[Any, Any, Result], receive: Receive) -> Result | None:
    """Do some work, or end it and return None if the client leaves before it is done."""
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(await_leaving(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        leaving.cancel()
        working.cancel()


def replay(body: bytes, receive: Receive) -> Receive:
    """Return the body once, then what the client does next: it may leave."""
    given = False

    async def receive_again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again


def append_fields(body: bytes, fields: dict[str, object]) -> bytes:
    """Put fields at the end of an object that is not empty: there they have the last word."""
    return body.rstrip()[:-1] + b", " + json.dumps(fields).encode()[1:]
