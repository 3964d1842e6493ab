"""The records of a swap: the user's order, and what became of it."""

import secrets
from pathlib import Path
from typing import Literal

from pydantic import AwareDatetime, Field

from slipstream.records import Record


class ServedDrafter(Record):
    """A drafter of a run, with the time since when it serves."""

    name: str
    folder: Path
    since: AwareDatetime


class SwapOrder(Record):
    """An order of `slipstream swap` to a run's supervisor: a folder whose files were checked."""

    schema_version: Literal[1] = 1
    id: str = Field(default_factory=lambda: secrets.token_hex(8))
    name: str
    folder: Path


class Swap(Record):
    """The outcome of a swap, with the tokens per step before and after it."""

    schema_version: Literal[1] = 1
    order: str
    at: AwareDatetime
    outcome: Literal["swapped", "refused", "failed", "swapped-back"]
    message: str
    hint: str | None = None
    drafter: str
    # The one that drafts after it.
    serves: str
    load_seconds: float | None = None
    tokens_per_step_before: float | None = None
    tokens_per_step_after: float | None = None
