"""Which connections stay open when there are too many.

A connection holds its place while an admitted request is answered. Of the others, idle or about to
be refused, the oldest is closed for a newcomer: first those of the address that has the most.
Nobody is refused by address: behind a proxy all clients have the same one.
"""

from collections.abc import Hashable
from typing import Generic, TypeVar

Connection = TypeVar("Connection", bound=Hashable)

# What is left to connections without an admitted request: probes get through a full house.
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
        """Remove a closed connection."""
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
