"""Logs in parts of a bounded size: FILE, before it FILE.1, before that FILE.2.

The engine's log is rotated by the warden, which writes it (`supervision/warden.py`).
"""

import os
import re
import shutil
from contextlib import ExitStack, suppress
from hashlib import sha256
from itertools import accumulate, pairwise
from pathlib import Path
from typing import BinaryIO

from slipstream.records import Record
from slipstream.serving.supervision.warden import KEPT_PARTS, name_part, shift_parts

KEPT_ENGINES = 3
SUPERVISOR_LOG_BYTES = 4 << 20
PLACE_BYTES = 4096


class LogPlace(Record):
    """A position in a log, identified by the bytes before it in its part.

    A part gets other names, and the inode of one that is removed goes to the next.
    """

    offset: int
    digest: str

    def is_in(self, part: BinaryIO) -> bool:
        return _read_place(part, self.offset) == self


def open_parts(path: Path) -> list[BinaryIO]:
    """Open what there is of a log, the oldest part first.

    The newest is opened first: a part that is renamed meanwhile is met twice, and none is missed.
    """
    parts: dict[int, BinaryIO] = {}
    for number in range(KEPT_PARTS + 1):
        file = open_if_there(Path(name_part(str(path), number)))
        if file and parts.setdefault(os.fstat(file.fileno()).st_ino, file) is not file:
            file.close()
    return list(reversed(parts.values()))


def open_if_there(path: Path) -> BinaryIO | None:
    """Open a file, or None if there is none."""
    try:
        return path.open("rb")
    except (FileNotFoundError, NotADirectoryError):
        return None


def find_place(path: Path) -> LogPlace | None:
    """Return the end position of a log, None if it cannot be read."""
    try:
        with path.open("rb") as file:
            return _read_place(file, os.fstat(file.fileno()).st_size)
    except OSError:
        return None


def read_end(path: Path, most_bytes: int, since: LogPlace | None = None) -> str:
    """Return the end of a log across its parts, after a position if they still contain it.

    Half a line at its beginning is left out: without its prefix nobody knows whose it is.
    """
    with ExitStack() as opened:
        parts = [opened.enter_context(part) for part in open_parts(path)]
        begins = [0, *accumulate(os.fstat(part.fileno()).st_size for part in parts)]
        begin = max(0, begins[-1] - most_bytes)
        if since is not None:
            found = zip(parts, begins, strict=False)
            places = (start + since.offset for part, start in found if since.is_in(part))
            begin = max(begin, next(places, 0))
        read = b"" if begin else b"\n"
        for part, (start, end) in zip(parts, pairwise(begins), strict=True):
            part.seek(max(0, begin - 1 - start))
            read += part.read(max(0, end - start - part.tell()))
    return read.partition(b"\n")[2].decode(errors="replace")


def begin_log(path: Path) -> None:
    """Start an empty log at `path`, removing the parts of an earlier one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")
    _remove_parts(path)


def set_aside(log: Path) -> None:
    """Keep the end of an engine's log under a number, beside those of earlier engines."""
    kept = sorted(_find_numbers(log))
    if log.exists():
        kept.append(kept[-1] + 1 if kept else 1)
        for number in (0, 1):
            with suppress(FileNotFoundError):
                Path(name_part(str(log), number)).rename(_name_aside(log, kept[-1], number))
    _remove_parts(log)
    for old in kept[:-KEPT_ENGINES]:
        for number in (0, 1):
            Path(_name_aside(log, old, number)).unlink(missing_ok=True)


def cut_own_log(path: Path) -> None:
    """Move this process's own log into a part when it is long, and continue with an empty one."""
    with suppress(OSError):
        if path.stat().st_size > SUPERVISOR_LOG_BYTES:
            shift_parts(str(path))
            with suppress(OSError):
                shutil.copyfile(path, name_part(str(path), 1))
            os.truncate(path, 0)


def _read_place(part: BinaryIO, offset: int) -> LogPlace:
    part.seek(max(0, offset - PLACE_BYTES))
    before = part.read(min(offset, PLACE_BYTES))
    return LogPlace(offset=offset, digest=sha256(before).hexdigest())


def _remove_parts(path: Path) -> None:
    for number in range(1, KEPT_PARTS + 1):
        Path(name_part(str(path), number)).unlink(missing_ok=True)


def _find_numbers(log: Path) -> set[int]:
    pattern = re.compile(rf"{re.escape(log.stem)}-(\d+){re.escape(log.suffix)}")
    matches = (pattern.fullmatch(file.name) for file in log.parent.iterdir())
    return {int(match[1]) for match in matches if match}


def _name_aside(log: Path, engine: int, part: int) -> str:
    return name_part(str(log.with_name(f"{log.stem}-{engine}{log.suffix}")), part)
