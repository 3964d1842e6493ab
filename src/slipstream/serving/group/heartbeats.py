"""What the supervisors of a group say to each other: one signed datagram each half second.

The head gives orders and the others report. A beat names its sender's session and echoes the
receiver's: whoever recorded beats can play none of them to a supervisor that started later.
"""

import hmac
import os
import stat
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, ValidationError

from slipstream.errors import InvalidInputError
from slipstream.records import Record
from slipstream.serving.run import State
from slipstream.serving.supervision.causes.diagnosis import Cause
from slipstream.serving.supervision.causes.ladder import Rung

MOST_BYTES = 2048
_DIGEST_BYTES = sha256().digest_size
# So that a secret that serves elsewhere, too, signs nothing for here.
_PURPOSE = b"slipstream group 1\0"

Session = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
Message = Annotated[str, Field(max_length=300)]
LEAST_BYTES = 32
MOST_SECRET_BYTES = 1024


class Order(Record):
    """What the head wants: a generation of the engine that runs, or none."""

    kind: Literal["order"] = "order"
    generation: NonNegativeInt
    runs: bool
    rungs: Annotated[tuple[Rung, ...], Field(max_length=16)] = ()
    state: State
    given_up: bool = False
    message: Message = ""


class Report(Record):
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
    body: Annotated[Order | Report, Field(discriminator="kind")]


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
            hint=f"copy it from the group's other machines: scp HEAD:{file} {file}",
        ) from fault
    if not stat.S_ISREG(found.st_mode) or found.st_mode & 0o077:
        raise InvalidInputError(
            f"others may read the group's secret {file}", hint=f"chmod 600 {file}"
        )
    if len(secret) < LEAST_BYTES:
        raise InvalidInputError(
            f"the group's secret {file} has {len(secret)} bytes, and at least {LEAST_BYTES} count",
            hint=f"copy it from the group's other machines: scp HEAD:{file} {file}",
        )
    return secret
