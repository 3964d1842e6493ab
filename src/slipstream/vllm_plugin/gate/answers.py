"""The gate's own answers, in the format of the API in use."""

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Self

from slipstream.vllm_plugin.gate.routes import is_anthropic

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "server_error",
    503: "unavailable_error",
}
ANTHROPIC_KINDS = {**KINDS, 500: "api_error", 503: "overloaded_error"}
# Logs and metrics say why by these codes: a message may quote the client.
REASONS = {
    400: "bad_request",
    401: "no_valid_key",
    403: "foreign_page",
    404: "no_such_route",
    408: "slow_body",
    413: "large_body",
    429: "too_many_requests",
    503: "leaving",
}
# The other refusals are made before the body was read, and nobody will read it.
KEEP_THE_CONNECTION = (400, 429)


class Refusal(Exception):
    """A request that goes no further, and why; `field` names the part of it that is at fault.

    `reason` is a short code for logs; without one it is that of the status.
    `caller` is empty as long as nobody knows who asked.
    """

    caller = ""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        field: str | None = None,
        reason: str | None = None,
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.field = field
        self.reason = reason or REASONS.get(status, "other")
        self.headers = headers

    def forget(self) -> Self:
        """Close the frames that raised it: they hold the whole request."""
        self.__cause__ = self.__context__ = None
        return self.with_traceback(None)


def try_later(status: int, message: str, seconds: int, *, reason: str | None = None) -> Refusal:
    """Return a refusal with a Retry-After time."""
    headers = ((b"retry-after", str(seconds).encode()),)
    return Refusal(status, message, reason=reason, headers=headers)


async def send_refusal(send: Send, refusal: Refusal, *, method: str, path: str) -> None:
    """Send the refusal; a connection with an unread body is closed."""
    headers = refusal.headers
    if method not in ("GET", "HEAD") and refusal.status not in KEEP_THE_CONNECTION:
        headers += ((b"connection", b"close"),)
    if is_anthropic(path):
        document = describe_anthropic_error(refusal.status, refusal.message)
    else:
        document = _describe_openai_error(refusal)
    await send_json(send, refusal.status, document, headers)


async def send_json(
    send: Send, status: int, document: object, headers: tuple[tuple[bytes, bytes], ...] = ()
) -> None:
    """Send one JSON document."""
    body = json.dumps(document).encode()
    length = (b"content-length", str(len(body)).encode())
    own = [(b"content-type", b"application/json"), length, *headers]
    await send({"type": "http.response.start", "status": status, "headers": own})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def describe_anthropic_error(status: int, message: str) -> dict[str, object]:
    """Return an error as Anthropic's clients read it."""
    kind = ANTHROPIC_KINDS.get(status, "api_error" if status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


def _describe_openai_error(refusal: Refusal) -> dict[str, object]:
    error = {
        "message": refusal.message,
        "type": KINDS[refusal.status],
        "param": refusal.field,
        "code": refusal.status,
    }
    return {"error": error}
