"""What a run goes on to say: its logs and its events, read as they grow."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from slipstream.serving.access.access_lines import AccessLine, read_access_line
from slipstream.serving.run import Event, RunFolder

LOOK_EVERY_SECONDS = 0.25
CHUNK_BYTES = 1 << 16


@dataclass(slots=True)
class GrowingFile:
    """A file that is added to, begun anew or replaced, or that is not there yet."""

    path: Path
    _file: BinaryIO | None = field(default=None, init=False)

    def read(self) -> bytes:
        """Give some of what was not read yet, nothing if that is all for now."""
        added = b"" if self._file is None else self._file.read(CHUNK_BYTES)
        if added or not self._is_another():
            return added
        self.close()
        self._file = self.path.open("rb")
        return self._file.read(CHUNK_BYTES)

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _is_another(self) -> bool:
        """Say whether the path holds something that the open file does not."""
        try:
            there = self.path.stat()
        except FileNotFoundError:
            return False
        if self._file is None:
            return True
        ours = os.fstat(self._file.fileno())
        return there.st_ino != ours.st_ino or there.st_size < self._file.tell()


def follow_file(
    path: Path, is_over: Callable[[], bool], wait: Callable[[float], None]
) -> Iterator[bytes]:
    """Give what a file holds and what is added to it until it is over."""
    file = GrowingFile(path)
    try:
        while True:
            over = is_over()  # Asked first: what came before the end is still read.
            while added := file.read():
                yield added
            if over:
                return
            wait(LOOK_EVERY_SECONDS)
    finally:
        file.close()


def follow_events(
    folder: RunFolder, is_over: Callable[[], bool], wait: Callable[[float], None]
) -> Iterator[Event]:
    """Give the events of a run and those that come until it is over."""
    told = 0
    while True:
        over = is_over()
        events = folder.read_events()
        yield from events[told:]
        told = len(events)
        if over:
            return
        wait(LOOK_EVERY_SECONDS)


def follow_accesses(
    folder: RunFolder, is_over: Callable[[], bool], wait: Callable[[float], None]
) -> Iterator[AccessLine]:
    """Give the requests of a run, those in older files first, and those that come."""
    older = [follow_file(path, lambda: True, wait) for path in folder.list_older_access_logs()]
    begun = b""
    for added in chain(*older, follow_file(folder.access_log, is_over, wait)):
        *lines, begun = (begun + added).split(b"\n")
        yield from (line for text in lines if (line := read_access_line(text)) is not None)
