"""Who may change a fleet now: a lease, kept on the fleet's first machine and by its clock alone.

It ends by itself when the control machine that holds it goes away. Its epoch only grows: whoever
renews after another has held it meanwhile has lost it. Its holder reaches the machines only within
`SURE_SECONDS` of the last renewal, so whoever takes it by force waits for so long.

While the first machine is down, who forces has the lease on the next one that answers: of two that
force, one has it. Who reaches the first machine again does not see that lease.
"""

import fcntl
import getpass
import re
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal

from pydantic import AwareDatetime, Field, NonNegativeInt

from slipstream.atomic_files import write_atomically
from slipstream.errors import InvalidInputError, SlipstreamError, UnreachableError
from slipstream.fleet.machines.commands import (
    CommandResult,
    Machines,
    Stream,
    Transport,
    Words,
    escape,
)
from slipstream.fleet.record import Name
from slipstream.records import Record, read_record

LEASE_SECONDS = 60
SURE_SECONDS = 15.0
_RENEW_EVERY_SECONDS = 5.0
FILE = "lease.json"
_PLAIN = r"^[A-Za-z0-9@._ -]{1,120}$"


class LeaseLostError(UnreachableError):
    """Another control machine has taken the fleet, so nothing more may be changed."""


class Lease(Record):
    schema_version: Literal[1] = 1
    owner: str = Field(pattern=r"^[0-9a-f]{32}$")
    holder: str = Field(pattern=_PLAIN)
    purpose: str = Field(pattern=_PLAIN)
    until: AwareDatetime
    epoch: NonNegativeInt = 0


class LeaseRequest(Record):
    """What a process on a control machine, named by a random number, asks the first machine for.

    Whoever renews or releases says which epoch of the lease it holds.
    """

    fleet: Name
    action: Literal["take", "release"]
    owner: str
    holder: str
    purpose: str
    force: bool = False
    epoch: NonNegativeInt | None = None


def change_lease(folder: Path, request: LeaseRequest, now: datetime) -> Lease:
    """Take, renew or release the lease, and return the one that counts.

    It is theirs who ask if it was free or over, or is taken by force; renewed, if nobody else has
    held it since. It stays where it is when it is released, for its epoch.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (folder / ".lease.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        held = _read(folder / FILE)
        epoch = held.epoch if held is not None else 0
        if request.epoch is not None:
            if held is None or (held.owner, held.epoch) != (request.owner, request.epoch):
                return held or Lease(owner="0" * 32, holder="nobody", purpose="it ended", until=now)
        elif held is not None and held.until > now and not request.force:
            return held
        else:
            epoch += 1
        over = request.action == "release"
        lease = Lease(
            owner=request.owner,
            holder=request.holder,
            purpose=request.purpose,
            until=now if over else now + timedelta(seconds=LEASE_SECONDS),
            epoch=epoch,
        )
        write_atomically(folder / FILE, lease.to_json().encode(), mode=0o600)
    return lease


def _read(file: Path) -> Lease | None:
    """Read a lease; one that cannot be read holds nobody up for long, as it ends by itself."""
    with suppress(InvalidInputError):
        return read_record(file, Lease, hint="slipstream fleet status")
    return None


def read_clock() -> float:
    """Return seconds that go on while this machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class HeldLease:
    """A lease of this process, renewed in the background; `require` says whether it still is."""

    def __init__(self, far: Machines, purpose: str) -> None:
        self._far, self._purpose, self._owner = far, purpose, secrets.token_hex(16)
        self._keeper = far.fleet.first_machine
        self._epoch, self._sure_at = 0, 0.0
        self._lost: LeaseLostError | None = None
        self._over, self._asking = threading.Event(), threading.Lock()

    def take(self, *, force: bool) -> None:
        self._sure_at = read_clock()
        held = self._ask("take")
        if held.owner != self._owner and force:
            held = self._ask("take", force=True)
            # Until then its holder may not know.
            self._over.wait(SURE_SECONDS)
        if held.owner != self._owner:
            raise InvalidInputError(
                f"{_describe(held)} until {held.until:%H:%M:%S} UTC",
                hint="wait until it ends, or take the lease over with --force",
            )
        self._epoch = held.epoch

    def take_elsewhere(self) -> None:
        """Take it by force on the first of the other machines that answers."""
        for machine in [*self._far.fleet.machines][1:]:
            self._keeper, self._sure_at = machine, read_clock()
            with suppress(SlipstreamError):
                self._epoch = self._ask("take", force=True).epoch
                # Until then whoever holds it on the first machine may not know that it is down.
                self._over.wait(SURE_SECONDS)
                return
        raise UnreachableError("no machine grants a lease", hint="slipstream fleet doctor")

    def require(self) -> None:
        """Fail unless nobody else can have the lease now."""
        if self._lost is None and read_clock() - self._sure_at > SURE_SECONDS:
            self._renew()
        if self._lost is not None:
            raise self._lost

    @contextmanager
    def renewed(self) -> Iterator[None]:
        """Renew the lease while something is done, and give it back."""
        renewing = threading.Thread(target=self._renew_often, daemon=True)
        renewing.start()
        try:
            yield
        finally:
            self._over.set()
            renewing.join(10)
            with suppress(SlipstreamError):
                self._ask("release", epoch=self._epoch)

    def _renew_often(self) -> None:
        while not self._over.wait(_RENEW_EVERY_SECONDS):
            # Whatever it is: who is not sure any more asks before the next change.
            with suppress(Exception):
                self._renew()

    def _renew(self) -> None:
        with self._asking:
            began = read_clock()
            held = self._ask("take", epoch=self._epoch)
            if (held.owner, held.epoch) == (self._owner, self._epoch):
                self._sure_at = began
                return
            self._lost = LeaseLostError(
                f"another machine took the fleet over: {_describe(held)}",
                hint="after it has ended: slipstream fleet status",
            )

    def _ask(
        self,
        action: Literal["take", "release"],
        *,
        force: bool = False,
        epoch: int | None = None,
    ) -> Lease:
        request = LeaseRequest(
            fleet=self._far.fleet.name,
            action=action,
            owner=self._owner,
            holder=_name_self(),
            purpose=self._purpose,
            force=force,
            epoch=epoch,
        )
        return self._far.ask(self._keeper, request, Lease)


@dataclass(frozen=True, slots=True)
class _Guarded:
    """A way to the machines that ends with the lease."""

    transport: Transport
    lease: HeldLease

    def run(
        self, machine: str, argv: Words, *, stdin: bytes | None = None, timeout: float
    ) -> CommandResult:
        self.lease.require()
        return self.transport.run(machine, argv, stdin=stdin, timeout=timeout)

    def send(self, machine: str, local: Path | bytes, remote: str) -> None:
        self.lease.require()
        self.transport.send(machine, local, remote)

    def start(self, machine: str, argv: Words, *, stdin: bytes | None = None) -> Stream:
        self.lease.require()
        return self.transport.start(machine, argv, stdin=stdin)

    def relay(
        self, source: str, giving: Words, machine: str, taking: Words, *, timeout: float
    ) -> CommandResult:
        self.lease.require()
        return self.transport.relay(source, giving, machine, taking, timeout=timeout)


@contextmanager
def holding(far: Machines, purpose: str, *, force: bool = False) -> Iterator[Machines]:
    """Hold a fleet while something is changed, by a way to its machines that ends with the lease.

    With `force` it is taken from whoever holds it, on another machine if the first one is down.
    """
    held = HeldLease(far, purpose)
    try:
        held.take(force=force)
    except UnreachableError:
        if not force:
            raise
        held.take_elsewhere()
    with held.renewed():
        yield Machines(far.fleet, _Guarded(far.transport, held))


def _describe(held: Lease) -> str:
    return f"{escape(held.holder)} holds the fleet for {escape(held.purpose)}"


def _name_self() -> str:
    """Name this user and this machine, in letters that anybody may show."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "somebody"
    return re.sub(r"[^A-Za-z0-9@._-]", "-", f"{user}@{socket.gethostname()}")[:120]
