"""`Canary`: what was tried on some groups, against which, and what was decided, with the evidence.

Ratios are of the canary over the other groups, relative to what that was before the trial.
"""

from typing import Literal

from pydantic import AwareDatetime

from slipstream.records import Record

Outcome = Literal["promote", "go-back", "undecided"]
Subject = Literal["drafter", "plan"]
Cause = Literal["speed", "acceptance", "regret", "own-watch", "machine", "lost", "limit"]


class ErrorRates(Record):
    """How often a decision may be false if nothing changed: at most by each way, and in all."""

    speed: float
    acceptance: float
    regret: float
    own_watch: float

    @property
    def total(self) -> float:
        """The sum: a bound, whatever depends on what."""
        return self.speed + self.acceptance + self.regret + self.own_watch


class Ratio(Record):
    """An estimate with its interval, valid at any time; an end is None where nothing is known."""

    estimate: float
    low: float | None
    high: float | None


class KindEvidence(Record):
    """The acceptance of a token after an accepted one in requests of a kind that were compared.

    `change` is by how much the canary's differs from the others', less what it did before.
    """

    kind: str
    requests: int
    canary: float
    others: float
    change: float | None
    low: float | None
    high: float | None


class RegretEvidence(Record):
    """Answers of both arms to the same prompts, judged by prefill on another group.

    An answer is at fault if one of its tokens is less likely than the best by more than `gap`.
    """

    answers: int
    tokens: int
    canary_faults: int
    other_faults: int
    canary_worst: float
    other_worst: float
    gap: float
    is_worse: bool


class Snapshot(Record):
    """The speed ratio after so many compared requests of the canary."""

    requests: int
    ratio: Ratio


class CanaryVerdict(Record):
    """What to do, why, and after how many requests; `compared` are those that had a match."""

    outcome: Outcome
    cause: Cause
    because: str
    requests: int
    compared: int
    fleet_requests: int


class Evidence(Record):
    """All that a verdict rests on; what is None could not be told."""

    requests_before: int
    requests: dict[str, int]
    mean_batch: dict[str, float]
    speed: Ratio | None
    expected_speed: Ratio | None
    step_seconds: Ratio | None
    kinds: tuple[KindEvidence, ...]
    regret: RegretEvidence | None
    path: tuple[Snapshot, ...]


class Canary(Record):
    """A trial from its beginning to what was done after it."""

    schema_version: Literal[1] = 1
    fleet: str
    subject: Subject
    name: str
    before: str | None
    groups: tuple[str, ...]
    others: tuple[str, ...]
    began_at: AwareDatetime
    decided_at: AwareDatetime
    threshold: float
    most_requests: int
    errors: ErrorRates
    evidence: Evidence
    verdict: CanaryVerdict
    done: tuple[str, ...] = ()
