"""The body of a request: read whole within limits, and given on as if it came from the client."""

import asyncio
import json

from slipstream.vllm_plugin.gate.answers import Message, Receive, Refusal
from slipstream.vllm_plugin.gate.key_ring import Headers
from slipstream.vllm_plugin.gate.settings import Limits


async def read_body(headers: Headers, receive: Receive, limits: Limits) -> bytes | None:
    """Give the body, or None if the client left before its end."""
    declared = headers.get(b"content-length", b"0")
    _require_size(int(declared) if declared.isdigit() else 0, limits.body_bytes)
    parts, size = [], 0
    try:
        async with asyncio.timeout(limits.body_seconds):
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    return None
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                _require_size(size, limits.body_bytes)
                if not message.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError as fault:
        late = f"the body did not come within {limits.body_seconds:g} s"
        raise Refusal(408, late) from fault


def replay(body: bytes, receive: Receive) -> Receive:
    """Give the body once, then what the client does next: it may leave."""
    given = False

    async def receive_again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again


def add_salt(body: bytes, salt: str) -> bytes:
    """Put a cache salt at the end of an object that is not empty: there it has the last word."""
    return body.rstrip()[:-1] + b', "cache_salt": ' + json.dumps(salt).encode() + b"}"


def _require_size(size: int, most: int) -> None:
    if size > most:
        raise Refusal(413, f"the body is larger than {most} bytes")
