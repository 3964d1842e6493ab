"""The engine's errors on Anthropic's routes, in Anthropic's format.

vLLM 0.32 answers there with OpenAI's form if a field is faulty, with names of its own for the kinds
(`BadRequestError`) if it is not, and in a stream with `internal_error`.
"""

import json

from slipstream.vllm_plugin.gate.answers import Message, Send, describe_anthropic_error
from slipstream.vllm_plugin.gate.routes import is_anthropic

_IN_STREAM = b"event: error"


def translate_errors(send: Send, path: str) -> Send:
    """Translate errors in the answers of an Anthropic route; other answers pass unchanged."""
    if not is_anthropic(path):
        return send
    start: Message = {}
    parts: list[bytes] = []

    async def send_translated(message: Message) -> None:
        nonlocal start
        if message["type"] == "http.response.start" and message["status"] >= 400:
            start = message
        elif start:
            parts.append(message.get("body", b""))
            if not message.get("more_body", False):
                body = _translate(start["status"], b"".join(parts))
                await send({**start, "headers": _with_length(start, len(body))})
                await send({**message, "body": body})
        elif message.get("body", b"").startswith(_IN_STREAM):
            body = message["body"].replace(b'"internal_error"', b'"api_error"')
            await send({**message, "body": body})
        else:
            await send(message)

    return send_translated


def _translate(status: int, body: bytes) -> bytes:
    try:
        message = str(json.loads(body)["error"]["message"])
    except (ValueError, TypeError, LookupError, RecursionError):
        message = body.decode(errors="replace") or "the engine gave no reason"
    return json.dumps(describe_anthropic_error(status, message)).encode()


def _with_length(start: Message, length: int) -> list[tuple[bytes, bytes]]:
    kept = [one for one in start.get("headers", ()) if one[0].lower() != b"content-length"]
    return [*kept, (b"content-length", str(length).encode())]
