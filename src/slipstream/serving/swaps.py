"""Swaps of a run's drafter as records: the user's order, the gate's part in it, and the outcome."""

import secrets
from pathlib import Path
from typing import Literal

from pydantic import AwareDatetime, Field

from slipstream.records import Record


class ServedDrafter(Record):
    """A drafter of a run, from when on."""

    name: str
    folder: Path
    since: AwareDatetime


class SwapOrder(Record):
    """What `slipstream swap` asks of a run's supervisor: a folder whose files were checked."""

    schema_version: Literal[1] = 1
    id: str = Field(default_factory=lambda: secrets.token_hex(8))
    name: str
    folder: Path


class GateOrder(Record):
    """What the gate is told to load, and what is loaded now."""

    schema_version: Literal[1] = 1
    order: str = Field(default_factory=lambda: secrets.token_hex(8))
    folder: Path
    previous: Path
    is_return: bool


class GateResult(Record):
    """What the gate says became of its order; `seconds` took the call, with a step before it.

    Refused changed nothing, after failed the drafter before is loaded again, and after broken
    neither of them is whole.
    """

    schema_version: Literal[1] = 1
    order: str
    outcome: Literal["swapped", "refused", "failed", "broken"]
    seconds: float | None = None
    error: str | None = None


class Swap(Record):
    """What became of a swap, with the tokens per step of the proofs before and after it."""

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
