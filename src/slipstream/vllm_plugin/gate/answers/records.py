"""Files to which requests are appended: the access log, and recorded requests if they are wanted.

Lines of the access log wait in a bounded queue for a thread of their own, so a slow disk delays no
request. Those that find no room, in the queue or on the disk, are dropped and counted. Several API
processes write the same file, one by one, under a lock of its folder.

A recorded request has what was said and the sampling parameters, never a key or a header, in lines
that `slipstream train` reads; one that could not be read again is left out. Trouble ends the
recording, not the request.
"""

import errno
import fcntl
import json
import logging
import os
import queue
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from slipstream.serving.access.gate_file import GateRecording

MOST_WAITING = 4096
LINES_PER_WRITE = 256
CLOSE_SECONDS = 1.0
FILE = "requests.jsonl"
STRUCK_OUT = "[redacted]"
ROLES = {
    **{role: role for role in ("system", "user", "assistant", "tool")},
    "developer": "system",
}
TEXT_PARTS = ("text", "input_text", "output_text")
PARAMETERS = (
    *("model", "temperature", "top_p", "top_k", "min_p", "seed", "n", "stop", "stream"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "min_tokens"),
    *("max_tokens", "max_completion_tokens", "max_output_tokens"),
    *("chat_template_kwargs", "reasoning_effort"),
)

Line = dict[str, object]

_log = logging.getLogger(__name__)


class AccessLog:
    """Appends lines to a file; `drop` is called with the number of lost lines."""

    def __init__(
        self, path: Path | None, *, limit_bytes: int, older: int, drop: Callable[[int], object]
    ) -> None:
        self._path = path
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
            while len(lines) < LINES_PER_WRITE and not self._waiting.empty():
                if (line := self._waiting.get_nowait()) is None:
                    return self._write(path, lines)
                lines.append(line)
            self._write(path, lines)

    def _write(self, path: Path, lines: list[Line]) -> None:
        try:
            content = b"".join(
                json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines
            )
            with _locked(path.parent):
                self._make_room(path, len(content))
                _append_line(path, content)
            self._failed = False
        except Exception as fault:  # noqa: BLE001 later lines may be written
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
        names = (f"{path.stem}-{number}{path.suffix}" for number in range(1, self._older + 1))
        places = [path, *map(path.with_name, names)]
        for newer, older in reversed(list(pairwise(places))):
            if newer.exists():
                newer.replace(older)
        path.unlink(missing_ok=True)


class RequestRecorder:
    """Appends to one file, which only its owner can read, until it is full."""

    def __init__(self, recording: GateRecording | None) -> None:
        self._recording = recording
        self._patterns = [re.compile(one) for one in (recording.redact if recording else ())]
        self._file: int | None = None

    def record(self, document: dict[str, Any]) -> None:
        """Record a request, unless recording is off, has ended, or the file is full."""
        if self._recording is None:
            return
        try:
            lines = [self._write_line(document, messages) for messages in _read_messages(document)]
            self._append(self._recording, b"".join(lines))
        except ValueError:
            return  # Not a form that can be read again.
        except OSError as fault:
            self._stop(str(fault))

    def _write_line(self, document: dict[str, Any], messages: dict[str, Any]) -> bytes:
        kept = {name: document[name] for name in PARAMETERS if document.get(name) is not None}
        line = self._strike_out({**messages, **kept})
        line["recorded_at"] = datetime.now(UTC).isoformat(timespec="seconds")
        return json.dumps(line, ensure_ascii=False, allow_nan=False).encode() + b"\n"

    def _strike_out(self, value: Any) -> Any:
        if isinstance(value, str):
            for pattern in self._patterns:
                value = pattern.sub(STRUCK_OUT, value)
            return value
        if isinstance(value, list):
            return [self._strike_out(one) for one in value]
        if isinstance(value, dict):
            return {name: self._strike_out(one) for name, one in value.items()}
        return value

    def _append(self, recording: GateRecording, lines: bytes) -> None:
        if self._file is None:
            self._file = _open_recording(Path(recording.folder))
        if os.fstat(self._file).st_size + len(lines) > recording.limit_bytes:
            self._stop(f"{recording.limit_bytes} bytes are full")
        else:
            _append_whole(self._file, lines)

    def _stop(self, reason: str) -> None:
        _log.warning("no more requests are recorded: %s", reason)
        self._recording = None
        if self._file is not None:
            os.close(self._file)
            self._file = None


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock the folder's log against other API processes."""
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _append_line(path: Path, content: bytes) -> None:
    """Append lines; one that a crash cut off stays alone."""
    file = _open_private(path)
    try:
        size = os.fstat(file).st_size
        if size and os.pread(file, 1, size - 1) != b"\n":
            content = b"\n" + content
        _append_whole(file, content)
    finally:
        os.close(file)


def _open_private(path: Path) -> int:
    """Open a file of its owner for appending; several API processes may do so at once."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags, 0o600)


def _append_whole(file: int, content: bytes) -> None:
    """Append all of the text or nothing: half a line would spoil the file."""
    size = os.fstat(file).st_size
    if os.write(file, content) < len(content):
        os.ftruncate(file, size)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _open_recording(folder: Path) -> int:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = _open_private(folder / FILE)
    if os.fstat(file).st_mode & 0o077 or folder.stat().st_mode & 0o077:
        os.close(file)
        raise PermissionError(f"other users can read {folder}")
    return file


def _read_messages(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the messages or prompts of a request, whichever API it uses."""
    if isinstance(prompt := document.get("prompt"), str | list):
        texts = [prompt] if isinstance(prompt, str) else prompt
        yield from ({"prompt": text} for text in texts if isinstance(text, str))
        return
    content = document.get("messages", document.get("input"))
    turns = [{"role": "user", "content": content}] if isinstance(content, str) else content
    first = document.get("system") or document.get("instructions")
    before = [{"role": "system", "content": first}] if first else []
    yield {"messages": [_read_turn(turn) for turn in (*before, *_require(turns, list))]}


def _read_turn(turn: Any) -> dict[str, Any]:
    role = ROLES.get(_require(_require(turn, dict).get("role"), str))
    content = turn.get("content")
    if isinstance(content, list):
        content = [_read_part(_require(part, dict)) for part in content]
    elif content is not None:
        _require(content, str)
    called = {"tool_calls": turn["tool_calls"]} if turn.get("tool_calls") else {}
    return {"role": _require(role, str), "content": content, **called}


def _read_part(part: dict[str, Any]) -> dict[str, Any]:
    if part.get("type") in TEXT_PARTS:
        return {"type": "text", "text": _require(part.get("text"), str)}
    return {"type": _require(part.get("type"), str)}


def _require(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"not a {kind.__name__}")
    return value
