"""Lines of a ledger for tests."""

import json
from typing import Any

from slipstream.steering.ledger import LedgerLine


def describe(**changes: Any) -> dict[str, Any]:
    """Return a line as the engine's core writes it, with some fields changed."""
    return {
        "schema_version": 1,
        "at": 1789000000.25,
        "id": "4f",
        "key": "ann",
        "route": "chat",
        "kind": "code",
        "ended": "stop",
        "prompt_tokens": 300,
        "cached_tokens": 256,
        "tokens": 64,
        "steps": 30,
        "drafts": 29,
        "drafted": 203,
        "accepted": [25, 9, 2, 0, 0, 0, 0],
        "seconds": 2.31,
        "first_seconds": 0.41,
        "temperature": 0.0,
        "batch": 3.2,
        "draft_length": 6.8,
    } | changes


def write(**changes: Any) -> bytes:
    """Return a line's bytes."""
    return json.dumps(describe(**changes), separators=(",", ":")).encode() + b"\n"


def make(**changes: Any) -> LedgerLine:
    """Return a line as it is read."""
    return LedgerLine.model_validate(describe(**changes))
