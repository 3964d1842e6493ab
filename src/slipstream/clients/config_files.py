"""A client's configuration file, changed atomically with a backup beside it."""

import os
import stat
from pathlib import Path

from slipstream.atomic_files import write_atomically
from slipstream.clients.client import ConfigFile
from slipstream.clients.merging import MergeError, merge
from slipstream.errors import InvalidInputError
from slipstream.records import Record

BACKUP_SUFFIX = ".before-slipstream"
MOST_BYTES = 1 << 20


class Written(Record):
    """A changed file: its new keys and the backup; no keys if nothing had to change."""

    path: str
    changed: tuple[str, ...]
    backup: str | None


def plan_change(wanted: ConfigFile) -> tuple[str | None, str, tuple[str, ...]]:
    """Return a file's text, None without a file, the text that it is to have, and what changes."""
    text = _read(wanted.path)
    try:
        return text, *merge(text or "", wanted)
    except MergeError as fault:
        raise InvalidInputError(
            f"{wanted.path} is left as it is: {fault}",
            hint="put it right or in another place, or add by hand what slipstream connect prints",
        ) from fault


def write_change(wanted: ConfigFile) -> Written:
    """Write the entries into the file, with a backup of the old one beside it."""
    path = wanted.path
    before, after, changed = plan_change(wanted)
    if not changed:
        return Written(path=str(path), changed=(), backup=None)
    backup = path.with_name(path.name + BACKUP_SUFFIX)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = 0o600 if before is None else stat.S_IMODE(path.stat().st_mode)
        if before is not None:
            _require_plain(backup)
            write_atomically(backup, before.encode(), mode=mode)
        write_atomically(path, after.encode(), mode=mode)
    except OSError as fault:
        raise InvalidInputError(
            f"cannot write {path}: {fault.strerror or fault}", hint=f"ls -ld {path} {path.parent}"
        ) from fault
    return Written(path=str(path), changed=changed, backup=None if before is None else str(backup))


def _read(path: Path) -> str | None:
    _require_plain(path)
    try:
        content = path.read_bytes()
        if len(content) > MOST_BYTES:
            raise InvalidInputError(
                f"{path} has {len(content):,} bytes, and a configuration at most {MOST_BYTES:,}",
                hint=f"ls -l {path}",
            )
        return content.decode()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as fault:
        why = getattr(fault, "strerror", None) or fault
        raise InvalidInputError(f"cannot read {path}: {why}", hint=f"ls -l {path}") from fault


def _require_plain(path: Path) -> None:
    """Raise unless this is a regular file of this user; links are not followed."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    except OSError as fault:
        why = fault.strerror or fault
        raise InvalidInputError(
            f"cannot read {path}: {why}", hint=f"ls -ld {path.parent}"
        ) from fault
    if stat.S_ISLNK(status.st_mode):
        raise InvalidInputError(
            f"{path} is a link to {path.readlink()}, and is neither followed nor replaced",
            hint="add by hand what slipstream connect prints, or put a file in the link's place",
        )
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
        raise InvalidInputError(f"{path} is no file of this user's", hint=f"ls -ld {path}")
