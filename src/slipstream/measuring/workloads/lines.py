"""JSONL files of prompts and chat logs, one document per line.

A line is a text, a prompt, a conversation, or a logged request around one (`request`, or
`body` as in OpenAI's batch files). What the target said last is not part of the question.
"""

import gzip
import zlib
from collections.abc import Sequence
from itertools import dropwhile
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple

from pydantic import ValidationError, field_validator, model_validator

from slipstream.errors import InvalidInputError
from slipstream.records import AnyRecord, Record, describe_faults

MOST_DETAILS = 20
PROMPTS_HINT = 'name files of lines like {"prompt": "..."} or {"messages": [{"role": "user", ...}]}'


class ReadLine(NamedTuple, Generic[AnyRecord]):
    """The content of a line, and its location."""

    path: Path
    number: int
    record: AnyRecord

    @property
    def place(self) -> str:
        """Return the line's location as editors write it."""
        return f"{self.path}:{self.number}"


class MessagePart(Record, extra="ignore"):
    """A piece of a message."""

    type: str
    text: str = ""


class Turn(Record, extra="ignore"):
    """One message of a conversation, in any form that the OpenAI API accepts."""

    role: Literal["system", "user", "assistant", "tool"]
    content: list[MessagePart] | None = None
    tool_calls: Any = None
    tool_call_id: Any = None
    name: Any = None

    @field_validator("role", mode="before")
    @classmethod
    def take_a_developer_as_the_system(cls, role: Any) -> Any:
        return "system" if role == "developer" else role

    @field_validator("content", mode="before")
    @classmethod
    def take_text_as_a_part(cls, content: Any) -> Any:
        return [{"type": "text", "text": content}] if isinstance(content, str) else content

    @property
    def text(self) -> str:
        """Join the parts as the engine does."""
        return "\n".join(part.text for part in self.content or ())


class Line(Record, extra="ignore"):
    """A prompt or a conversation, with the kind and group that it may state."""

    prompt: str | None = None
    messages: tuple[Turn, ...] | None = None
    kind: str | None = None
    group: str | None = None

    @model_validator(mode="before")
    @classmethod
    def open_up(cls, line: Any) -> Any:
        """Treat a bare text as a prompt, and a logged request's messages as the line's own."""
        if not isinstance(line, dict):
            return {"prompt": line} if isinstance(line, str) else line
        request = find_request(line)
        if request is not line:
            line = {"messages": request.get("messages"), **line}
        if line.get("prompt") is None and line.get("messages") is None:
            raise ValueError("neither a prompt nor messages")
        return line

    @property
    def turns(self) -> tuple[Turn, ...]:
        """Return what the target answers: all but the answers at the end."""
        if self.messages is None:
            return (Turn.model_validate({"role": "user", "content": self.prompt}),)
        left = dropwhile(lambda turn: turn.role == "assistant", reversed(self.messages))
        return tuple(left)[::-1]


def find_request(line: dict[str, Any]) -> dict[str, Any]:
    """Return the logged request within a line, or the line, which then is one itself."""
    inner = (line.get(name) for name in ("request", "body"))
    return next((one for one in inner if isinstance(one, dict)), line)


def find_obstacle(turns: Sequence[Turn]) -> str | None:
    """Return why no target can be asked this as text, if none can."""
    for turn in turns:
        empty = turn.content is None and not turn.tool_calls
        if empty or any(part.type != "text" for part in turn.content or ()):
            return "content other than text"
    if not all(turn.text.strip() or turn.tool_calls for turn in turns):
        return "empty content"
    return None if any(turn.role == "user" for turn in turns) else "no user message"


def read_lines(
    files: Sequence[Path], kind: type[AnyRecord], *, hint: str
) -> list[ReadLine[AnyRecord]]:
    """Read every line that is not blank; the faults of all files come in one error."""
    read: list[ReadLine[AnyRecord]] = []
    faults: list[str] = []
    for path in files:
        for number, line in enumerate(_read_content(path, hint).splitlines(), start=1):
            try:
                if line.strip():
                    read.append(ReadLine(path, number, kind.model_validate_json(line)))
            except ValidationError as fault:
                # The parser sees one line only, and calls it line 1.
                what = "; ".join(describe_faults(fault)).replace(" line 1 ", " ")
                faults.append(f"{path}:{number}: {what}")
    if faults:
        more = len(faults) - MOST_DETAILS
        details = (*faults[:MOST_DETAILS], *([f"... and {more} more"] if more > 0 else []))
        message = f"lines that cannot be read: {len(faults)}"
        raise InvalidInputError(message, details=details, hint=hint)
    return read


def _read_content(path: Path, hint: str) -> bytes:
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content
    except (OSError, EOFError, zlib.error) as fault:
        why = getattr(fault, "strerror", None) or fault
        raise InvalidInputError(f"cannot read {path}: {why}", hint=hint) from fault
