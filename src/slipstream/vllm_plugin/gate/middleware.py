"""The gate: a pure ASGI middleware, the outermost of vLLM's API server.

Used as `--middleware slipstream.vllm_plugin.gate.middleware.Gate`. A request is checked by the
bytes of its path and of its body, and the engine routes by the very path that was checked. What
passes is given on as it came, and answers are only counted and given an id.
"""

import asyncio
import json
import logging
import os
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any

from slipstream.serving.access.gate_file import GATE_VARIABLE, GateSettings
from slipstream.vllm_plugin.gate.answers import (
    App,
    Message,
    Receive,
    Refusal,
    Scope,
    Send,
    send_json,
    send_refusal,
    show_names_only,
    translate_errors,
    try_later,
    with_length,
)
from slipstream.vllm_plugin.gate.answers.records import RequestRecorder
from slipstream.vllm_plugin.gate.answers.tokens import AnswerTokens
from slipstream.vllm_plugin.gate.answers.view import (
    ASK_PASSWORD,
    View,
    is_for_here,
    is_from_here,
    take_password,
)
from slipstream.vllm_plugin.gate.answers.view import ROUTES as VIEW_ROUTES
from slipstream.vllm_plugin.gate.answers.visits import VISIT, Visit, Visits
from slipstream.vllm_plugin.gate.callers.key_ring import (
    ANYONE,
    SUPERVISOR,
    Caller,
    Headers,
    KeyRing,
    require_probe,
    require_scope,
)
from slipstream.vllm_plugin.gate.connections import bound_connections, give_way, hold_place
from slipstream.vllm_plugin.gate.constraints.forms import ConstraintForm
from slipstream.vllm_plugin.gate.constraints.measuring import Constraints
from slipstream.vllm_plugin.gate.requests.body import (
    BodyMemory,
    append_fields,
    read_body,
    replay,
    unless_left,
)
from slipstream.vllm_plugin.gate.requests.content import IMAGE_BYTES, measure_images
from slipstream.vllm_plugin.gate.requests.limits import (
    Document,
    count_sequences,
    require_short_text,
)
from slipstream.vllm_plugin.gate.requests.policy import (
    ANSWER_FIELDS,
    apply_policy,
    find_longest_answer,
    parse_body,
)
from slipstream.vllm_plugin.gate.requests.shapes import Shapes
from slipstream.vllm_plugin.gate.requests.tags import make_tag, wants_drafts
from slipstream.vllm_plugin.gate.routes import CANCEL, MODELS, RESPONSES, SCOPES, WITHOUT_ENGINE
from slipstream.vllm_plugin.gate.run_link import RunLink
from slipstream.vllm_plugin.gate.settings import WatchedFile, make_settings, read_settings
from slipstream.vllm_plugin.gate.shares.caller_limits import CallerLimits, RefusalPace
from slipstream.vllm_plugin.gate.shares.fair_shares import FairShares, Seat
from slipstream.vllm_plugin.gate.shares.server_time import TOKENIZED, ServerTime, follow_tokenizer
from slipstream.vllm_plugin.steering.exposition import expose_steering

ALIVE = ("GET /livez", "HEAD /livez")
READY = ("GET /readyz", "HEAD /readyz")
HEALTH = "GET /health"
METRICS = "GET /metrics"
LEAVING = ("draining", "stopping")
# Those who are not one key beside others.
UNSHARED = (ANYONE, SUPERVISOR)
PRIORITY = b"x-vllm-priority"
# The key is the gate's affair. The others would choose a request's id, rank and place in the queue.
DROPPED_HEADERS = frozenset(
    {
        *(b"authorization", b"x-api-key", b"x-request-id", b"x-session-id"),
        *(PRIORITY, b"x-data-parallel-rank"),
    }
)
WARNING = b"x-slipstream-warning"
UNBOUNDED = (
    "slipstream gate: not started: connections cannot be limited in this server, "
    "which needs uvicorn with httptools"
)
UNREAD = "slipstream gate: not started: what it checks requests with could not be read from vLLM"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _CheckedRequest:
    """An accepted request: its body, and what it needs from the engine."""

    body: bytes
    prompt_bytes: int
    warnings: list[str]
    sequences: int
    answer_tokens: float | None


class Gate:
    """Admits requests that are allowed for their caller and within limits."""

    def __init__(self, app: App) -> None:
        self.settings = read_settings(os.environ)
        self._visits = Visits(self.settings, quiet=(*ALIVE, *READY, HEALTH, METRICS, *VIEW_ROUTES))
        self.app = self._visits.hand_over(app)
        self._newer = WatchedFile(os.environ[GATE_VARIABLE], self._read_newer, absent=self.settings)
        self._keys = KeyRing(self.settings)
        self.run = RunLink(self.settings)
        expose_steering(lambda: self.run.steering)
        self._view = View(self.settings.served_names, self.run)
        self._limits = CallerLimits()
        self._memory = BodyMemory()
        self._shares = FairShares(self.settings.seats, self.run.accounting)
        self._recorder = RequestRecorder(self.settings.recording)
        self._pace = RefusalPace(self.settings.refusals_per_second)
        self._constraints = Constraints()
        self._shapes = Shapes()
        self._time = ServerTime()
        self._longest_text: int | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._visits.follow(self._check_route, scope, receive, send)
        else:
            await self._check_route(scope, receive, send)

    async def _check_route(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._start(scope, receive, send)
        elif scope["type"] == "http":
            try:
                await self._answer(scope, receive, send)
                return
            except Refusal as fault:
                refusal = fault.forget()
            scope[VISIT].refuse(refusal)
            # Outside of the block above, so that what waits here does not hold its body.
            give_way(scope)
            await self._pace.wait(refusal.caller)
            await send_refusal(send, refusal, method=scope["method"], path=scope[VISIT].path)
        else:
            await send({"type": "websocket.close", "code": 1008})

    async def _start(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Start the server, unless it could not be guarded."""
        if (fault := self._prepare(scope)) is not None:
            await receive()
            await send({"type": "lifespan.startup.failed", "message": fault})
            return
        self._visits.start(scope)
        following = asyncio.create_task(self._view.follow())
        self.run.start(scope)
        try:
            await self.app(scope, receive, send)
        finally:
            following.cancel()
            self.run.close()
            self._constraints.worker.close()
            self._visits.close()

    def _prepare(self, scope: Scope) -> str | None:
        """Prepare what guards the server, and return what could not be."""
        if not bound_connections(scope, self.settings.limits):
            _log.error(UNBOUNDED)
            return UNBOUNDED
        try:
            self._read_engine(scope["app"])
            if self.settings.generates:
                self._constraints.worker.prepare(getattr(scope["app"].state, "vllm_config", None))
        except Exception:  # noqa: BLE001 uvicorn would serve without what failed.
            _log.exception(UNREAD)
            return UNREAD
        return None

    def _read_engine(self, app: Any) -> None:
        """Read what vLLM takes: the types of its bodies, and the characters of its context."""
        # Other routes may be opened while it serves.
        self._shapes.prepare(app, {route.partition(" ")[2] for route in SCOPES})
        engine = getattr(app.state, "engine_client", None)
        follow_tokenizer(engine)
        tokenizer = getattr(getattr(engine, "renderer", None), "tokenizer", None)
        if tokenizer is not None and self.settings.context is not None:
            self._longest_text = self.settings.context * tokenizer.max_chars_per_token

    def _read_newer(self, content: bytes) -> GateSettings:
        """Apply changed settings; invalid ones change nothing."""
        try:
            return self.settings.follow(make_settings(content))
        except (ValueError, TypeError, LookupError, AttributeError) as fault:
            _log.error("the new gate settings are invalid, keeping the old ones: %s", fault)
            return self.settings

    def _follow(self) -> None:
        if (newer := self._newer.read()) is not self.settings:
            self.settings = newer
            self._keys.follow(newer)
            self._pace.follow(newer.refusals_per_second)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, route = scope[VISIT].path, scope[VISIT].route
        headers = dict(scope["headers"])
        self._follow()
        if route in ALIVE:
            await send_json(send, 200, {"state": "alive"})
        elif route in READY:
            await self._tell_state(send)
        elif route == HEALTH:
            if not is_from_here(scope):
                scope[VISIT].caller = self._keys.require_caller(headers).id
            await self.app(_settle(scope, path), receive, send)
        elif route == METRICS:
            if not (self._keys.is_open and is_from_here(scope)):
                self._require_reader(scope, headers)
            await self.app(_settle(scope, path), receive, send)
        elif route in VIEW_ROUTES and is_for_here(scope):
            if not self._keys.is_open:
                try:
                    self._require_reader(scope, take_password(headers))
                except Refusal as refusal:
                    refusal.headers += ASK_PASSWORD
                    raise
            await self._view.answer(route, send)
        elif route not in self.settings.routes and not self._keys.is_probe(route, headers):
            raise Refusal(404, "not found")
        else:
            caller = self._keys.require_caller(headers)
            scope[VISIT].caller = caller.id
            try:
                require_scope(caller, route)
                settled = _settle(scope, path)
                await self._admit(settled, headers, caller, receive, translate_errors(send, path))
            except Refusal as refusal:
                refusal.caller = caller.id
                raise

    def _require_reader(self, scope: Scope, headers: Headers) -> None:
        """Refuse whoever has no key that may read figures."""
        caller = self._keys.require_caller(headers)
        scope[VISIT].caller = caller.id
        require_scope(caller, METRICS)

    async def _admit(
        self, scope: Scope, headers: Headers, caller: Caller, receive: Receive, send: Send
    ) -> None:
        if caller is not SUPERVISOR and self.run.readiness.state in LEAVING:
            what = "the server is about to stop"
            raise try_later(503, what, self.settings.retry_after_seconds)
        if not hold_place(scope, spare=caller is SUPERVISOR):
            what = "the server has reached its limit of connections"
            raise try_later(503, what, self.settings.retry_after_seconds, reason="connections")
        with (
            self._limits.enter(caller, self.settings.retry_after_seconds),
            self._memory.hold() as grow,
        ):
            if scope[VISIT].route == MODELS:
                await self.app(scope, receive, show_names_only(send, caller.terms.models))
            elif scope["method"] == "GET" or scope[VISIT].route == CANCEL:
                await self.app(scope, receive, send)
            elif (body := await read_body(headers, receive, self.settings, grow)) is not None:
                await self._pass_on(scope, body, caller, receive, send)

    async def _tell_state(self, send: Send) -> None:
        readiness = self.run.readiness
        status = 200 if readiness.state == "ready" else 503
        await send_json(send, status, readiness.model_dump(exclude={"notes", "generation"}))

    async def _pass_on(
        self, scope: Scope, body: bytes, caller: Caller, receive: Receive, send: Send
    ) -> None:
        """Pass a request to the engine when there is a seat for it, and count it."""
        checked = await self._check_request(body, caller, scope, receive)
        if checked is None:
            return
        if checked.body is not body:
            scope["headers"] = with_length(scope["headers"], len(checked.body))
        if self.settings.priorities and caller.terms.priority:
            scope["headers"].append((PRIORITY, str(caller.terms.priority).encode()))
        size = checked.prompt_bytes
        with self._limits.pay(caller, size, checked.answer_tokens) as tokens:
            seat = await self._find_seat(caller, checked, scope["path"], receive)
            if seat is None:
                return
            if tokens is not None:
                tokens.seated = True
            with seat, self.run.accounting.count(caller.id, size):
                tokenizing = await self._tokenize(caller, size, receive)
                if tokenizing is None:
                    return
                watched = self._watch(scope[VISIT], checked.warnings, send, tokens)
                with tokenizing:
                    await self.app(scope, replay(checked.body, receive), watched)

    async def _check_request(
        self, body: bytes, caller: Caller, scope: Scope, receive: Receive
    ) -> _CheckedRequest | None:
        """Check the body, again when its constraints are measured; None if the client left."""
        path, identity = scope["path"], scope[VISIT].id
        drafts = wants_drafts(dict(scope["headers"]))
        while True:
            async with nullcontext() if caller in UNSHARED else self._time.check_body(caller.id):
                checked = self._check_body(body, caller, path, identity, drafts)
            if not isinstance(checked, list):
                return checked
            measuring = self._constraints.measure(caller, checked, self.settings)
            if await unless_left(measuring, receive) is None:
                return None

    def _check_body(
        self, body: bytes, caller: Caller, path: str, identity: str, drafts: bool
    ) -> _CheckedRequest | list[ConstraintForm]:
        """Check the body against the rules, or return the forms that are to be measured first.

        The parsed document, which is large, is not kept.
        """
        settings = self.settings.limit_answers(caller.terms.max_tokens)
        document = parse_body(body, settings)
        if caller is SUPERVISOR:
            require_probe(body, document)
        warnings = apply_policy(document, body, path, settings)
        _require_model(document, caller, settings.served_names)
        trusted = settings.constraints == "any" or caller is SUPERVISOR
        if not trusted and path not in WITHOUT_ENGINE:
            unmeasured, dropped = self._constraints.check(document, settings)
            if unmeasured:
                return unmeasured
            warnings += dropped
        if warnings:
            body = json.dumps(document).encode()
        images = [] if settings.text_only else measure_images(document)
        beside = len(body) - sum(images)
        size = beside + IMAGE_BYTES * len(images)
        own: dict[str, object] = {}
        if settings.tags and path in ANSWER_FIELDS:
            tag = make_tag(document, caller, path, identity, settings, drafts)
            own["vllm_xargs"] = {"slipstream": tag}
        if caller.cache_salt is not None:
            own["cache_salt"] = caller.cache_salt + (document.get("cache_salt") or "")
        if path == RESPONSES:  # Here vLLM does not read the id from the header.
            own["request_id"] = f"resp_{identity}"
        if own and document:
            body = append_fields(body, own)
        # A text is no longer than its body.
        if self._longest_text is not None and beside > self._longest_text:
            require_short_text(document, self._longest_text + sum(images))
        sequences = count_sequences(document)
        answer = 0 if path in WITHOUT_ENGINE else find_longest_answer(document, path)
        self._shapes.require(document, path)
        if caller is not SUPERVISOR and path in ANSWER_FIELDS:
            self._recorder.record(document)
        return _CheckedRequest(body, size, warnings, sequences, answer and answer * sequences)

    async def _find_seat(
        self, caller: Caller, checked: _CheckedRequest, path: str, receive: Receive
    ) -> Seat | None:
        """Wait for a seat beside the other keys; without keys all are one, and the engine's."""
        if caller in UNSHARED or path in WITHOUT_ENGINE:
            return Seat()
        size = len(checked.body)
        return await self._shares.take(caller, checked.sequences, size, receive, self.settings)

    async def _tokenize(self, caller: Caller, size: int, receive: Receive) -> ExitStack | None:
        """Wait until a key's text may go to the tokenizer; return None if the client leaves."""
        tokenizing = ExitStack()
        if caller in UNSHARED:
            return tokenizing
        waiting = self._time.tokenize(caller.id, size)
        has_room = self._time.has_room(caller.id, size)
        release = await (waiting if has_room else unless_left(waiting, receive))
        if release is None:
            return None
        tokenizing.callback(release)
        TOKENIZED.set(release)
        return tokenizing

    def _watch(
        self, visit: Visit, warnings: list[str], send: Send, tokens: AnswerTokens | None
    ) -> Send:
        """Note when the engine gives something, and add the warnings to its headers.

        After a client has left, vLLM answers nobody with 200: that is no sign of life.
        """
        warning = [(WARNING, "; ".join(warnings).encode())] if warnings else []
        succeeds = False

        async def send_watched(message: Message) -> None:
            nonlocal succeeds
            if message["type"] == "http.response.start":
                succeeds = message["status"] == 200
                if warning:
                    message = {**message, "headers": [*message.get("headers", ()), *warning]}
            elif succeeds and not visit.left:
                self.run.accounting.see_token()
                if tokens is not None:
                    tokens.see(message.get("body", b""))
            if tokens is not None and not visit.left and message.get("more_body") is False:
                tokens.ended = True
            await send(message)

        return send_watched


def _settle(scope: Scope, path: str) -> Scope:
    """Remove other routing paths, and headers that the engine must not see."""
    kept = [header for header in scope["headers"] if header[0] not in DROPPED_HEADERS]
    return {**scope, "path": path, "raw_path": path.encode(), "root_path": "", "headers": kept}


def _require_model(document: Document, caller: Caller, served: tuple[str, ...]) -> None:
    """Refuse a model that the key is not for; without a name the first is meant."""
    allowed = caller.terms.models
    model = document.get("model") or (served[0] if served else None)
    if allowed is not None and model not in allowed:
        what = f"this key allows {', '.join(allowed)}"
        raise Refusal(404, what, field="model", reason="scope")
