"""The secret that the machines of a group share."""

import os
import secrets
import stat
from pathlib import Path

from slipstream.atomic_files import write_atomically
from slipstream.errors import InvalidInputError

LEAST_BYTES = 32
MOST_BYTES = 1024


def write_secret(file: Path) -> None:
    """Make a secret for a group, which only this user may read."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomically(file, secrets.token_hex(LEAST_BYTES).encode() + b"\n", mode=0o600)


def read_secret(file: Path) -> bytes:
    """Read a group's secret; one that others could read or that is short is refused."""
    try:
        with file.open("rb") as opened:
            found, secret = os.fstat(opened.fileno()), opened.read(MOST_BYTES).strip()
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
