"""Files and folders that are either whole or not there, whoever dies half way.

A folder is built under a temporary name beside its final one, under a lock, and renamed
when it is complete: two processes that want the same folder build it once.
"""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import get_ident


def write_atomically(path: Path, content: bytes) -> None:
    """Put `content` at `path` in one step."""
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}-{get_ident()}")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


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


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an advisory lock that the kernel drops if this process dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
