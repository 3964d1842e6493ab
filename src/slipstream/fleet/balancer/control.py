"""HAProxy on this machine, asked and changed through its own socket.

A group is closed by putting its server into maintenance: requests under way go on and no new one
comes. What is closed is written down, so that it still is after HAProxy was started again.
"""

import csv
import os
import socket
from datetime import datetime
from pathlib import Path
from typing import Literal

from pydantic import NonNegativeInt

from slipstream.atomic_files import write_atomically
from slipstream.errors import EngineError, InvalidInputError
from slipstream.fleet.balancer.haproxy import ADMIN_SOCKET, GATES, KEY_LIST, SERVER_STATES
from slipstream.records import Record
from slipstream.serving.access.keys import read_keys

ANSWER_SECONDS = 5.0
# Of commands in one line: HAProxy reads no more than its buffer holds.
_BATCH = 500

BackendState = Literal["open", "closed", "down"]


class BackendStatus(Record):
    """A group as the load balancer sees it, and the requests it has there."""

    group: str
    state: BackendState
    requests: NonNegativeInt


class BalancerStatus(Record):
    """The groups that the load balancer knows; none while it does not run."""

    schema_version: Literal[2] = 2
    groups: tuple[BackendStatus, ...] = ()

    def find(self, group: str) -> BackendStatus | None:
        """Return a group's state."""
        return next((one for one in self.groups if one.group == group), None)


def read_state(folder: Path) -> BalancerStatus:
    """Ask which groups take requests, and how many each has over all backends."""
    listed = _ask(folder, "show stat -1 4 -1").lstrip("# ").splitlines()
    rows = [row for row in csv.DictReader(listed) if row.get("svname")]
    return BalancerStatus(
        groups=tuple(
            BackendStatus(
                group=one["svname"],
                state=_read_status(one["status"]),
                requests=sum(int(row["scur"]) for row in rows if row["svname"] == one["svname"]),
            )
            for one in rows
            if one["pxname"] == GATES
        )
    )


def set_group(folder: Path, group: str, *, is_open: bool) -> BalancerStatus:
    """Let new requests to a group, or none; those under way go on."""
    if read_state(folder).find(group) is None:
        raise InvalidInputError(
            f"the load balancer knows no group {group!r}",
            hint="slipstream fleet up, for a changed fleet",
        )
    state = "ready" if is_open else "maint"
    if said := _ask(folder, f"set server {GATES}/{group} state {state}").strip():
        raise _refused(said)
    save_state(folder)
    return read_state(folder)


def save_state(folder: Path) -> None:
    """Write down which groups are closed, for the next start."""
    write_atomically(folder / SERVER_STATES, _ask(folder, "show servers state").encode())


def take_keys(fleet: Path, folder: Path, now: datetime) -> None:
    """Have HAProxy know the keys of the fleet's folder, whether it runs or not, in one step."""
    hashes = [key.sha256 for key in read_keys(fleet / "keys.json") if key.is_valid(now)]
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    content = "".join(f"{one}\n" for one in hashes)
    write_atomically(folder / KEY_LIST, content.encode(), mode=0o600)
    if not is_running(folder):
        return
    prepared = _ask(folder, f"prepare acl {KEY_LIST}")
    version = prepared.rpartition(":")[2].strip()
    if not version.isdecimal():
        raise _refused(prepared)
    words = [f"add acl @{version} {KEY_LIST} {one}" for one in hashes]
    orders = [";".join(words[at : at + _BATCH]) for at in range(0, len(words), _BATCH)]
    for order in (*orders, f"commit acl @{version} {KEY_LIST}"):
        if said := _ask(folder, order).strip():
            raise _refused(said)


def is_running(folder: Path) -> bool:
    """Say whether HAProxy answers."""
    try:
        _ask(folder, "show info")
    except EngineError:
        return False
    return True


def _read_status(status: str) -> BackendState:
    if status.startswith("MAINT"):
        return "closed"
    return "open" if status.startswith(("UP", "no check")) else "down"


def _refused(said: str) -> EngineError:
    return EngineError(f"HAProxy refused: {said.strip()[:200]}", hint="slipstream fleet doctor")


def _ask(folder: Path, command: str) -> str:
    """Send one line, and return all that comes back."""
    answer = bytearray()
    try:
        # A socket's path has 108 bytes at most; this one is short wherever the folder is.
        directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with socket.socket(socket.AF_UNIX) as asking:
                asking.settimeout(ANSWER_SECONDS)
                asking.connect(f"/proc/self/fd/{directory}/{ADMIN_SOCKET}")
                asking.sendall(command.encode() + b"\n")
                while block := asking.recv(1 << 16):
                    answer += block
        finally:
            os.close(directory)
    except OSError as fault:
        raise EngineError(
            f"no HAProxy answers in {folder}: {fault.strerror or fault}", hint="slipstream fleet up"
        ) from fault
    return answer.decode(errors="replace")
