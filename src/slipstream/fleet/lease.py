"""Who may change a fleet now: a lease, kept on the fleet's first machine and by its clock alone.

It ends by itself when a desk goes away. A desk that comes back late finds out before it changes
anything more.
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
from slipstream.fleet.far_commands import call, read_answer
from slipstream.fleet.record import Fleet
from slipstream.fleet.transport import Transport, escape
from slipstream.records import Record, read_record

LEASE_SECONDS = 60
FILE = "lease.json"
_PLAIN = r"^[A-Za-z0-9@._ -]{1,120}$"


class Lease(Record):
    """Who holds a fleet, for what, and until when."""

    schema_version: Literal[1] = 1
    owner: str = Field(pattern=r"^[0-9a-f]{32}$")
    who: str = Field(pattern=_PLAIN)
    purpose: str = Field(pattern=_PLAIN)
    until: AwareDatetime


def take_lease(folder: Path, wanted: Lease, *, now: datetime, force: bool) -> Lease:
    """Return the lease that counts: ours if it was free, over, already ours or taken by force."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (folder / ".lease.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        held = _read(folder / FILE)
        if held and held.owner != wanted.owner and held.until > now and not force:
            return held
        write_atomically(folder / FILE, wanted.to_json().encode(), mode=0o600)
    return wanted


def release_lease(folder: Path, owner: str) -> None:
    """Return a lease, unless it has become another's."""
    with suppress(FileNotFoundError), (folder / ".lease.lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        held = _read(folder / FILE)
        if held is not None and held.owner == owner:
            (folder / FILE).unlink()


def _read(file: Path) -> Lease | None:
    """Read a lease; one that cannot be read holds nobody up for long, as it ends by itself."""
    if not file.exists():
        return None
    with suppress(InvalidInputError):
        return read_record(file, Lease, hint="slipstream fleet status")
    return None


class HeldLease:
    """A lease of this process, renewed in the background; `require` says whether it still is."""

    def __init__(self, fleet: Fleet, transport: Transport, purpose: str) -> None:
        self._fleet, self._transport, self._purpose = fleet, transport, purpose
        self._owner = secrets.token_hex(16)
        self._over, self._lost = threading.Event(), list[SlipstreamError]()
        self._renewing = threading.Thread(target=self._renew, daemon=True)

    def take(self, *, force: bool) -> None:
        """Take the lease, or fail with whose it is."""
        words = ["--who", _name_self(), "--purpose", self._purpose, *(["--force"] if force else [])]
        held = self._ask("take", *words)
        if held.owner != self._owner:
            raise InvalidInputError(
                f"{escape(held.who)} holds the fleet for {escape(held.purpose)} until "
                f"{held.until:%H:%M:%S} UTC",
                hint="wait until it is over, or take it over with --force",
            )

    def begin(self) -> None:
        """Renew the lease from now on."""
        self._renewing.start()

    def require(self) -> None:
        """Fail if the lease has been lost: another desk may change the fleet now."""
        if self._lost:
            raise self._lost[0]

    def give_back(self) -> None:
        """Let others have the fleet."""
        self._over.set()
        if self._renewing.is_alive():
            self._renewing.join(10)
        with suppress(SlipstreamError):
            self._ask("release")

    def _renew(self) -> None:
        failures = 0
        while not self._over.wait(LEASE_SECONDS / 4):
            try:
                self.take(force=False)
                failures = 0
            except InvalidInputError as fault:
                self._lost.append(fault)
                return
            except SlipstreamError as fault:
                failures += 1
                if failures >= 3:
                    self._lost.append(fault)
                    return

    def _ask(self, action: str, *words: str) -> Lease:
        machine = self._fleet.first_machine
        command = ["fleet", "lease", action, "--json", f"--name={self._fleet.name}"]
        command += [f"--owner={self._owner}", *words]
        answer = call(self._fleet, self._transport, machine, command)
        return read_answer(machine, answer, Lease)


@contextmanager
def holding(
    fleet: Fleet, transport: Transport, purpose: str, *, force: bool = False
) -> Iterator[HeldLease]:
    """Hold a fleet while something is changed.

    With `force` it is taken from whoever holds it, and a first machine that is down is no obstacle.
    """
    held = HeldLease(fleet, transport, purpose)
    try:
        held.take(force=force)
    except UnreachableError:
        if not force:
            raise
        yield held
        return
    held.begin()
    try:
        yield held
    finally:
        held.give_back()


def make_lease(owner: str, who: str, purpose: str, now: datetime) -> Lease:
    """Make the lease that a desk asks for."""
    until = now + timedelta(seconds=LEASE_SECONDS)
    return Lease(owner=owner, who=who, purpose=purpose, until=until)


def _name_self() -> str:
    """Name the user and the machine of this desk, in letters that anybody may show."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "somebody"
    return re.sub(r"[^A-Za-z0-9@._-]", "-", f"{user}@{socket.gethostname()}")[:120]
