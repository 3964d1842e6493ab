"""Which connections stay open when there are too many; TLS handshakes count among them.

A connection holds its place while an admitted request is answered. Of the others, idle or about to
be refused, the oldest is closed for a newcomer: first those of the address that has the most.
Nobody is refused by address: behind a proxy all clients have the same one.

uvicorn hands its certificate to the event loop, which waits 60 s for a handshake and shows nobody
the connection before it is over. Here a connection is accepted in the clear, takes its place among
the others, and only then becomes TLS.
"""

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from ssl import SSLContext
from typing import Any, Generic, TypeVar

Connection = TypeVar("Connection", bound=Hashable)

# Reserved for connections without an admitted request, such as probes.
SPARE_SHARE = 1 / 8


class Places(Generic[Connection]):
    """The open connections of one server, up to a number of them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._most_held = most - int(most * SPARE_SHARE)
        self._addresses: dict[Connection, str] = {}
        self._held: set[Connection] = set()
        self._resting: dict[str, dict[Connection, None]] = {}

    def enter(self, connection: Connection, address: str) -> list[Connection]:
        """Add a new connection, and return those that have to be closed for it."""
        closed = []
        while len(self._addresses) >= self._most and self._resting:
            most = max(self._resting.values(), key=len)
            closed.append(next(iter(most)))
            self.leave(closed[-1])
        self._addresses[connection] = address
        self.rest(connection)
        return closed

    def hold(self, connection: Connection, *, spare: bool = False) -> bool:
        """Reserve the place until `rest`; False if all but the spare ones are reserved."""
        if connection in self._addresses and connection not in self._held:
            if len(self._held) >= self._most_held and not spare:
                return False
            self._forget(connection)
            self._held.add(connection)
        return True

    def rest(self, connection: Connection) -> None:
        """Release the connection's place for others that need it."""
        if (address := self._addresses.get(connection)) is not None:
            self._forget(connection)
            self._resting.setdefault(address, {})[connection] = None

    def leave(self, connection: Connection) -> None:
        if connection in self._addresses:
            self._forget(connection)
            del self._addresses[connection]

    def _forget(self, connection: Connection) -> None:
        self._held.discard(connection)
        address = self._addresses[connection]
        if (resting := self._resting.get(address)) is not None:
            resting.pop(connection, None)
            if not resting:
                del self._resting[address]


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
        self._is_lost = True

    def shutdown(self) -> None:
        self.transport.abort()

    def _go_on(self, upgrade: Coroutine[Any, Any, Any]) -> None:
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
