"""TLS handshakes, bounded in number and in time.

uvicorn hands its certificate to the event loop, which waits 60 s for a handshake and shows nobody
the connection before it is over. Here a connection is accepted in the clear, takes its place among
the others, and only then becomes TLS.
"""

import asyncio
from collections.abc import Callable, Coroutine
from ssl import SSLContext
from typing import Any

from slipstream.vllm_plugin.gate.places import Places


class Handshake(asyncio.Protocol):
    """A connection until its handshake is done; `make` then returns the one that takes over.

    `connections` are those that uvicorn counts, and shuts down at its end.
    """

    def __init__(
        self,
        make: Callable[[], asyncio.Protocol],
        context: SSLContext,
        seconds: float,
        places: Places[Any],
        connections: set[Any],
    ) -> None:
        self._make, self._context, self._seconds = make, context, seconds
        self._places, self._connections = places, connections
        self._received: list[bytes] = []
        self._is_lost = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a place, closing others if necessary, and begin the handshake."""
        self.transport = transport
        self._connections.add(self)
        peer = transport.get_extra_info("peername")
        for other in self._places.enter(self, str(peer[0]) if peer else ""):
            other.transport.abort()
        # uvloop reads as soon as this returns. A task would begin after that, so what it would
        # wait for, the handshake's one future, is waited for here.
        upgrade = asyncio.get_running_loop().start_tls(
            transport, self, self._context, server_side=True, ssl_handshake_timeout=self._seconds
        )
        upgrade.send(None).add_done_callback(lambda _: self._go_on(upgrade))

    def data_received(self, data: bytes) -> None:
        """Buffer data that arrives with the last piece of the handshake."""
        self._received.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Abandon the handshake."""
        self._is_lost = True

    def shutdown(self) -> None:
        """Close the connection when uvicorn shuts down."""
        self.transport.abort()

    def _go_on(self, upgrade: Coroutine[Any, Any, Any]) -> None:
        """Hand over to the real connection, if the handshake succeeded."""
        self._places.leave(self)
        self._connections.discard(self)
        try:
            upgrade.send(None)
        except StopIteration as done:
            secure: asyncio.Transport = done.value
        except OSError:  # A client that left, took too long or does not speak TLS.
            self.transport.abort()
            return
        if self._is_lost or self.transport.is_closing():  # An aborted one ends without an error.
            return
        connection = self._make()
        secure.set_protocol(connection)
        connection.connection_made(secure)
        for data in self._received:
            connection.data_received(data)
