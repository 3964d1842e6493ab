"""Messages between the processes of a run: one JSON document per line over one Unix socket.

The supervisor listens in the run's folder; the gate, the engine's core and commands connect. A
message is named after its record: `{"Readiness": {...}}`. Whoever cannot read one drops it. What
has to outlive a process is a file and no message. vLLM's processes import this module: it imports
nothing that is heavy.
"""

import os
import secrets
import socket
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from pydantic import Field
from pydantic_core import from_json

from slipstream.records import Record

SOCKET = "run.sock"
# Of a message to or from the engine's processes, and of an answer to a command.
MOST_BYTES = 1 << 18
MOST_ANSWER_BYTES = 1 << 24
_CREDENTIALS = struct.Struct("iII")  # Of SO_PEERCRED: process, user, group.


class Readiness(Record):
    """The engine's state as the supervisor reports it to the gate, and how many notes it has.

    `generation` is the number of the drafter that the run has learnt, 0 for the plan's.
    """

    state: str
    reasons: tuple[str, ...] = ()
    notes: int = 0
    generation: int = 0


class CallerCounts(Record):
    """The requests of one key; those in flight are in the engine, the others wait for a seat."""

    in_flight: int
    total: int
    waiting: int = 0


class GateCounts(Record):
    """The open requests of all but the supervisor; of the busiest keys each by itself.

    The time of the last token is of the monotonic clock, which all processes of a machine share.
    """

    pid: int
    last_token: float | None = None
    in_flight: int = 0
    total: int = 0
    waiting: int = 0
    longest_body_bytes: int = 0
    by_key: dict[str, CallerCounts] = Field(default_factory=dict)


class DrafterOrder(Record):
    """An order to the gate: the drafter to load, and the current one."""

    id: str = Field(default_factory=lambda: secrets.token_hex(8))
    folder: Path
    previous: Path
    is_return: bool


class DrafterResult(Record):
    """The gate's result; `seconds` is the time of the call, with the step before it.

    Refused changed nothing, after failed the drafter before is loaded again, and after broken
    neither of them is whole.
    """

    order: str
    outcome: Literal["swapped", "refused", "failed", "broken"]
    seconds: float | None = None
    error: str | None = None


class LiveQuestion(Record):
    """The question of a command how a run is doing."""


def encode(message: Record) -> bytes:
    return f'{{"{type(message).__name__}":{message.model_dump_json()}}}\n'.encode()


def decode(line: bytes, kinds: Iterable[type[Record]]) -> Record:
    """Return the message on a line; a ValueError if it is none of these kinds."""
    document = from_json(line)
    if isinstance(document, dict) and len(document) == 1:
        ((name, body),) = document.items()
        for kind in kinds:
            if kind.__name__ == name:
                return kind.model_validate(body)
    raise ValueError(f"unexpected message {line[:40]!r}")


@contextmanager
def short_path(path: Path) -> Iterator[str]:
    """Return a name of a socket that fits into its address, which holds 107 bytes."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def read_peer(connected: Any) -> tuple[int, int]:
    """Return the process and the user that made the other end of a Unix socket."""
    size = _CREDENTIALS.size
    found = _CREDENTIALS.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return int(found[0]), int(found[1])


def ask(
    path: Path, message: Record, kinds: Iterable[type[Record]], *, seconds: float
) -> Iterator[Record]:
    """Send a supervisor a message and yield what it answers; `seconds` is for each answer.

    An OSError if nobody listens or answers in time, a ValueError for an answer of another version.
    """
    with short_path(path) as short, socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(seconds)
        connection.connect(short)
        connection.sendall(encode(message))
        with connection.makefile("rb") as lines:
            while line := lines.readline(MOST_ANSWER_BYTES):
                yield decode(line, kinds)
