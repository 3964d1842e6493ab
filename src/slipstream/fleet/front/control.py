"""A front that runs on this machine, asked and changed through HAProxy's own socket.

A group is closed by putting its server into maintenance: requests under way go on, no new one
comes, and the legs of the router lead to other groups. What is closed is written down, so that it
still is after HAProxy was started again.
"""

import csv
import os
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from pydantic import NonNegativeInt

from slipstream.atomic_files import write_atomically
from slipstream.errors import EngineError, InvalidInputError
from slipstream.fleet.front.haproxy import ADMIN_SOCKET, KEY_LIST, SERVER_STATES, name_leg
from slipstream.records import Record

ANSWER_SECONDS = 5.0
# Of commands in one line: HAProxy reads no more than its buffer holds.
_BATCH = 500

GroupState = Literal["open", "closed", "down"]


class RoutedState(Record):
    """A group as the front sees it, and the requests it has there."""

    group: str
    state: GroupState
    requests: NonNegativeInt


class FrontState(Record):
    """What the front knows; without the router it balances by itself."""

    schema_version: Literal[1] = 1
    router_up: bool
    groups: tuple[RoutedState, ...]

    def find(self, group: str) -> RoutedState | None:
        """Return a group's state."""
        return next((one for one in self.groups if one.group == group), None)


def read_state(folder: Path) -> FrontState:
    """Ask which groups take requests, and how many each has."""
    listed = _ask(folder, "show stat -1 4 -1").lstrip("# ").splitlines()
    rows = [row for row in csv.DictReader(listed) if row.get("svname")]
    legs = [row for row in rows if row["pxname"] == name_leg(row["svname"])]
    groups = tuple(
        RoutedState(
            group=leg["svname"],
            state=_read_status(leg["status"]),
            requests=sum(int(row["scur"]) for row in rows if row["svname"] == leg["svname"]),
        )
        for leg in legs
    )
    router = [row for row in rows if row["svname"] == "_router"]
    return FrontState(router_up=any(_is_up(row) for row in router), groups=groups)


def open_group(folder: Path, group: str) -> FrontState:
    """Let requests to a group again."""
    return _set_state(folder, group, "ready")


def close_group(folder: Path, group: str) -> FrontState:
    """Let no new request to a group; those under way go on."""
    return _set_state(folder, group, "maint")


def save_state(folder: Path) -> None:
    """Write down which groups are closed, for the next start."""
    write_atomically(folder / SERVER_STATES, _ask(folder, "show servers state").encode())


def take_keys(folder: Path, hashes: Iterable[str]) -> None:
    """Put other keys in the place of those that the front knows, in one step."""
    prepared = _ask(folder, f"prepare acl {KEY_LIST}")
    version = prepared.rpartition(":")[2].strip()
    if not version.isdecimal():
        raise _refused(prepared)
    words = [f"add acl @{version} {KEY_LIST} {one}" for one in hashes]
    for at in range(0, len(words), _BATCH):
        if said := _ask(folder, ";".join(words[at : at + _BATCH])).strip():
            raise _refused(said)
    if said := _ask(folder, f"commit acl @{version} {KEY_LIST}").strip():
        raise _refused(said)


def is_running(folder: Path) -> bool:
    """Say whether the front answers."""
    try:
        _ask(folder, "show info")
    except EngineError:
        return False
    return True


def _set_state(folder: Path, group: str, state: str) -> FrontState:
    if read_state(folder).find(group) is None:
        raise InvalidInputError(
            f"the front knows no group {group!r}", hint="slipstream fleet up, for a changed fleet"
        )
    if said := _ask(folder, f"set server {name_leg(group)}/{group} state {state}").strip():
        raise _refused(said)
    save_state(folder)
    return read_state(folder)


def _read_status(status: str) -> GroupState:
    if status.startswith("MAINT"):
        return "closed"
    return "open" if status.startswith(("UP", "no check")) else "down"


def _is_up(row: dict[str, str]) -> bool:
    return row["status"].startswith("UP")


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
            f"no front answers in {folder}: {fault.strerror or fault}", hint="slipstream fleet up"
        ) from fault
    return answer.decode(errors="replace")
