"""A trial as it goes: the requests before it, those of both arms, and its end.

What is tried is the caller's: a drafter that is swapped in, or a plan that a group is restarted
with. `prepare` comes before that, `begin` and `watch` come after it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

from slipstream.errors import InvalidInputError, UnreachableError
from slipstream.fleet.canary.answers import AnswerSample, compare_answers
from slipstream.fleet.canary.canary_test import (
    ERRORS,
    LEAST_WINDOWS,
    MOST_REQUESTS,
    WINDOW,
    CanaryTest,
)
from slipstream.fleet.canary.figures import LEAST_TOKENS
from slipstream.fleet.canary.ledgers import GroupLedger
from slipstream.fleet.canary.record import Canary, CanaryVerdict, Subject
from slipstream.fleet.transport import escape

LOOK_EVERY_SECONDS = 5.0
REPORT_EVERY_SECONDS = 60.0
WITHIN_SECONDS = 6 * 3600.0

ReadLedger = Callable[[str, float], GroupLedger]
"""Reads a group's ledger: the requests that ended after a moment of its machine's clock."""


@dataclass(slots=True)
class _Followed:
    """A group's ledger as far as it was read; `began` is when the trial began by its clock."""

    run: str
    began: float
    seen: float
    is_silent: bool = False


@dataclass(slots=True)
class CanaryTrial:
    """Some groups against the others; `clock` counts seconds, `sleep` waits for some."""

    fleet: str
    subject: Subject
    canary: Sequence[str]
    others: Sequence[str]
    read: ReadLedger
    clock: Callable[[], float]
    sleep: Callable[[float], None]
    say: Callable[[str], None]
    most_requests: int = MOST_REQUESTS
    within_seconds: float = WITHIN_SECONDS
    drafter_before: str | None = None
    _test: CanaryTest | None = None
    _began_at: datetime | None = None
    _followed: dict[str, _Followed] = field(default_factory=dict)
    _dtype: str | None = None

    def prepare(self) -> None:
        """Read the requests before the trial, and wait until they are enough."""
        if not self.canary or not self.others:
            raise InvalidInputError(
                f"a canary needs a group beside it that goes on as before, and {self.fleet} has "
                f"{len(self.canary) + len(self.others)} that draft",
                hint="leave --canary out",
            )
        deadline, told = self.clock() + self.within_seconds, self.clock() - REPORT_EVERY_SECONDS
        while missing := self._read_before():
            if self.clock() > deadline:
                raise InvalidInputError(
                    f"too few requests came to compare with: at least {LEAST_WINDOWS * WINDOW} of "
                    f"the canary's group with {LEAST_TOKENS} tokens or more are needed",
                    hint="slipstream fleet status",
                )
            if self.clock() - told >= REPORT_EVERY_SECONDS:
                told = self.clock()
                self.say(f"about {WINDOW * missing} more requests are needed before the trial")
            self.sleep(LOOK_EVERY_SECONDS)

    def begin(self) -> None:
        """Note where every ledger stands, now that the canary serves what is new."""
        self._began_at = datetime.now(UTC)
        for group in (*self.canary, *self.others):
            ledger = self.read(group, float("inf"))
            self._followed[group] = _Followed(ledger.run, ledger.now, ledger.now)

    def judge_answers(self, canary: AnswerSample, others: AnswerSample) -> None:
        """Take a sample of answers of both arms."""
        dtype = self._dtype or "bfloat16"
        self._get_test().regret = compare_answers(canary, others, dtype=dtype, error=ERRORS.regret)

    def watch(self) -> CanaryVerdict:
        """Read the ledgers until there is a verdict."""
        test = self._get_test()
        told = began = self.clock()
        while True:
            verdict = self._look(test) or test.verdict
            if verdict is None and self.clock() - began > self.within_seconds:
                hours = self.within_seconds / 3600
                verdict = test.conclude("undecided", "limit", f"{hours:g} hours are over")
            if verdict is not None:
                return verdict
            if self.clock() - told >= REPORT_EVERY_SECONDS:
                told = self.clock()
                self.say(test.progress)
            self.sleep(LOOK_EVERY_SECONDS)

    def describe(self, verdict: CanaryVerdict, *, name: str, done: Sequence[str]) -> Canary:
        """Return the record of the trial."""
        test, now = self._get_test(), datetime.now(UTC)
        return Canary(
            fleet=self.fleet,
            subject=self.subject,
            name=name,
            before=self.drafter_before,
            groups=tuple(self.canary),
            others=tuple(self.others),
            began_at=self._began_at or now,
            decided_at=now,
            threshold=test.threshold,
            most_requests=self.most_requests,
            errors=ERRORS,
            evidence=test.evidence,
            verdict=verdict,
            done=tuple(done),
        )

    def _read_before(self) -> int:
        """Read all ledgers, and return how many windows of requests are missing."""
        ledgers = {group: self.read(group, 0.0) for group in (*self.canary, *self.others)}
        dtypes = {ledger.dtype for ledger in ledgers.values()}
        self._dtype = dtypes.pop() if len(dtypes) == 1 else None
        self.drafter_before = ledgers[self.canary[0]].drafter
        lines = {group: ledger.lines for group, ledger in ledgers.items()}
        self._test = CanaryTest(
            frozenset(self.canary), lines, subject=self.subject, most_requests=self.most_requests
        )
        return self._test.missing_windows

    def _look(self, test: CanaryTest) -> CanaryVerdict | None:
        """Take in what came since the last look; return a verdict if the canary is no more."""
        found = []
        for group, followed in self._followed.items():
            try:
                ledger = self.read(group, followed.seen)
            except UnreachableError as fault:
                if not followed.is_silent:
                    self.say(fault.message)
                followed.is_silent = True
                continue
            followed.is_silent = False
            if group in self.canary and (end := _find_end(ledger, followed.run)) is not None:
                cause, because = end
                return test.conclude("go-back", cause, f"{group}: {because}")
            for line in ledger.lines:
                followed.seen = max(followed.seen, line.at)
                if line.at - line.seconds >= followed.began:
                    found.append((line.at, group, line))
        for _, group, line in sorted(found, key=lambda one: one[:2]):
            test.add(group, line)
        return None

    def _get_test(self) -> CanaryTest:
        if self._test is None:
            raise RuntimeError("a trial is prepared before it begins")
        return self._test


def _find_end(ledger: GroupLedger, run: str) -> tuple[Literal["own-watch", "lost"], str] | None:
    """Say why a canary no longer serves what is tried, None if it does."""
    if ledger.run != run or ledger.state in ("draining", "stopping", "stopped", "failed"):
        return "lost", "its run ended during the trial"
    if ledger.last_swap is not None and ledger.last_swap.outcome == "swapped-back":
        return "own-watch", escape(ledger.last_swap.message)
    return None
