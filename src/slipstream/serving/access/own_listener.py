"""Whether our engine is what listens, checked for every connection before a key is sent.

Until vLLM listens, and after it died, anybody on this machine can have its port. A socket that
listens both before and after a connection was made is the one that took it.
"""

import socket
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import httpx

from slipstream.serving.access.addresses import ANSWER_SECONDS, Address
from slipstream.serving.access.listeners import IPAddress, find_listening, list_held_sockets
from slipstream.serving.messages import read_peer

Owner = Literal["nobody", "engine", "other"]
Watch = Callable[[str, dict[str, Any]], Awaitable[None]]

_CONNECTED = ("connection.connect_tcp.complete", "connection.connect_unix_socket.complete")


class ForeignListenerError(httpx.ConnectError):
    """Another process listens at the engine's address, or none does."""


@dataclass(frozen=True, slots=True)
class OwnListener:
    """The engine's address, and a way to list the processes that may listen there."""

    address: Address
    list_pids: Callable[[], Iterable[int]]
    proc: Path = Path("/proc")

    def find_owner(self) -> Owner:
        if self.address.socket is not None:
            return self._find_socket_owner(self.address.socket)
        if not self._find_listening():
            return "nobody"
        return "engine" if self._find_held() else "other"

    def watch(self) -> Watch:
        """Return a trace for one httpx request that refuses a connection to any other process."""
        before = frozenset[int]()
        refusal = f"this run's engine does not listen at {self.address.url}"

        async def check(event: str, info: dict[str, Any]) -> None:
            nonlocal before
            if event == "connection.connect_tcp.started":
                before = self._find_held()
                if not before:
                    raise ForeignListenerError(refusal)
            elif event in _CONNECTED and not self._is_ours(info["return_value"], before):
                await info["return_value"].aclose()
                raise ForeignListenerError(refusal)

        return check

    def _find_listening(self) -> frozenset[int]:
        return find_listening(self._resolve(), self.address.port, self.proc)

    def _find_held(self) -> frozenset[int]:
        """Return the sockets that listen at the address, none unless all are our engine's."""
        listening = self._find_listening()
        held = list_held_sockets(self.list_pids(), self.proc) if listening else frozenset()
        return listening if listening <= held else frozenset()

    def _is_ours(self, stream: Any, before: frozenset[int]) -> bool:
        if self.address.socket is None:
            return self._find_held() == before
        return read_peer(stream.get_extra_info("socket"))[0] in set(self.list_pids())

    def _resolve(self) -> set[IPAddress]:
        host = urlsplit(self.address.url).hostname or ""
        try:
            return {ip_address(host)}
        except ValueError:
            found = socket.getaddrinfo(host, self.address.port, type=socket.SOCK_STREAM)
            return {ip_address(one[4][0]) for one in found}

    def _find_socket_owner(self, path: str) -> Owner:
        with socket.socket(socket.AF_UNIX) as probe, suppress(OSError):
            probe.settimeout(ANSWER_SECONDS)
            probe.connect(path)
            return "engine" if read_peer(probe)[0] in set(self.list_pids()) else "other"
        return "nobody"
