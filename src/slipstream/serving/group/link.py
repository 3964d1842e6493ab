"""The link between the supervisors of a group: one signed datagram each half second.

The head gives orders and the others report. UDP, bound to the machine's address on the link: there
is no connection that could hang, be held open by a stranger or outlive a cable. A beat names its
sender's session and echoes the receiver's: whoever recorded beats can play none of them to a
supervisor that started later.
"""

import asyncio
import hmac
import os
import secrets
import stat
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, ValidationError

from slipstream.errors import InvalidInputError
from slipstream.planning.group import Group
from slipstream.records import Record
from slipstream.serving.run import State
from slipstream.serving.supervision.causes.diagnosis import Cause
from slipstream.serving.supervision.causes.ladder import Rung

BEAT_EVERY_SECONDS = 0.5
# A link that flaps for less costs a stalled request; a restart of a large model costs minutes.
SILENT_AFTER_SECONDS = 15.0
MOST_BYTES = 2048
_DIGEST_BYTES = sha256().digest_size
# So that a secret that serves elsewhere, too, signs nothing for here.
_PURPOSE = b"slipstream group 1\0"

Session = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
Message = Annotated[str, Field(max_length=300)]
LEAST_BYTES = 32
MOST_SECRET_BYTES = 1024


class HeadOrder(Record):
    """What the head wants: a generation of the engine that runs, or none."""

    kind: Literal["order"] = "order"
    generation: NonNegativeInt
    runs: bool
    rungs: Annotated[tuple[Rung, ...], Field(max_length=16)] = ()
    state: State
    given_up: bool = False
    message: Message = ""


class RankReport(Record):
    """What a rank that follows has: the generation that runs, and how the last one ended.

    `idle_after` is the generation that the head ended last, by an order that this rank has heard:
    it may start the next one, and starts no other.
    """

    kind: Literal["report"] = "report"
    # The session of the head that gave it.
    head: Session | None = None
    idle_after: NonNegativeInt | None = None
    running: NonNegativeInt | None = None
    ended: NonNegativeInt | None = None
    # Its supervisor ends.
    leaves: bool = False
    cause: Cause | None = None
    message: Message = ""


class Heartbeat(Record):
    """An order or a report, from whom, to whom, and how fresh."""

    group: str
    sender: NonNegativeInt
    receiver: NonNegativeInt
    session: Session
    echo: Session | None
    number: NonNegativeInt
    body: Annotated[HeadOrder | RankReport, Field(discriminator="kind")]


def sign(beat: Heartbeat, secret: bytes) -> bytes:
    document = beat.model_dump_json().encode()
    return _sign(document, secret) + document


def verify(datagram: bytes, secret: bytes) -> Heartbeat | None:
    """Return what was sent, None unless a member of the group sent it."""
    digest, document = datagram[:_DIGEST_BYTES], datagram[_DIGEST_BYTES:]
    if len(datagram) > MOST_BYTES or not hmac.compare_digest(digest, _sign(document, secret)):
        return None
    try:
        return Heartbeat.model_validate_json(document)
    except ValidationError:  # A member of another version.
        return None


def _sign(document: bytes, secret: bytes) -> bytes:
    return hmac.digest(secret, _PURPOSE + document, "sha256")


def read_secret(file: Path) -> bytes:
    """Read a group's secret; one that others could read or that is short is refused."""
    try:
        with file.open("rb") as opened:
            found, secret = os.fstat(opened.fileno()), opened.read(MOST_SECRET_BYTES).strip()
    except OSError as fault:
        raise InvalidInputError(
            f"cannot read the group's secret {file}: {fault.strerror or fault}",
            hint=f"copy it from another machine of the group: scp HEAD:{file} {file}",
        ) from fault
    if not stat.S_ISREG(found.st_mode) or found.st_mode & 0o077:
        raise InvalidInputError(
            f"other users can read the group's secret {file}", hint=f"chmod 600 {file}"
        )
    if len(secret) < LEAST_BYTES:
        raise InvalidInputError(
            f"the group's secret {file} has {len(secret)} bytes, but needs at least {LEAST_BYTES}",
            hint=f"copy it from another machine of the group: scp HEAD:{file} {file}",
        )
    return secret


Keep = Callable[[str, Callable[[], Awaitable[None]], float], Coroutine[None, None, None]]


async def _repeat(_: str, act: Callable[[], Awaitable[None]], every_seconds: float) -> None:
    while True:
        await asyncio.sleep(every_seconds)
        await act()


@dataclass(frozen=True, slots=True)
class Heard:
    beat: Heartbeat
    at: float


class GroupLink(asyncio.DatagramProtocol):
    """A supervisor's end of the link; `describe_state` returns what to send with every beat.

    `keep` repeats the beat, whatever goes wrong with one (`EventLog.keep_looking`).
    """

    def __init__(
        self,
        group: Group,
        secret: bytes,
        describe_state: Callable[[], HeadOrder | RankReport],
        clock: Callable[[], float] = time.monotonic,
        keep: Keep = _repeat,
    ) -> None:
        self._keep = keep
        self.group, self._secret, self._clock = group, secret, clock
        self._describe_state = describe_state
        self.session = secrets.token_hex(16)
        self._number = 0
        self._heard: dict[int, Heard] = {}
        # All of them, since one that is forgotten could be replayed: only members make any.
        self._ended_sessions: defaultdict[int, set[str]] = defaultdict(set)
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
        self.send()
        beating = self._keep("the other ranks get no reports", self._beat, BEAT_EVERY_SECONDS)
        self._beating = asyncio.create_task(beating)

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
        """Send every peer the current state."""
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
        ended = self._ended_sessions[beat.sender]
        before = self._heard.get(beat.sender)
        if beat.session in ended:
            return
        if before is not None and before.beat.session != beat.session:
            ended.add(before.beat.session)
        elif before is not None and beat.number <= before.beat.number:
            return
        self._heard[beat.sender] = Heard(beat, self._clock())

    def _is_for_us(self, beat: Heartbeat, addr: tuple[str | Any, int]) -> bool:
        place = (beat.group, beat.receiver, beat.sender in self._peers)
        if place != (self.group.name, self.group.rank, True):
            return False
        wanted = HeadOrder if beat.sender == 0 else RankReport
        member = self.group.members[beat.sender]
        return isinstance(beat.body, wanted) and addr[0] == member.address

    async def _beat(self) -> None:
        self.send()

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
            body=self._describe_state(),
        )
        address = self.group.members[rank].address
        with suppress(OSError):
            self._transport.sendto(sign(beat, self._secret), (address, self.group.watch_port))
