"""The gate's access log: one line per request of a run."""

from typing import Literal

from pydantic import AwareDatetime, ValidationError

from slipstream.errors import InvalidInputError
from slipstream.records import Record, describe_faults


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
    try:
        return AccessLine.model_validate_json(line)
    except ValidationError as fault:
        if fault.errors()[0]["type"] == "json_invalid":
            return None
        message = "the access log has a line that this version does not read"
        hint = "read access.jsonl in the run's folder, which slipstream status names"
        raise InvalidInputError(message, details=describe_faults(fault), hint=hint) from fault
