"""The gate's own answers, in the format of the API in use, and the engine's where they are changed.

vLLM 0.32 answers on Anthropic's routes with OpenAI's form if a field is faulty, with names of its
own for the kinds (`BadRequestError`) if it is not, and in a stream with `internal_error`. Its list
of models has their folders.
"""

import json
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Self

from slipstream.vllm_plugin.gate.routes import is_anthropic

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

# The kind that clients read, and the reason in logs and metrics: a message may quote the client.
STATUSES = {
    400: ("invalid_request_error", "bad_request"),
    401: ("authentication_error", "no_valid_key"),
    403: ("permission_error", "foreign_page"),
    404: ("not_found_error", "no_such_route"),
    408: ("timeout_error", "slow_body"),
    413: ("request_too_large", "large_body"),
    429: ("rate_limit_error", "too_many_requests"),
    500: ("server_error", "other"),
    503: ("unavailable_error", "stopping"),
}
ANTHROPIC_KINDS = {500: "api_error", 503: "overloaded_error"}
# The other refusals are made before the body was read, and nobody will read it.
KEEP_THE_CONNECTION = (400, 429)
_ERROR_IN_STREAM = b"event: error"


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
        self.reason = reason or STATUSES[status][1]
        self.headers = headers

    def forget(self) -> Self:
        """Close the frames that raised it: they hold the whole request."""
        self.__cause__ = self.__context__ = None
        return self.with_traceback(None)


def try_later(status: int, message: str, seconds: int, *, reason: str | None = None) -> Refusal:
    headers = ((b"retry-after", str(seconds).encode()),)
    return Refusal(status, message, reason=reason, headers=headers)


async def send_refusal(send: Send, refusal: Refusal, *, method: str, path: str) -> None:
    """Send the refusal; a connection with an unread body is closed."""
    headers = refusal.headers
    if method not in ("GET", "HEAD") and refusal.status not in KEEP_THE_CONNECTION:
        headers += ((b"connection", b"close"),)
    if is_anthropic(path):
        document = _describe_anthropic_error(refusal.status, refusal.message)
    else:
        document = _describe_openai_error(refusal)
    await send_json(send, refusal.status, document, headers)


async def send_json(
    send: Send, status: int, document: object, headers: tuple[tuple[bytes, bytes], ...] = ()
) -> None:
    await send_body(send, status, b"application/json", json.dumps(document).encode(), headers)


async def send_body(
    send: Send, status: int, kind: bytes, body: bytes, headers: tuple[tuple[bytes, bytes], ...]
) -> None:
    length = (b"content-length", str(len(body)).encode())
    own = [(b"content-type", kind), length, *headers]
    await send({"type": "http.response.start", "status": status, "headers": own})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def _describe_anthropic_error(status: int, message: str) -> dict[str, object]:
    usual = "api_error" if status >= 500 else "invalid_request_error"
    kind = ANTHROPIC_KINDS.get(status) or STATUSES.get(status, (usual,))[0]
    return {"type": "error", "error": {"type": kind, "message": message}}


def _describe_openai_error(refusal: Refusal) -> dict[str, object]:
    error = {
        "message": refusal.message,
        "type": STATUSES[refusal.status][0],
        "param": refusal.field,
        "code": refusal.status,
    }
    return {"error": error}


def translate_errors(send: Send, path: str) -> Send:
    """Translate errors in the answers of an Anthropic route; other answers pass unchanged."""
    if not is_anthropic(path):
        return send

    async def send_translated(message: Message) -> None:
        if message.get("body", b"").startswith(_ERROR_IN_STREAM):
            body = message["body"].replace(b'"internal_error"', b'"api_error"')
            message = {**message, "body": body}
        await send(message)

    return _change_whole(send_translated, lambda status: status >= 400, _translate_error)


def show_names_only(send: Send, allowed: tuple[str, ...] | None) -> Send:
    """Hide the folders of models, and models of other keys; anything else passes unchanged."""

    def hide(status: int, body: bytes) -> bytes:
        try:
            document = json.loads(body)
            listed = [{**one, "root": one["id"]} for one in document["data"]]
        except (ValueError, TypeError, LookupError):
            return body
        document["data"] = [one for one in listed if allowed is None or one["id"] in allowed]
        return json.dumps(document).encode()

    return _change_whole(send, lambda status: status == 200, hide)


def with_length(headers: Iterable[tuple[bytes, bytes]], length: int) -> list[tuple[bytes, bytes]]:
    dropped = (b"content-length", b"transfer-encoding")
    kept = [one for one in headers if one[0].lower() not in dropped]
    return [*kept, (b"content-length", str(length).encode())]


def _change_whole(
    send: Send, concerns: Callable[[int], bool], change: Callable[[int, bytes], bytes]
) -> Send:
    """Hold an answer of some status back until it is whole, and send what becomes of it."""
    start: Message = {}
    parts: list[bytes] = []

    async def send_changed(message: Message) -> None:
        nonlocal start
        if message["type"] == "http.response.start" and concerns(message["status"]):
            start = message
        elif start:
            parts.append(message.get("body", b""))
            if not message.get("more_body", False):
                body = change(start["status"], b"".join(parts))
                headers = with_length(start.get("headers", ()), len(body))
                await send({**start, "headers": headers})
                await send({**message, "body": body})
        else:
            await send(message)

    return send_changed


def _translate_error(status: int, body: bytes) -> bytes:
    try:
        message = str(json.loads(body)["error"]["message"])
    except (ValueError, TypeError, LookupError, RecursionError):
        message = body.decode(errors="replace") or "the engine gave no reason"
    return json.dumps(_describe_anthropic_error(status, message)).encode()
