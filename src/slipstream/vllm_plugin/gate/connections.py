"""Connections, bounded in number, bytes and time before authentication.

uvicorn's usual parser, httptools, has no bounds: vLLM's --h11-max-* settings are for the other
one. A protocol that is derived from uvicorn's is put in when the server starts, before its first
connection. It overrides what uvicorn and httptools call: a uvicorn without one of these methods
is refused.
"""

import asyncio
import resource
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from slipstream.serving.access.gate_file import GateLimits
from slipstream.vllm_plugin.gate.answers import Scope
from slipstream.vllm_plugin.gate.answers.metrics import open_metrics
from slipstream.vllm_plugin.gate.places import Handshake, Places

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
else:
    HttpToolsProtocol = object

CONNECTION = "slipstream.connection"
LINGER_SECONDS = 5.0
_BAD = "400 Bad Request"
_NO_UPGRADE = "403 Forbidden"
_TOO_LATE = "408 Request Timeout"
_TOO_LARGE = "431 Request Header Fields Too Large"


class _Excess(Exception):
    """More data than a connection may send; stops the parser."""


def bound_connections(scope: Scope, limits: GateLimits) -> bool:
    """Bound the connections of vLLM's server; return whether that succeeded."""
    server = getattr(getattr(scope.get("app"), "state", None), "server", None)
    config: Any = getattr(server, "config", None)
    protocol: Any = getattr(config, "http_protocol_class", None)
    if not all(hasattr(protocol, name) for name in vars(BoundedConnection) if name[0] != "_"):
        return False
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = limits.connections
    if files != resource.RLIM_INFINITY:
        most = min(most, files // 2)
    places = Places[Any](most)
    own = {"limits": limits, "places": places}
    bounded = type("Bounded", (BoundedConnection, protocol), own)
    config.http_protocol_class = bounded
    if (context := getattr(config, "ssl", None)) is not None:
        config.ssl = None  # Of the loop; certificates that are renewed are put into the context.
        open_metrics().watch_certificate(str(config.ssl_certfile))

        def begin(**given: Any) -> Handshake:
            connections = given["server_state"].connections
            seconds = limits.head_seconds
            return Handshake(lambda: bounded(**given), context, seconds, places, connections)

        config.http_protocol_class = begin
    return True


def hold_place(scope: Scope, *, spare: bool) -> bool:
    """Reserve the connection of an admitted request; False if too many are reserved."""
    connection: BoundedConnection | None = scope.get(CONNECTION)
    return connection is None or connection.places.hold(connection, spare=spare)


def give_way(scope: Scope) -> None:
    """Release the connection of a request that will be refused."""
    connection: BoundedConnection | None = scope.get(CONNECTION)
    if connection is not None:
        connection._give_way()


class BoundedConnection(HttpToolsProtocol):
    """One request runs, at most one waits, and without a request a timer runs.

    A client that sends more than it may, or nothing in time, gets the answers that are due to it.
    After that nothing it sends is read.
    """

    limits: GateLimits
    places: Places[Any]

    _running: "RequestResponseCycle | None" = None
    _refused: "RequestResponseCycle | None" = None
    _timer: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    _unread_seconds = 0.0
    _has_head = False
    _headers = 0
    _header_bytes = 0
    _framing_bytes = 0
    _fault = _BAD
    _discards_input = False
    _late_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Close others for it, and have the system end it if its client stops reading answers."""
        super().connection_made(transport)
        for other in self.places.enter(self, self.client[0] if self.client else ""):
            other.transport.abort()
        with suppress(OSError):  # A Unix socket has no such setting.
            stall_ms = int(self.limits.stall_seconds * 1000)
            peer = transport.get_extra_info("socket")
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, stall_ms)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Notify the running request, too: uvicorn notifies only the last one."""
        self.places.leave(self)
        self._disarm()
        if self._unread is not None:
            self._unread.cancel()
        if self._running is not None:
            _disconnect(self._running)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """End the connection if its answer waits too long for its reader, in all: it has a seat."""
        super().pause_writing()
        left = self.limits.stall_seconds - self._unread_seconds
        self._unread = self.loop.call_later(max(left, 0.0), self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread is not None:
            left = self._unread.when() - self.loop.time()
            self._unread_seconds = self.limits.stall_seconds - left
            self._unread.cancel()
            self._unread = None

    def data_received(self, data: bytes) -> None:
        """Count what is no body: heads, sizes and extensions of chunks, trailers.

        A body in chunks of a byte is mostly sizes. Such bytes may be as many as those of the body,
        beside what a head may have.
        """
        if self._discards_input:
            self._late_bytes += len(data)
            if self._late_bytes > self.limits.body_bytes:
                self.transport.abort()
            return
        self._framing_bytes += len(data)
        super().data_received(data)
        if self._discards_input:
            return
        if self._framing_bytes > self.limits.head_bytes:
            self._give_up(_TOO_LARGE)
        elif self._running is None:
            self._expect_head()

    def on_message_begin(self) -> None:
        """Let one request wait: a client may be ahead of the last, empty part of an answer."""
        if self.pipeline:
            raise _Excess
        self._has_head = False
        self._headers = self._header_bytes = 0
        self._expect_head()
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header; one that comes after the body is dropped."""
        self._headers += 1
        self._count(name, value)
        if not self._has_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Begin a request or let it wait; reading continues, to notice when the client leaves."""
        self._has_head = True
        self._disarm()
        last = self.cycle
        self.scope[CONNECTION] = self  # type: ignore[literal-required]
        super().on_headers_complete()
        if self.pipeline:
            self.flow.resume_reading()
        elif self.cycle is not last:
            self._running = self.cycle

    def on_body(self, body: bytes) -> None:
        """Process a piece of the body, which offsets as much framing."""
        self._framing_bytes -= 2 * len(body)
        super().on_body(body)
        if self._refused is not None and self._refused is self.cycle:
            self._refused.body.clear()

    def on_message_complete(self) -> None:
        self._framing_bytes = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Continue with the waiting request, or close a connection that cannot be reused."""
        answered, self._running = self._running, None
        self._unread_seconds = 0.0
        self.places.rest(self)
        waits = bool(self.pipeline)
        super().on_response_complete()
        if self.transport.is_closing():
            return
        if waits:
            self._running = self.cycle
        elif self._discards_input or (answered is not None and answered.more_body):
            self._linger()

    def send_400_response(self, msg: str) -> None:
        """Close a connection that the parser could not read or was told to stop."""
        self._give_up(self._fault)

    def handle_websocket_upgrade(self) -> None:
        """Ignore upgrades: there are no web sockets here."""
        self._give_up(_NO_UPGRADE)

    def _give_way(self) -> None:
        self.places.rest(self)
        self._refused = self._running
        if self._refused is not None:
            self._refused.body.clear()

    def _count(self, *parts: bytes) -> None:
        self._header_bytes += sum(map(len, parts))
        if self._header_bytes > self.limits.head_bytes or self._headers > self.limits.headers:
            self._fault = _TOO_LARGE
            raise _Excess

    def _expect_head(self) -> None:
        if self._timer is None:
            self._arm(self.limits.head_seconds, self._give_up, _TOO_LATE)

    def _arm(self, seconds: float, end: Callable[..., object], *arguments: str) -> None:
        self._disarm()
        self._timer = self.loop.call_later(seconds, end, *arguments)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self, status: str) -> None:
        """Stop reading; answer with the status, after a complete request is answered."""
        self._discards_input = True
        self._disarm()
        running = self._running
        if running is not None and (running.response_started or not running.more_body):
            if self.pipeline and self.cycle.more_body:
                self.pipeline.clear()
        elif not self.transport.is_closing():
            if running is not None:
                _disconnect(running)
            head = f"HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
            self.transport.write(head.encode())
            self._linger()

    def _linger(self) -> None:
        """Read what is still under way: closing earlier would lose the answer."""
        self._discards_input = True
        self.places.rest(self)
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._arm(LINGER_SECONDS, self.transport.close)


def _disconnect(cycle: "RequestResponseCycle") -> None:
    cycle.disconnected = True
    cycle.message_event.set()
