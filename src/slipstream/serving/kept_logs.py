"""Logs that are kept in parts of a bounded size: FILE, before it FILE.1, before that FILE.2.

The engine's log is rotated by the warden, which writes it (`supervision/warden.py`).
"""

import os
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from slipstream.serving.supervision.warden import KEPT_PARTS, name_part, shift_parts

KEPT_ENGINES = 3
SUPERVISOR_LOG_BYTES = 4 << 20


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
    except FileNotFoundError:
        return None


def read_tail(path: Path, limit_bytes: int) -> bytes:
    """Read the end of a log, also right after it was rotated."""
    tail = b""
    for file in reversed(open_parts(path)):
        with file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - (limit_bytes - len(tail))))
            tail = file.read(limit_bytes - len(tail)) + tail
    return tail


def begin_log(path: Path) -> None:
    """Have an empty log at `path`, without parts of an earlier one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")
    _remove_parts(path)


def set_aside(log: Path) -> None:
    """Keep the end of an engine's log under a number, beside those of the engines before it."""
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
    """Copy this process's own log into a part once it is long, and go on with an empty one."""
    with suppress(OSError):
        if path.stat().st_size > SUPERVISOR_LOG_BYTES:
            shift_parts(str(path))
            with suppress(OSError):
                shutil.copyfile(path, name_part(str(path), 1))
            os.truncate(path, 0)


def _remove_parts(path: Path) -> None:
    for number in range(1, KEPT_PARTS + 1):
        Path(name_part(str(path), number)).unlink(missing_ok=True)


def _find_numbers(log: Path) -> set[int]:
    pattern = re.compile(rf"{re.escape(log.stem)}-(\d+){re.escape(log.suffix)}")
    matches = (pattern.fullmatch(file.name) for file in log.parent.iterdir())
    return {int(match[1]) for match in matches if match}


def _name_aside(log: Path, engine: int, part: int) -> str:
    return name_part(str(log.with_name(f"{log.stem}-{engine}{log.suffix}")), part)
