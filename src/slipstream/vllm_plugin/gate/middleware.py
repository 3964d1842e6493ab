"""The gate: a pure ASGI middleware in vLLM's API server, before everything of vLLM's.

Used as `--middleware slipstream.vllm_plugin.gate.middleware.Gate`. A request is judged by the
bytes of its path and of its body, and the engine routes by the very path that was judged. What
passes is given on as it came, and answers are not touched: only counted.
"""

import json
import logging
import os
from dataclasses import dataclass

from slipstream.vllm_plugin.gate.accounting import Accounting
from slipstream.vllm_plugin.gate.answers import (
    App,
    Message,
    Receive,
    Refusal,
    Scope,
    Send,
    send_json,
    send_refusal,
    try_later,
)
from slipstream.vllm_plugin.gate.compiled_constraints import list_forms
from slipstream.vllm_plugin.gate.key_ring import (
    ANYONE,
    SUPERVISOR,
    Caller,
    Headers,
    KeyRing,
    is_loopback,
)
from slipstream.vllm_plugin.gate.recording import Recorder
from slipstream.vllm_plugin.gate.refusal_pace import RefusalPace
from slipstream.vllm_plugin.gate.request_body import add_salt, read_body, replay
from slipstream.vllm_plugin.gate.request_heads import bound_heads
from slipstream.vllm_plugin.gate.request_limits import Document
from slipstream.vllm_plugin.gate.request_policy import ANSWER_FIELDS, apply_policy, parse_body
from slipstream.vllm_plugin.gate.schema_pace import Release, SchemaPace, hold_nothing
from slipstream.vllm_plugin.gate.settings import read_settings
from slipstream.vllm_plugin.gate.watched_file import WatchedFile

ALIVE = ("GET /livez", "HEAD /livez")
READY = ("GET /readyz", "HEAD /readyz")
FOR_THIS_MACHINE = ("GET /metrics", "GET /health")
LEAVING = ("draining", "stopping")
# The key is the gate's affair. The others would choose a request's id, rank and place in the queue.
DROPPED_HEADERS = frozenset(
    {b"authorization", b"x-api-key", b"x-request-id", b"x-vllm-priority", b"x-data-parallel-rank"}
)
FORWARDED = frozenset({b"forwarded", b"via", b"x-forwarded-for", b"x-real-ip"})
WARNING = b"x-slipstream-warning"
UNBOUNDED = (
    "slipstream gate: not started: request heads cannot be bounded in this server, "
    "which takes uvicorn with httptools"
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _State:
    """What the supervisor says of the engine."""

    name: str
    reasons: tuple[str, ...] = ()


UNKNOWN = _State("unknown", ("no word from the supervisor",))


class Gate:
    """Lets pass what is allowed, from whom it is allowed, within limits."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.settings = read_settings(os.environ)
        self._keys = KeyRing(self.settings)
        self._state = WatchedFile(self.settings.state_file, _parse_state, absent=UNKNOWN)
        self._accounting = Accounting(self.settings.accounting_folder)
        self._recorder = Recorder(self.settings.recording)
        self._pace = RefusalPace(self.settings.refusals_per_second)
        self._schema_pace = SchemaPace(self.settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one connection of a server."""
        if scope["type"] == "lifespan":
            await self._start(scope, receive, send)
        elif scope["type"] == "http":
            try:
                await self._answer(scope, receive, send)
                return
            except Refusal as fault:
                refusal = fault.forget()
            # Outside of the block above, so that what waits here does not hold its body.
            await self._pace.wait(refusal.caller)
            await send_refusal(send, refusal, method=scope["method"])
        else:
            await send({"type": "websocket.close", "code": 1008})

    async def _start(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the server start, unless it would take heads without bounds."""
        if not bound_heads(scope, self.settings.limits):
            _log.error(UNBOUNDED)
            await receive()
            await send({"type": "lifespan.startup.failed", "message": UNBOUNDED})
            return
        self._accounting.write()
        await self.app(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = (scope.get("raw_path") or b"").partition(b"?")[0].decode("latin-1")
        route = f"{scope['method']} {path}"
        headers = dict(scope["headers"])
        if route in ALIVE:
            await send_json(send, 200, {"state": "alive"})
        elif route in READY:
            await self._tell_state(send)
        elif route in FOR_THIS_MACHINE:
            if not _is_from_here(scope, headers):
                self._keys.require_caller(headers)
            await self.app(_settle(scope, path), receive, send)
        elif route not in self.settings.routes:
            raise Refusal(404, "there is nothing here")
        else:
            caller = self._keys.require_caller(headers)
            try:
                await self._admit(_settle(scope, path), headers, caller, receive, send)
            except Refusal as refusal:
                refusal.caller = caller.id
                raise

    async def _admit(
        self, scope: Scope, headers: Headers, caller: Caller, receive: Receive, send: Send
    ) -> None:
        if caller is not SUPERVISOR and self._state.read().name in LEAVING:
            raise self._try_later(503, "the server is about to stop")
        if scope["method"] == "GET":
            await self.app(scope, receive, send)
        elif (body := await read_body(headers, receive, self.settings.limits)) is not None:
            await self._pass_on(scope, body, caller, receive, send)

    async def _tell_state(self, send: Send) -> None:
        state = self._state.read()
        ready = state.name == "ready"
        told = {"state": state.name, "reasons": state.reasons}
        await send_json(send, 200 if ready else 503, told)

    async def _pass_on(
        self, scope: Scope, body: bytes, caller: Caller, receive: Receive, send: Send
    ) -> None:
        """Give a request to the engine, if its body keeps the rules, and count it."""
        path, document = scope["path"], parse_body(body, self.settings.limits)
        came = body
        if warnings := apply_policy(document, body, path, self.settings):
            body = json.dumps(document).encode()
        if caller.cache_salt is not None and document:
            body = add_salt(body, caller.cache_salt + (document.get("cache_salt") or ""))
        if body is not came:
            scope["headers"] = _with_length(scope["headers"], len(body))
        self._require_room(caller)
        release = self._admit_forms(caller, document)
        if caller is not SUPERVISOR and path in ANSWER_FIELDS:
            self._recorder.record(document)
        with self._accounting.count(caller.id, len(body)):
            await self.app(scope, *self._watch(replay(body, receive), send, warnings, release))

    def _require_room(self, caller: Caller) -> None:
        """Keep one key from taking the whole server; without keys all are one, and unlimited."""
        most = self.settings.requests_per_key
        if (
            caller not in (ANYONE, SUPERVISOR)
            and self._accounting.count_under_way(caller.id) >= most
        ):
            raise self._try_later(429, f"{most} requests of this key are under way")

    def _admit_forms(self, caller: Caller, document: Document) -> Release:
        """Count what the engine has to compile for a key; give what ends the count."""
        paced = self.settings.constraints == "plain" and caller not in (ANYONE, SUPERVISOR)
        forms = list_forms(document) if paced else []
        return self._schema_pace.admit(caller.id, forms) if forms else hold_nothing

    def _try_later(self, status: int, message: str) -> Refusal:
        return try_later(status, message, self.settings.retry_after_seconds)

    def _watch(
        self, receive: Receive, send: Send, warnings: list[str], release: Release
    ) -> tuple[Receive, Send]:
        """Note when the engine gives something, and add the warnings to its headers.

        After a client has left, vLLM answers nobody with 200: that is no sign of life.
        """
        warning = [(WARNING, "; ".join(warnings).encode())] if warnings else []
        succeeds = has_left = False

        async def receive_watched() -> Message:
            nonlocal has_left
            message = await receive()
            has_left = has_left or message["type"] == "http.disconnect"
            return message

        async def send_watched(message: Message) -> None:
            nonlocal succeeds
            if message["type"] == "http.response.start":
                succeeds = message["status"] == 200
                if warning:
                    message = {**message, "headers": [*message.get("headers", ()), *warning]}
            elif succeeds and not has_left:
                self._accounting.see_token()
                release()
            await send(message)

        return receive_watched, send_watched


def _settle(scope: Scope, path: str) -> Scope:
    """Leave the engine no other path to route by, and none of the headers that it must not see."""
    kept = [header for header in scope["headers"] if header[0] not in DROPPED_HEADERS]
    return {**scope, "path": path, "raw_path": path.encode(), "root_path": "", "headers": kept}


def _with_length(headers: list[tuple[bytes, bytes]], length: int) -> list[tuple[bytes, bytes]]:
    kept = [one for one in headers if one[0] not in (b"content-length", b"transfer-encoding")]
    return [*kept, (b"content-length", str(length).encode())]


def _is_from_here(scope: Scope, headers: Headers) -> bool:
    """Say whether a program of this machine asks; what a proxy passes on is from elsewhere."""
    client = scope.get("client")
    return not FORWARDED & headers.keys() and (client is None or is_loopback(client[0]))


def _parse_state(content: bytes) -> _State:
    try:
        document = json.loads(content)
        return _State(str(document["state"]), tuple(map(str, document.get("reasons", ()))))
    except (ValueError, TypeError, LookupError, AttributeError):
        return UNKNOWN
