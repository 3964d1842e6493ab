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
    """An order of `slipstream swap` to a run's supervisor: a folder whose files were checked.

    With `trial_seconds` the drafter is on trial for at most so long.
    """

    schema_version: Literal[1] = 1
    id: str = Field(default_factory=lambda: secrets.token_hex(8))
    name: str
    folder: Path
    trial_seconds: float | None = None


# Of a trial that was broken off, which says nothing of its drafter.
ENDED_DURING_TRIAL = "ended during the trial"


class SwapTrial(Record):
    """A drafter that stays only if requests show in time that it is as good as the one before.

    It is written down before the drafter is loaded. Failed is a trial whose drafter is in use
    although it did not pass.
    """

    order: str
    drafter: str
    folder: Path
    before: ServedDrafter
    began_at: AwareDatetime
    until: AwareDatetime
    state: Literal["running", "passed", "rolled back", "failed"] = "running"
    message: str = ""

    def describe(self) -> str:
        until = f", until {self.until:%Y-%m-%d %H:%M} UTC" if self.state == "running" else ""
        return f"{self.drafter}: {self.state}{until}" + (f"; {self.message}" * bool(self.message))


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
