"""A small file that is replaced while the engine runs, checked at most four times a second."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

LOOK_EVERY_SECONDS = 0.25

Content = TypeVar("Content")


class WatchedFile(Generic[Content]):
    """The current content of a file; `parse` gets no bytes if the file cannot be read."""

    def __init__(
        self, path: Path | str | None, parse: Callable[[bytes], Content], *, absent: Content
    ) -> None:
        self._path = None if path is None else Path(path)
        self._parse = parse
        self._absent = absent
        self._content = absent
        self._version: tuple[int, int, int] | None = None
        self._next_look = 0.0

    def read(self) -> Content:
        """Return the content, which is at most a quarter of a second old."""
        if self._path is not None and (now := time.monotonic()) >= self._next_look:
            self._next_look = now + LOOK_EVERY_SECONDS
            self._look(self._path)
        return self._content

    def _look(self, path: Path) -> None:
        try:
            status = path.stat()
            version = (status.st_mtime_ns, status.st_size, status.st_ino)
            if version != self._version:
                self._content = self._parse(path.read_bytes())
                self._version = version
        except FileNotFoundError:
            self._content, self._version = self._absent, None
        except OSError:
            self._content, self._version = self._parse(b""), None
