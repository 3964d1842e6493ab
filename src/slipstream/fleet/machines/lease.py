"""Who may change a fleet now: a lease, kept on the fleet's first machine and by its clock alone.

It ends by itself when the control machine that holds it goes away.
"""

import fcntl
import getpass
import re
import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal

from pydantic import AwareDatetime, Field

from slipstream.atomic_files import write_atomically
from slipstream.errors import InvalidInputError, SlipstreamError, UnreachableError
from slipstream.fleet.machines.commands import Machines, escape
from slipstream.fleet.record import Name
from slipstream.records import Record, read_record

LEASE_SECONDS = 60
FILE = "lease.json"
_PLAIN = r"^[A-Za-z0-9@._ -]{1,120}$"


class Lease(Record):
    schema_version: Literal[1] = 1
    owner: str = Field(pattern=r"^[0-9a-f]{32}$")
    who: str = Field(pattern=_PLAIN)
    purpose: str = Field(pattern=_PLAIN)
    until: AwareDatetime


class LeaseRequest(Record):
    """What a process on a control machine, named by a random number, asks the first machine for."""

    fleet: Name
    action: Literal["take", "release"]
    owner: str
    who: str
    purpose: str
    force: bool = False


def change_lease(folder: Path, request: LeaseRequest, now: datetime) -> Lease:
    """Take, renew or release the lease, and return the one that counts.

    It is theirs who ask if it was free, over, theirs already or is taken by force.
    """
    until = now + timedelta(seconds=LEASE_SECONDS)
    wanted = Lease(owner=request.owner, who=request.who, purpose=request.purpose, until=until)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (folder / ".lease.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        held = _read(folder / FILE)
        is_ours = held is not None and held.owner == request.owner
        if request.action == "release":
            if is_ours:
                (folder / FILE).unlink()
            return wanted
        if held is not None and not is_ours and held.until > now and not request.force:
            return held
        write_atomically(folder / FILE, wanted.to_json().encode(), mode=0o600)
    return wanted


def _read(file: Path) -> Lease | None:
    """Read a lease; one that cannot be read holds nobody up for long, as it ends by itself."""
    with suppress(InvalidInputError):
        return read_record(file, Lease, hint="slipstream fleet status")
    return None


class HeldLease:
    """A lease of this process, renewed in the background; `require` says whether it still is."""

    def __init__(self, far: Machines, purpose: str) -> None:
        self._far, self._purpose, self._owner = far, purpose, secrets.token_hex(16)
        self._over, self._lost = threading.Event(), list[SlipstreamError]()
        self._renewing = threading.Thread(target=self._renew, daemon=True)

    def take(self, *, force: bool) -> None:
        held = self._ask("take", force=force)
        if held.owner != self._owner:
            raise InvalidInputError(
                f"{escape(held.who)} holds the fleet for {escape(held.purpose)} until "
                f"{held.until:%H:%M:%S} UTC",
                hint="wait until it is over, or take it over with --force",
            )

    def require(self) -> None:
        """Fail if the lease has been lost: another control machine may change the fleet now."""
        if self._lost:
            raise self._lost[0]

    @contextmanager
    def renewed(self) -> Iterator[None]:
        """Renew the lease while something is done, and give it back."""
        self._renewing.start()
        try:
            yield
        finally:
            self._over.set()
            self._renewing.join(10)
            with suppress(SlipstreamError):
                self._ask("release")

    def _renew(self) -> None:
        failures = 0
        while not self._over.wait(LEASE_SECONDS / 4):
            try:
                self.take(force=False)
                failures = 0
            except SlipstreamError as fault:
                failures += 1
                if isinstance(fault, InvalidInputError) or failures >= 3:
                    self._lost.append(fault)
                    return

    def _ask(self, action: Literal["take", "release"], *, force: bool = False) -> Lease:
        request = LeaseRequest(
            fleet=self._far.fleet.name,
            action=action,
            owner=self._owner,
            who=_name_self(),
            purpose=self._purpose,
            force=force,
        )
        return self._far.ask(self._far.fleet.first_machine, request, Lease)


@contextmanager
def holding(far: Machines, purpose: str, *, force: bool = False) -> Iterator[HeldLease]:
    """Hold a fleet while something is changed.

    With `force` it is taken from whoever holds it, and a first machine that is down is no obstacle.
    """
    held = HeldLease(far, purpose)
    try:
        held.take(force=force)
    except UnreachableError:
        if not force:
            raise
        yield held
        return
    with held.renewed():
        yield held


def _name_self() -> str:
    """Name this user and this machine, in letters that anybody may show."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "somebody"
    return re.sub(r"[^A-Za-z0-9@._-]", "-", f"{user}@{socket.gethostname()}")[:120]
