"""Questions and answers of a run in tokens, by kind, in a folder of a bounded size.

Each kind has its own files, of which the oldest is dropped when there are too many, so that no kind
crowds out another. A file is a sequence of records; one that a crash cut off is the last of its
file, since every process begins a new one. vLLM's core imports this module for the form of a
record: it imports nothing that is heavy.
"""

import os
import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from slipstream.steering.state import KINDS, Kind

SOCKET = "kept.sock"
# Of a record as the core sends it: what is longer is not kept.
MOST_RECORD_BYTES = 1 << 17
FILE_BYTES = 1 << 20
FILES_PER_KIND = 8
# Shorter answers teach nothing about drafts.
LEAST_ANSWER_TOKENS = 8
_HEAD = struct.Struct("<4sBIIII")
_MARK = b"slt1"
_NAME = re.compile(r"(?P<kind>[a-z]+)-(?P<number>\d{12})\.tokens")

Tokens = NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """A prompt after the chat template, and the target's own answer to it."""

    kind: Kind
    at: int
    prompt: Tokens
    answer: Tokens


def encode(kind: Kind, at: float, prompt: Sequence[int], answer: Sequence[int]) -> bytes | None:
    """Return a record, None if it is too long or too short to be kept."""
    size = _HEAD.size + 4 * (len(prompt) + len(answer))
    if size > MOST_RECORD_BYTES or len(answer) < LEAST_ANSWER_TOKENS or not prompt:
        return None
    try:
        body = np.array([*prompt, *answer], np.uint32).tobytes()
    except OverflowError:  # Not a token.
        return None
    counts = (KINDS.index(kind), int(at), len(prompt), len(answer))
    return _HEAD.pack(_MARK, *counts, zlib.crc32(body)) + body


def decode(record: bytes) -> KeptAnswer:
    """Read one record; raises a ValueError if it is none."""
    answer, size = _read(memoryview(record), 0)
    if size != len(record):
        raise ValueError("there are bytes after the record")
    return answer


def _read(content: memoryview, start: int) -> tuple[KeptAnswer, int]:
    """Read the record at a place, and return it with the place of the next one."""
    if len(content) < start + _HEAD.size:
        raise ValueError("the record is cut off")
    mark, kind, at, prompt_length, answer_length, checksum = _HEAD.unpack_from(content, start)
    begin = start + _HEAD.size
    end = begin + 4 * (prompt_length + answer_length)
    if mark != _MARK or kind >= len(KINDS) or end - start > MOST_RECORD_BYTES:
        raise ValueError("not a record")
    body = content[begin:end]
    if len(body) < end - begin or zlib.crc32(body) != checksum:
        raise ValueError("the record is cut off")
    tokens = np.frombuffer(body, np.uint32)
    return KeptAnswer(KINDS[kind], at, tokens[:prompt_length], tokens[prompt_length:]), end


def read_kept(folder: Path) -> Iterator[KeptAnswer]:
    """Yield what is kept, the oldest of each kind first; a file's broken end is left out."""
    for path in _list_files(folder):
        try:
            content = memoryview(path.read_bytes())
        except OSError:  # Dropped meanwhile.
            continue
        place = 0
        while place < len(content):
            try:
                answer, place = _read(content, place)
            except ValueError:
                break
            yield answer


def _list_files(folder: Path) -> list[Path]:
    try:
        found = [path for path in folder.iterdir() if _NAME.fullmatch(path.name)]
    except FileNotFoundError:
        return []
    return sorted(path for path in found if path.is_file() and not path.is_symlink())


class KeptText:
    """Appends records to the files of a folder, and drops the oldest of a kind."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[str, tuple[int, int]] = {}
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.is_symlink() or folder.stat().st_mode & 0o077:
            raise PermissionError(f"other users can read {folder}")

    def add(self, kind: Kind, record: bytes) -> None:
        """Append a record; raises an OSError if the disk does not take it."""
        file, size = self._open.get(kind) or (self._begin(kind), 0)
        if size and size + len(record) > FILE_BYTES:
            os.close(file)
            file, size = self._begin(kind), 0
        self._open[kind] = (file, size + len(record))
        if os.write(file, record) < len(record):
            del self._open[kind]
            os.close(file)
            raise OSError("the disk is full")

    def close(self) -> None:
        for file, _ in self._open.values():
            os.close(file)
        self._open.clear()

    def _begin(self, kind: str) -> int:
        """Begin a file of a kind, and drop what is too much then."""
        named = ((path, _NAME.fullmatch(path.name)) for path in _list_files(self._folder))
        own = [(path, int(name["number"])) for path, name in named if name and name["kind"] == kind]
        for path, _ in own[: max(0, len(own) + 1 - FILES_PER_KIND)]:
            path.unlink(missing_ok=True)
        number = own[-1][1] + 1 if own else 0
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_APPEND
        return os.open(self._folder / f"{kind}-{number:012d}.tokens", flags, 0o600)
