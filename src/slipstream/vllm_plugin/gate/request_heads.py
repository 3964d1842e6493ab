"""The head of a request, bounded in size and in time, before anybody can ask for a key.

uvicorn's usual parser, httptools, takes a head without end: vLLM's --h11-max-* settings are for
the other parser. The bounds are put in when the server starts, before its first connection.
"""

import asyncio
from typing import Any

from slipstream.vllm_plugin.gate.answers import Scope
from slipstream.vllm_plugin.gate.settings import Limits

_TOO_LATE = "408 Request Timeout"
_TOO_LARGE = "431 Request Header Fields Too Large"
LINGER_SECONDS = 1.0
LINGER_BYTES = 1 << 20


def bound_heads(scope: Scope, limits: Limits) -> bool:
    """Bound what comes before a request in the server of vLLM's app; say whether it was done."""
    server = getattr(getattr(scope.get("app"), "state", None), "server", None)
    config: Any = getattr(server, "config", None)
    protocol = getattr(config, "http_protocol_class", None)
    if protocol is None or not hasattr(protocol, "on_headers_complete"):
        return False
    config.http_protocol_class = make_bounded(protocol, limits)
    return True


def make_bounded(protocol: Any, limits: Limits) -> type[asyncio.Protocol]:
    """Derive a protocol that closes connections whose head is too large or too slow."""

    class Bounded(protocol):  # type: ignore[misc]
        _timer: asyncio.TimerHandle | None = None
        _head_bytes = 0
        _lingers: asyncio.TimerHandle | None = None
        _late_bytes = 0

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            self._expect_head()

        def connection_lost(self, exc: Exception | None) -> None:
            self._have_head()
            if self._lingers is not None:
                self._lingers.cancel()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self._lingers is not None:
                self._late_bytes += len(data)
                if self._late_bytes > LINGER_BYTES:
                    self.transport.close()
                return
            super().data_received(data)
            if self._timer is not None:
                self._head_bytes += len(data)
                if self._head_bytes > limits.head_bytes:
                    self._give_up(_TOO_LARGE)

        def on_message_begin(self) -> None:
            self._expect_head()
            super().on_message_begin()

        def on_headers_complete(self) -> None:
            self._have_head()
            super().on_headers_complete()

        def _expect_head(self) -> None:
            if self._timer is None:
                self._head_bytes = 0
                self._timer = self.loop.call_later(limits.head_seconds, self._give_up, _TOO_LATE)

        def _have_head(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _give_up(self, status: str) -> None:
            """Answer, then take what is still on its way: a close before that loses the answer."""
            self._have_head()
            if not self.transport.is_closing():
                head = f"HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
                self.transport.write(head.encode())
                if self.transport.can_write_eof():
                    self.transport.write_eof()
                self._lingers = self.loop.call_later(LINGER_SECONDS, self.transport.close)

    return Bounded
