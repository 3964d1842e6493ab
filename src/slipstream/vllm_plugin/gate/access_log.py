"""The access log: one JSON line per request, in a file that is rotated by size.

Lines wait in a bounded queue for a thread of their own, so a slow disk delays no request. Lines
that find no room, in the queue or on the disk, are dropped and counted. Several API processes
write the same file, one by one, under a lock of its folder.
"""

import fcntl
import json
import logging
import os
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

MOST_WAITING = 4096
LINES_AT_ONCE = 256
CLOSE_SECONDS = 1.0

Line = dict[str, object]

_log = logging.getLogger(__name__)


class AccessLog:
    """Appends lines to a file; `drop` is called with the number of lost lines."""

    def __init__(
        self,
        path: Path | str | None,
        *,
        limit_bytes: int,
        older: int,
        drop: Callable[[int], object],
    ) -> None:
        self._path = None if path is None else Path(path)
        self._limit_bytes, self._older, self._drop = limit_bytes, older, drop
        self._waiting: queue.Queue[Line | None] = queue.Queue(MOST_WAITING)
        self._thread: threading.Thread | None = None
        self._failed = False

    def add(self, line: Line) -> None:
        """Queue a line for writing; never waits and never fails."""
        if self._path is None:
            return
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._write_all, args=(self._path,), name="access log", daemon=True
            )
            self._thread.start()
        try:
            self._waiting.put_nowait(line)
        except queue.Full:
            self._drop(1)

    def close(self) -> None:
        """Write what waits, as far as the disk allows within a second."""
        if self._thread is not None and self._thread.is_alive():
            try:
                self._waiting.put_nowait(None)
            except queue.Full:
                return
            self._thread.join(CLOSE_SECONDS)
            self._thread = None

    def _write_all(self, path: Path) -> None:
        while (line := self._waiting.get()) is not None:
            lines = [line]
            while len(lines) < LINES_AT_ONCE and not self._waiting.empty():
                if (line := self._waiting.get_nowait()) is None:
                    return self._write(path, lines)
                lines.append(line)
            self._write(path, lines)

    def _write(self, path: Path, lines: list[Line]) -> None:
        content = b"".join(
            json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines
        )
        try:
            with _locked(path.parent):
                self._make_room(path, len(content))
                _append_whole(path, content)
            self._failed = False
        except OSError as fault:
            self._drop(len(lines))
            if not self._failed:
                _log.error("the access log cannot be written: %s", fault)
            self._failed = True

    def _make_room(self, path: Path, added_bytes: int) -> None:
        """Rotate the files if the current one is full; the oldest is dropped."""
        try:
            if path.stat().st_size + added_bytes <= self._limit_bytes:
                return
        except FileNotFoundError:
            return
        places = [path, *(_name_older(path, number) for number in range(1, self._older + 1))]
        for newer, older in reversed(list(pairwise(places))):
            if newer.exists():
                newer.replace(older)
        path.unlink(missing_ok=True)


def _name_older(path: Path, number: int) -> Path:
    return path.with_name(f"{path.stem}-{number}{path.suffix}")


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock the folder's log against other API processes."""
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _append_whole(path: Path, content: bytes) -> None:
    """Append all of the text or nothing; a line that a crash cut off stays alone."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(path, flags, 0o600)
    try:
        size = os.fstat(file).st_size
        if size and os.pread(file, 1, size - 1) != b"\n":
            content = b"\n" + content
        if os.write(file, content) < len(content):
            os.ftruncate(file, size)
            raise OSError(f"the disk of {path} is full")
    finally:
        os.close(file)
