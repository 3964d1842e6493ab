"""Logs, events and requests of a run, read as they grow and are rotated."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Literal

from pydantic import AwareDatetime

from slipstream.records import Record, read_line
from slipstream.serving.kept_logs import open_if_there, open_parts
from slipstream.serving.run import Event, RunFolder

LOOK_EVERY_SECONDS = 0.25
CHUNK_BYTES = 1 << 16


class AccessLine(Record):
    """One request: its key, route, status, tokens and times.

    `id` is the gate's, and part of the `id` in the engine's answer; `client_id` is the
    `X-Request-Id` that the client sent. Tokens are known if the answer has a `usage`.
    """

    schema_version: Literal[1] = 1
    at: AwareDatetime
    id: str
    client_id: str | None
    trace_id: str | None
    key: str | None
    client: str | None
    route: str
    status: int | None
    ended: Literal["complete", "left", "failed"]
    refused: str | None
    field: str | None
    prompt_tokens: int | None
    completion_tokens: int | None
    chunks: int | None
    seconds: float
    first_seconds: float | None
    body_bytes: int
    answer_bytes: int


def read_access_line(line: bytes) -> AccessLine | None:
    """Return the record of a line, None if the line was cut off."""
    hint = "read access.jsonl in the run's folder, which slipstream status names"
    return read_line(line, AccessLine, "the access log", hint=hint)


@dataclass(slots=True)
class GrowingFile:
    """A file that may grow, be truncated or replaced, or not exist yet."""

    path: Path
    _file: BinaryIO | None = field(default=None, init=False)

    def read(self) -> bytes:
        """Return some bytes that were not read yet, none if that is all for now."""
        added = b"" if self._file is None else self._file.read(CHUNK_BYTES)
        if added or not self._is_another():
            return added
        # What was added to the old file while we looked for another is still read from it.
        if self._file is not None and (added := self._file.read(CHUNK_BYTES)):
            return added
        self.close()
        self._file = open_if_there(self.path)
        return b"" if self._file is None else self._file.read(CHUNK_BYTES)

    def read_parts(self) -> Iterator[bytes]:
        """Read the earlier parts of a rotated log, then the file itself."""
        for part in open_parts(self.path):
            self.close()
            self._file = part
            while added := part.read(CHUNK_BYTES):
                yield added

    def skip(self) -> None:
        self._file = open_if_there(self.path)
        if self._file is not None:
            self._file.seek(0, os.SEEK_END)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _is_another(self) -> bool:
        """Return whether the path holds another file than the open one."""
        try:
            there = self.path.stat()
        except OSError:
            return False
        if self._file is None:
            return True
        ours = os.fstat(self._file.fileno())
        return there.st_ino != ours.st_ino or there.st_size < self._file.tell()


def follow_file(
    path: Path,
    is_over: Callable[[], bool],
    wait: Callable[[float], None],
    *,
    only_new: bool = False,
) -> Iterator[bytes]:
    """Yield the bytes of a file and its earlier parts until `is_over`, optionally only new ones."""
    file = GrowingFile(path)
    try:
        if only_new:
            file.skip()
        else:
            yield from file.read_parts()
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
    folder: RunFolder,
    is_over: Callable[[], bool],
    wait: Callable[[float], None],
    *,
    only_new: bool = False,
) -> Iterator[Event]:
    """Yield the events of a run until it is over, optionally only new ones."""
    rest = b""
    for added in follow_file(folder.events, is_over, wait, only_new=only_new):
        *lines, rest = (rest + added).split(b"\n")
        for line in lines:
            if line and (event := folder.read_event(line)) is not None:
                yield event


def follow_accesses(
    folder: RunFolder, is_over: Callable[[], bool], wait: Callable[[float], None]
) -> Iterator[AccessLine]:
    """Yield the requests of a run until it is over, those in older files first."""
    older = [follow_file(path, lambda: True, wait) for path in folder.list_older_access_logs()]
    begun = b""
    for added in chain(*older, follow_file(folder.access_log, is_over, wait)):
        *lines, begun = (begun + added).split(b"\n")
        yield from (line for text in lines if (line := read_access_line(text)) is not None)
