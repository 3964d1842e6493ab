"""The link between a supervisor and those of the other ranks: beats out, beats in.

UDP, bound to the machine's address on the link: there is no connection that could hang, be held
open by a stranger or outlive a cable. What is not signed, not from a member's address or not
fresh changes nothing here.
"""

import asyncio
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from slipstream.errors import InvalidInputError
from slipstream.planning.group import Group
from slipstream.serving.group.heartbeats import Heartbeat, Order, Report, sign, verify

BEAT_EVERY_SECONDS = 0.5
# A link that flaps for less costs a stalled request; a restart of a large model costs minutes.
SILENT_AFTER_SECONDS = 15.0
MOST_SESSIONS = 256


@dataclass(frozen=True, slots=True)
class Heard:
    beat: Heartbeat
    at: float


class GroupLink(asyncio.DatagramProtocol):
    """A supervisor's end of the link; `say` is asked at every beat what to send."""

    def __init__(
        self,
        group: Group,
        secret: bytes,
        say: Callable[[], Order | Report],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.group, self._secret, self._say, self._clock = group, secret, say, clock
        self.session = secrets.token_hex(16)
        self._number = 0
        self._heard: dict[int, Heard] = {}
        self._ended_sessions: dict[int, list[str]] = {}
        self._transport: asyncio.DatagramTransport | None = None
        self._beating: asyncio.Task[None] | None = None
        # A head speaks with every rank; the others speak with the head only.
        self._peers = (0,) if group.is_follower else tuple(range(1, len(group.members)))

    async def open(self) -> None:
        """Listen at the machine's own address on the link, and begin to beat."""
        own, port = self.group.own, self.group.watch_port
        loop = asyncio.get_running_loop()
        try:
            self._transport, _ = await loop.create_datagram_endpoint(
                lambda: self, local_addr=(own.address, port)
            )
        except OSError as fault:
            raise InvalidInputError(
                f"cannot listen at {own.address} port {port} (UDP) for the other ranks: "
                f"{fault.strerror or fault}",
                hint="ip address; the group's plan has the addresses: slipstream fleet plan",
            ) from fault
        self._beating = asyncio.create_task(self._beat())

    async def close(self) -> None:
        """Send the last word, and beat no more."""
        if self._beating is not None:
            self.send()
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
        if self._transport is not None:
            self._transport.close()
            await asyncio.sleep(0)

    def send(self) -> None:
        """Send every peer what there is to say now."""
        for rank in self._peers:
            heard = self._heard.get(rank)
            self._send(rank, heard.beat.session if heard else None)

    def hear(self, rank: int) -> Heartbeat | None:
        """Return what a rank said last, None if it is silent."""
        heard = self._heard.get(rank)
        if heard is None or self._clock() - heard.at > SILENT_AFTER_SECONDS:
            return None
        return heard.beat

    def error_received(self, exc: Exception) -> None:
        """Pass over a refused datagram: a peer that does not listen is silent, which counts."""

    def datagram_received(self, data: bytes, addr: tuple[str | Any, int]) -> None:
        """Take up a beat that is a member's and fresh; answer one that is a member's only."""
        beat = verify(data, self._secret)
        if beat is None or not self._is_for_us(beat, addr):
            return
        if beat.echo != self.session:
            self._send(beat.sender, beat.session)
            return
        ended = self._ended_sessions.setdefault(beat.sender, [])
        before = self._heard.get(beat.sender)
        if beat.session in ended:
            return
        if before is not None and before.beat.session != beat.session:
            ended.append(before.beat.session)
            del ended[:-MOST_SESSIONS]
        elif before is not None and beat.number <= before.beat.number:
            return
        self._heard[beat.sender] = Heard(beat, self._clock())

    def _is_for_us(self, beat: Heartbeat, addr: tuple[str | Any, int]) -> bool:
        place = (beat.group, beat.receiver, beat.sender in self._peers)
        if place != (self.group.name, self.group.rank, True):
            return False
        wanted = Order if beat.sender == 0 else Report
        member = self.group.members[beat.sender]
        return isinstance(beat.body, wanted) and addr[0] == member.address

    async def _beat(self) -> None:
        while True:
            self.send()
            await asyncio.sleep(BEAT_EVERY_SECONDS)

    def _send(self, rank: int, echo: str | None) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self._number += 1
        beat = Heartbeat(
            group=self.group.name,
            sender=self.group.rank,
            receiver=rank,
            session=self.session,
            echo=echo,
            number=self._number,
            body=self._say(),
        )
        address = self.group.members[rank].address
        with suppress(OSError):
            self._transport.sendto(sign(beat, self._secret), (address, self.group.watch_port))
