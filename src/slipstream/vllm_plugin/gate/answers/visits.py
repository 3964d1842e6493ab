"""Every request from its head to its end: its id, its log line and its counts.

A `Visit` travels in the scope and is filled on the way. It holds no text of the client but what
`_shorten` leaves of an unknown path, and never a prompt, an answer or a key.

Only our own id reaches the engine: two clients may send the same one, and some of vLLM's connectors
read addresses out of it. A client gets its own back, if it is harmless.
"""

import os
import re
import time
from collections import deque
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from slipstream.serving.access.gate_file import GateSettings
from slipstream.vllm_plugin.gate.answers import (
    App,
    Message,
    Receive,
    Refusal,
    Scope,
    Send,
    send_refusal,
)
from slipstream.vllm_plugin.gate.answers.metrics import OTHER, open_metrics
from slipstream.vllm_plugin.gate.answers.records import AccessLog
from slipstream.vllm_plugin.gate.answers.tokens import BEFORE_TOKENS, Usage, read_usage
from slipstream.vllm_plugin.gate.callers.key_ring import SUPERVISOR
from slipstream.vllm_plugin.gate.routes import SCOPES, name_route

VISIT = "slipstream.visit"
HEADER = b"x-request-id"
_HARMLESS = re.compile(rb"[A-Za-z0-9._:=-]{1,64}")
_TRACE = re.compile(rb"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
TEXT_CHARACTERS = 64
# A stream's usage comes shortly before its end: '[DONE]' and an empty part may follow.
LAST_CHUNKS = 4


class Visit:
    """One request; the gate fills in the caller and the refusal."""

    def __init__(self, scope: Scope) -> None:
        headers, client = scope["headers"], scope.get("client")
        path = (scope.get("raw_path") or b"").partition(b"?")[0].decode("latin-1")
        self.at, self.began = time.time(), time.monotonic()
        self.id = os.urandom(8).hex()
        self.client_id = _read_only(headers, HEADER, _HARMLESS)
        self.trace_id = _read_only(headers, b"traceparent", _TRACE)
        self.client = _shorten(client[0]) if client else None
        self.method = scope["method"]
        self.path, self.route = path, name_route(self.method, path)
        self.caller = ""
        self.refused: str | None = None
        self.field: str | None = None
        self.status: int | None = None
        self.handed_over = self.streamed = self.complete = self.left = False
        self.first: float | None = None
        self.body_bytes = self.answer_bytes = self.chunks = 0
        self.last_chunks: deque[bytes] = deque(maxlen=LAST_CHUNKS)

    def refuse(self, refusal: Refusal) -> None:
        """Note why the request was refused; the message may quote the client and is not logged."""
        self.refused, self.field = refusal.reason, refusal.field

    def watch(self, receive: Receive, send: Send) -> tuple[Receive, Send]:
        """Observe what is received and sent, and add the id to the response headers."""

        async def receive_watched() -> Message:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.left = self.left or not self.complete
            else:
                self.body_bytes += len(message.get("body", b""))
            return message

        async def send_watched(message: Message) -> None:
            if self.left:
                pass  # vLLM goes on for a moment, to nobody.
            elif message["type"] == "http.response.body":
                self._see(message)
            elif message["type"] == "http.response.start":
                message = self._begin_answer(message)
            await send(message)

        return receive_watched, send_watched

    def describe_end(self) -> str:
        """Return how it ended: 'complete', 'left' if the client did not wait, or 'failed'."""
        return "complete" if self.complete else "left" if self.left else "failed"

    def describe_status(self) -> str:
        """Return the status as a label: its class if the answer is whole."""
        return f"{self.status // 100}xx" if self.status and self.complete else self.describe_end()

    @property
    def first_seconds(self) -> float | None:
        """Seconds to the first token, known only of a stream."""
        return self.first - self.began if self.first is not None and self.streamed else None

    def describe(self, seconds: float) -> dict[str, object]:
        usages = (read_usage(chunk) for chunk in reversed(self.last_chunks))
        usage = next((usage for usage in usages if usage != Usage()), Usage())
        first = self.first_seconds
        return {
            "schema_version": 1,
            "at": datetime.fromtimestamp(self.at, UTC).isoformat(timespec="milliseconds"),
            "id": self.id,
            "client_id": self.client_id,
            "trace_id": self.trace_id,
            "key": self.caller or None,
            "client": self.client,
            "route": _shorten(self.route),
            "status": self.status,
            "ended": self.describe_end(),
            "refused": self.refused,
            "field": self.field,
            "prompt_tokens": usage.prompt,
            "completion_tokens": usage.answer,
            "chunks": self.chunks if self.streamed else None,
            "seconds": round(seconds, 4),
            "first_seconds": None if first is None else round(first, 4),
            "body_bytes": self.body_bytes,
            "answer_bytes": self.answer_bytes,
        }

    def _begin_answer(self, message: Message) -> Message:
        self.status = message["status"]
        headers = [header for header in message.get("headers", ()) if header[0] != HEADER]
        kind = dict(headers).get(b"content-type", b"")
        self.streamed = kind.startswith(b"text/event-stream")
        shown = (self.client_id or self.id).encode()
        return {**message, "headers": [*headers, (HEADER, shown)]}

    def _see(self, message: Message) -> None:
        """Observe a part of the answer without reading it, since this runs for every token."""
        if body := message.get("body"):
            if self.first is None and not body.startswith(BEFORE_TOKENS):
                self.first = time.monotonic()
            self.chunks += 1
            self.answer_bytes += len(body)
            self.last_chunks.append(body)
        if not message.get("more_body"):
            self.complete = True


class Visits:
    """Follows requests, and counts and logs those that ended; `quiet` routes are only counted."""

    def __init__(self, settings: GateSettings, quiet: Iterable[str]) -> None:
        self._quiet = frozenset(quiet)
        self._known = self._quiet | SCOPES.keys()
        self._metrics = open_metrics()
        self._log = AccessLog(
            settings.access_log,
            limit_bytes=settings.access_log_bytes,
            older=settings.access_logs_kept,
            drop=self._metrics.dropped_lines.inc,
        )
        self._connections: Any = ()

    def start(self, scope: Scope) -> None:
        """Find the connections of uvicorn, in which vLLM's app runs."""
        server = getattr(getattr(scope.get("app"), "state", None), "server", None)
        self._connections = getattr(getattr(server, "server_state", None), "connections", ())

    def close(self) -> None:
        self._log.close()

    async def follow(self, app: App, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request, with its visit in the scope."""
        visit = Visit(scope)
        receive, send = visit.watch(receive, send)
        self._metrics.waiting.inc()
        self._metrics.connections.set(len(self._connections))
        try:
            await app({**scope, VISIT: visit}, receive, send)
        except Exception:
            if visit.status is None:
                fault = Refusal(500, "the server failed; the request is not the cause")
                await send_refusal(send, fault, method=visit.method, path=visit.path)
            raise
        finally:
            self._end(visit)

    def hand_over(self, app: App) -> App:
        """Wrap the engine's app: requests that reach it are counted and get an id of ours."""

        async def take(scope: Scope, receive: Receive, send: Send) -> None:
            if (visit := scope.get(VISIT)) is not None:
                visit.handed_over = True
                self._metrics.waiting.dec()
                self._metrics.in_flight.inc()
                named = [*scope["headers"], (HEADER, visit.id.encode())]
                scope = {name: value for name, value in scope.items() if name != VISIT}
                scope["headers"] = named
            await app(scope, receive, send)

        return take

    def _end(self, visit: Visit) -> None:
        metrics, seconds = self._metrics, time.monotonic() - visit.began
        route = visit.route if visit.route in self._known else OTHER
        (metrics.in_flight if visit.handed_over else metrics.waiting).dec()
        metrics.count_request(route, visit.describe_status(), visit.caller)
        if visit.body_bytes:
            metrics.body_bytes.observe(visit.body_bytes)
        if visit.refused is not None:
            metrics.count_refusal(visit.refused, visit.caller)
        elif visit.handed_over:
            metrics.observe_seconds(route, seconds, visit.first_seconds)
        quiet = visit.route in self._quiet and visit.refused is None
        if not quiet and visit.caller != SUPERVISOR.id:
            self._log.add(visit.describe(seconds))


def _shorten(text: str) -> str:
    """Return a client's text in a form that is safe for logs and terminals."""
    kept = text[:TEXT_CHARACTERS]
    safe = "".join(sign if sign.isascii() and sign.isprintable() else "?" for sign in kept)
    return safe if len(kept) == len(text) else f"{safe}..."


def _read_only(
    headers: Iterable[tuple[bytes, bytes]], name: bytes, form: re.Pattern[bytes]
) -> str | None:
    """Return a header's value, or the part of it that counts, unless it is odd or sent twice."""
    given = [value for one, value in headers if one == name]
    found = form.fullmatch(given[0]) if len(given) == 1 else None
    return None if found is None else found[found.lastindex or 0].decode()
