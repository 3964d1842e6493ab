"""A run that learns: its terms, the order of a command, and what the learning job reports.

The job itself is `slipstream.learning`, a process that the supervisor starts, pauses and ends.
"""

import re
from datetime import datetime, time
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, NonNegativeInt, PositiveInt

from slipstream.records import Record


def _require_window(text: str) -> str:
    if not re.fullmatch(r"([01]\d|2[0-3]):[0-5]\d-([01]\d|2[0-3]):[0-5]\d", text):
        raise ValueError(f"'{text}' is not a window such as 01:00-06:00")
    return text


def _require_pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as fault:
        raise ValueError(f"'{text}' is not a pattern: {fault}") from fault
    return text


Window = Annotated[str, AfterValidator(_require_window)]
Stage = Literal["collecting", "deciding", "probing", "training", "offering", "on trial"]


class LearningTerms(Record):
    """How a run learns; `folder` outlives the run, `window` is in this machine's local time."""

    folder: Path | None = None
    window: Window | None = None
    steps: PositiveInt | None = None
    redact: tuple[Annotated[str, AfterValidator(_require_pattern)], ...] = ()

    def may_work(self, now: datetime) -> bool:
        """Return whether a moment lies in the window, which may go past midnight."""
        if self.window is None:
            return True
        begin, end = (time.fromisoformat(part) for part in self.window.split("-"))
        inside = now.time() >= begin, now.time() < end
        return all(inside) if begin < end else any(inside)


class LearningOrder(Record):
    """An order to a run's supervisor: to learn on these terms, once or until the end; or no more.

    The supervisor sends it back when it has taken it.
    """

    terms: LearningTerms | None
    once: bool = False


class LearningState(Record):
    """What the job does; `works` where it computes for long and gives way to requests."""

    stage: Stage
    message: str
    works: bool = False
    # Of a job that was started for one round.
    is_over: bool = False
    # The number of the drafter that serves, and of rounds that came to an end.
    generation: NonNegativeInt = 0
    rounds: NonNegativeInt = 0
    new_tokens: NonNegativeInt = 0
    wanted_tokens: NonNegativeInt = 0

    def describe(self) -> str:
        kept = f"{self.new_tokens} of {self.wanted_tokens} new tokens"
        return f"generation {self.generation}, {self.stage}, {kept}; {self.message}"
