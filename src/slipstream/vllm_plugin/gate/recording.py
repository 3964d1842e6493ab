"""Recorded requests, only on request: lines that `slipstream train` reads.

What was said and the sampling parameters, never a key or a header. A request that the
reader of such lines could not read is left out. Trouble ends the recording, not the request.
"""

import json
import logging
import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from slipstream.vllm_plugin.gate.settings import Recording

FILE = "requests.jsonl"
STRUCK_OUT = "[redacted]"
ROLES = {
    **{role: role for role in ("system", "user", "assistant", "tool")},
    "developer": "system",
}
TEXT_PARTS = ("text", "input_text", "output_text")
PARAMETERS = (
    "model",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "min_tokens",
    "stop",
    "seed",
    "n",
    "stream",
    "chat_template_kwargs",
    "reasoning_effort",
)

_log = logging.getLogger(__name__)


class Recorder:
    """Appends to one file, which only its owner can read, until it is full."""

    def __init__(self, recording: Recording | None) -> None:
        self._recording = recording
        self._patterns = [re.compile(one) for one in (recording.redact if recording else ())]
        self._file: int | None = None

    def record(self, document: dict[str, Any]) -> None:
        """Record a request, unless recording is off, has ended, or the file is full."""
        if self._recording is None:
            return
        try:
            lines = [self._write_line(document, spoken) for spoken in _read_spoken(document)]
            self._append(self._recording, b"".join(lines))
        except ValueError:
            return  # Not a form that can be read again.
        except OSError as fault:
            self._stop(str(fault))

    def _write_line(self, document: dict[str, Any], spoken: dict[str, Any]) -> bytes:
        kept = {name: document[name] for name in PARAMETERS if document.get(name) is not None}
        line = self._strike_out({**spoken, **kept})
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

    def _append(self, recording: Recording, lines: bytes) -> None:
        if self._file is None:
            self._file = _open_private(Path(recording.folder))
        size = os.fstat(self._file).st_size
        if size + len(lines) > recording.limit_bytes:
            self._stop(f"{recording.limit_bytes} bytes are full")
        elif os.write(self._file, lines) < len(lines):
            os.ftruncate(self._file, size)  # Half a line would spoil the file.
            self._stop("the disk is full")

    def _stop(self, reason: str) -> None:
        _log.warning("no more requests are recorded: %s", reason)
        self._recording = None
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _open_private(folder: Path) -> int:
    """Open the file for appending; several API processes may do so at once."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(folder / FILE, flags, 0o600)
    if os.fstat(file).st_mode & 0o077 or folder.stat().st_mode & 0o077:
        os.close(file)
        raise PermissionError(f"others can read {folder}")
    return file


def _read_spoken(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the messages or prompts of a request, whichever API it uses."""
    if isinstance(prompt := document.get("prompt"), str | list):
        texts = [prompt] if isinstance(prompt, str) else prompt
        yield from ({"prompt": text} for text in texts if isinstance(text, str))
        return
    said = document.get("messages", document.get("input"))
    turns = [{"role": "user", "content": said}] if isinstance(said, str) else said
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
