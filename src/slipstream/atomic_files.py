"""Files and folders that are either whole or not there, whoever dies half way.

A folder is built under a temporary name beside its final one, under a lock, and renamed
when it is complete: two processes that want the same folder build it once.
"""

import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import get_ident

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_BLOCK_BYTES = 4096
# What a document may grow by while the disk is full.
_SPARE_BYTES = 4096


def write_atomically(path: Path, content: bytes, *, mode: int | None = None) -> None:
    """Put `content` at `path` in one step, readable by whom `mode` says from the first byte on."""
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}-{get_ident()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        partial.unlink(missing_ok=True)
        descriptor = os.open(partial, flags, 0o666 if mode is None else mode)
        with os.fdopen(descriptor, "wb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_even_if_full(path: Path, document: bytes) -> None:
    """Put a JSON document at `path` in one step, or on a full disk into the room the old one has.

    Spaces at its end keep some blocks more than it needs, so a later one may be longer. Whoever
    reads it while the disk is full may find half of it, and has to read again.
    """
    room = -(-(len(document) + _SPARE_BYTES) // _BLOCK_BYTES) * _BLOCK_BYTES
    try:
        write_atomically(path, document.ljust(room))
    except OSError as fault:
        if fault.errno not in DISK_FULL or not _overwrite(path, document):
            raise


def make_folder_once(folder: Path, build: Callable[[Path], None]) -> Path:
    """Return `folder`, filling it through `build` if nobody has done so yet."""
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_name(f".{folder.name}.lock")):
        if folder.is_dir():
            return folder
        partial = folder.with_name(f".{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        try:
            build(partial)
            partial.rename(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return folder


def _overwrite(path: Path, document: bytes) -> bool:
    """Write over a file without asking for room, and return whether there was enough of it."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        held = os.fstat(descriptor)
        if len(document) > held.st_blocks * 512:
            return False
        filled = document.ljust(held.st_size)
        return os.pwrite(descriptor, filled, 0) == len(filled)
    except OSError:
        return False
    finally:
        os.close(descriptor)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an advisory lock that the kernel drops if this process dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
