"""The gate's settings, from the file that SLIPSTREAM_GATE names, and files that are followed.

Every setting must be there and no other may be: an engine with half a gate does not start. The
file holds no key.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Generic, TypeVar

from slipstream.serving.access.gate_file import GATE_VARIABLE, GateSettings

LOOK_EVERY_SECONDS = 0.25

Content = TypeVar("Content")


def read_settings(environment: Mapping[str, str]) -> GateSettings:
    """Read the named file, or keep the engine from starting."""
    path = environment.get(GATE_VARIABLE)
    if not path:
        raise RuntimeError(f"{GATE_VARIABLE} does not name the gate's settings file")
    try:
        return make_settings(Path(path).read_bytes())
    except (OSError, ValueError) as fault:
        raise RuntimeError(f"the gate cannot use its settings in {path}: {fault}") from fault


def make_settings(content: bytes) -> GateSettings:
    """Read the settings from a file's content, which must have every one of them."""
    settings = GateSettings.model_validate_json(content)
    parts = (settings, settings.limits, settings.media, settings.keys, settings.recording)
    for part in parts:
        if part and (missing := type(part).model_fields.keys() - part.model_fields_set):
            raise ValueError(f"{type(part).__name__} lacks {', '.join(sorted(missing))}")
    return settings


class WatchedFile(Generic[Content]):
    """A file that may be replaced while the engine runs, checked at most four times a second.

    `parse` gets no bytes if the file cannot be read.
    """

    def __init__(
        self, path: Path | str | None, parse: Callable[[bytes], Content], *, absent: Content
    ) -> None:
        self._path = None if path is None else Path(path)
        self._parse = parse
        self._content = self._absent = absent
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
