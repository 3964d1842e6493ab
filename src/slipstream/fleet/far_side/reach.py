"""Which ports of a fleet's machines are open, and to whom, by trying (`slipstream fleet reach`)."""

import errno
import socket
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

from pydantic import Field

from slipstream.records import Record

CONNECT_SECONDS = 1.5
MOST_TARGETS = 512
# A port that refuses is reachable, with nobody behind it now; a rule of a firewall may refuse, too.
Reach = Literal["open", "refused", "closed"]


class Target(Record):
    """A TCP port at an address."""

    address: str
    port: int = Field(ge=1, le=65535)


class Reached(Record):
    """What became of a try."""

    address: str
    port: int
    reach: Reach


class ReachList(Record):
    """What a machine can reach of the others."""

    schema_version: Literal[1] = 1
    reached: tuple[Reached, ...] = Field(max_length=MOST_TARGETS)


def try_targets(targets: Sequence[Target]) -> ReachList:
    """Try to connect to every target from this machine, and say nothing to whoever answers."""
    with ThreadPoolExecutor(max_workers=32) as pool:
        return ReachList(reached=tuple(pool.map(_try, targets)))


def parse_targets(words: Iterable[str]) -> list[Target]:
    """Read words such as 10.0.0.1:8000 or [fd00::1]:8000."""
    pairs = [word.rpartition(":") for word in words]
    return [Target(address=host.strip("[]"), port=int(port)) for host, _, port in pairs]


def _try(target: Target) -> Reached:
    reach: Reach = "closed"
    try:
        with socket.create_connection((target.address, target.port), CONNECT_SECONDS):
            reach = "open"
    except OSError as fault:
        if fault.errno == errno.ECONNREFUSED:
            reach = "refused"
    return Reached(address=target.address, port=target.port, reach=reach)
