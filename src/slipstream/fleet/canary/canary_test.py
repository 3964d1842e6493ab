"""`CanaryTest`: promote, go back or neither, from the ledgers of a canary and the other groups.

Three things decide, each with its own share of the false decisions that are allowed:

- speed, tokens per second of step time: above the threshold it is promoted, below it goes back. Of
  a drafter the threshold is 1: nothing is gained by one that is as good. Of a plan it is 0.9: an
  engine that is started anew differs by a few percent by itself;
- acceptance by kind: a kind that is shown to lose, and loses more than a tenth, goes back;
- regret: answers with tokens that the target would not have chosen, more of the canary's, go back.

A drafter of the same shape cannot change what a step of a batch and a draft length takes. So the
speed that a drafter would have with steps as before must show the same, or else the machine has
changed and not the drafter.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import log2
from statistics import fmean

from slipstream.fleet.canary.contrast import Contrast
from slipstream.fleet.canary.describing import (
    describe_kind,
    describe_ratio,
    tell_ratio,
    tell_regret,
)
from slipstream.fleet.canary.figures import Difference, Filter, LoadModel, Matching
from slipstream.fleet.canary.record import (
    CanaryVerdict,
    Cause,
    ErrorRates,
    Evidence,
    Outcome,
    RegretEvidence,
    Snapshot,
    Subject,
)
from slipstream.fleet.transport import escape
from slipstream.steering.ledger import LedgerLine
from slipstream.steering.swap_test import FALSE_ALARMS

ERRORS = ErrorRates(speed=0.025, acceptance=0.01, regret=0.005, own_watch=FALSE_ALARMS)
KINDS = 6
WINDOW = 2
KIND_WINDOW = 2
MOST_REQUESTS = 1000
# Times those that are compared at most.
MOST_UNMATCHED = 4
# Fewer windows before the trial could not decide anything.
LEAST_WINDOWS = 24
# To show that a plan is no slower than this takes hundreds of requests; than 5 %, thousands.
PLAN_MARGIN = 0.1
LOST_ACCEPTANCE = 0.1
# Of step time, at the same batch, draft length and context.
CHANGED_STEPS = 0.1


@dataclass(slots=True)
class _Kind:
    contrast: Contrast
    canary: list[float]
    others: list[float]


class CanaryTest:
    """Takes requests as they end, and has a verdict once there is one."""

    def __init__(
        self,
        canary: frozenset[str],
        before: Mapping[str, Iterable[LedgerLine]],
        *,
        subject: Subject,
        most_requests: int = MOST_REQUESTS,
        errors: ErrorRates = ERRORS,
    ) -> None:
        self._canary, self._subject = canary, subject
        self._most_requests, self._errors = most_requests, errors
        self._filter = Filter() if subject == "drafter" else Filter(most_cached_share=1.0)
        self._ratio = max(1, round((len(before) - len(canary)) / max(1, len(canary))))
        lines = sorted(
            (
                (line.at, group, line)
                for group, own in before.items()
                for line in own
                if self._filter.takes(line)
            ),
            key=lambda one: one[0],
        )
        self._model = LoadModel(line for _, _, line in lines)
        differences = self._match_before(lines)
        self.speed = self._open(one.speed for one in differences)
        self._expected = self._open(one.expected_speed for one in differences)
        self._steps = self._open(one.step_seconds for one in differences)
        self._kinds = self._open_kinds(differences)
        self._matching = Matching(self._ratio)
        self._requests = defaultdict[str, int](int)
        self._batches = defaultdict[str, float](float)
        self._compared = 0
        self._path: list[Snapshot] = []
        self.regret: RegretEvidence | None = None

    @property
    def threshold(self) -> float:
        """The ratio of speeds above which the canary is promoted."""
        return 1.0 if self._subject == "drafter" else 1 - PLAN_MARGIN

    @property
    def missing_windows(self) -> int:
        """How many windows of requests are missing from before the trial, 0 if it may begin."""
        known = LEAST_WINDOWS if not self._model.is_known else 0
        return max(known, LEAST_WINDOWS - self.speed.windows_left - self.speed.count)

    def add(self, group: str, line: LedgerLine) -> None:
        """Take a request that began and ended in the trial."""
        if not self._filter.takes(line) or (figures := self._model.describe(line)) is None:
            return
        self._requests[group] += 1
        self._batches[group] += line.batch or 1.0
        difference = self._matching.add(figures, is_canary=group in self._canary)
        if difference is not None:
            self._compare(difference)

    @property
    def verdict(self) -> CanaryVerdict | None:
        """What is decided by now, None if nothing is."""
        decision = self._decide()
        return None if decision is None else self.conclude(*decision)

    def conclude(self, outcome: Outcome, cause: Cause, because: str) -> CanaryVerdict:
        """Return a verdict with the requests up to now."""
        return CanaryVerdict(
            outcome=outcome,
            cause=cause,
            because=because,
            requests=self._count_canary(),
            compared=self._compared,
            fleet_requests=sum(self._requests.values()),
        )

    @property
    def progress(self) -> str:
        """How far it is, in a line."""
        ratio = f"{tell_ratio(self.speed)} times the speed"
        return f"{self._compared} requests of the canary compared: {ratio}"

    @property
    def evidence(self) -> Evidence:
        """What is known by now."""
        return Evidence(
            requests_before=self._model.requests,
            requests=dict(self._requests),
            mean_batch={
                group: total / self._requests[group] for group, total in self._batches.items()
            },
            speed=describe_ratio(self.speed),
            expected_speed=describe_ratio(self._expected),
            step_seconds=describe_ratio(self._steps),
            kinds=tuple(
                describe_kind(name, kind.contrast, kind.canary, kind.others)
                for name, kind in sorted(self._kinds.items())
                if kind.canary
            ),
            regret=self.regret,
            path=tuple(self._path),
        )

    def _match_before(self, lines: list[tuple[float, str, LedgerLine]]) -> list[Difference]:
        matching, differences = Matching(self._ratio), []
        for _, group, line in lines:
            if (figures := self._model.describe(line)) is None:
                continue
            found = matching.add(figures, is_canary=group in self._canary)
            if found is not None:
                differences.append(found)
        return differences

    def _open(self, before: Iterable[float | None]) -> Contrast:
        return Contrast(
            [value for value in before if value is not None],
            window=WINDOW,
            most_windows=max(1, self._most_requests // WINDOW),
            error=self._errors.speed,
        )

    def _open_kinds(self, differences: list[Difference]) -> dict[str, _Kind]:
        known = defaultdict[str, list[float]](list)
        for one in differences:
            if one.acceptance is not None and one.other_acceptance is not None:
                known[one.kind].append(one.acceptance - one.other_acceptance)
        windows = max(1, self._most_requests // KIND_WINDOW)
        error = self._errors.acceptance / KINDS
        return {
            kind: _Kind(
                Contrast(values, window=KIND_WINDOW, most_windows=windows, error=error), [], []
            )
            for kind, values in sorted(known.items())[:KINDS]
        }

    def _compare(self, difference: Difference) -> None:
        self._compared += 1
        if difference.expected_speed is not None and difference.step_seconds is not None:
            self._expected.add(difference.expected_speed)
            self._steps.add(difference.step_seconds)
        if self.speed.add(difference.speed) and (ratio := describe_ratio(self.speed)) is not None:
            self._path.append(Snapshot(requests=self._compared, ratio=ratio))
        kind = self._kinds.get(difference.kind)
        accepted, other = difference.acceptance, difference.other_acceptance
        if kind is not None and accepted is not None and other is not None:
            kind.contrast.add(accepted - other)
            kind.canary.append(accepted)
            kind.others.append(other)

    def _decide(self) -> tuple[Outcome, Cause, str] | None:
        if self.regret is not None and self.regret.is_worse:
            return "go-back", "regret", tell_regret(self.regret)
        if (lost := self._find_lost_kind()) is not None:
            return "go-back", "acceptance", lost
        side = self._find_side()
        if side:
            found = "faster" if side > 0 else "slower"
            because = f"it is {found}: {tell_ratio(self.speed)} times the speed"
            return ("promote" if side > 0 else "go-back"), "speed", because
        if self._subject == "drafter" and self._has_changed_steps():
            because = (
                f"a step takes {tell_ratio(self._steps)} times as long as before at the "
                "same batch, draft length and context, which is not the drafter's doing"
            )
            return "undecided", "machine", because
        if self._count_canary() >= MOST_UNMATCHED * self._most_requests:
            because = (
                f"only {self._compared} of {self._count_canary()} requests had one of the same "
                "kind and batch in the other groups"
            )
            return "undecided", "limit", because
        if self._compared >= self._most_requests or self.speed.windows_left <= 0:
            because = f"the speed is {tell_ratio(self.speed)} times that of the others"
            return "undecided", "limit", because
        return None

    def _count_canary(self) -> int:
        return sum(self._requests[group] for group in self._canary)

    def _find_side(self) -> int:
        """Return 1 if the canary is shown to be faster than the threshold, -1 if slower."""
        value = log2(self.threshold)
        side = self.speed.find_side(value)
        if self._subject == "plan":
            return side
        # With drafts of other lengths than before, nothing is known about what steps should take.
        is_known = 2 * self._expected.count >= self.speed.count
        return 0 if is_known and self._expected.find_side(value) != side else side

    def _has_changed_steps(self) -> bool:
        bound = log2(1 + CHANGED_STEPS)
        return self._steps.find_side(bound) > 0 or self._steps.find_side(-bound) < 0

    def _find_lost_kind(self) -> str | None:
        for name, kind in self._kinds.items():
            change = kind.contrast.mean
            if change is None or kind.contrast.find_side() >= 0:
                continue
            others = fmean(kind.others)
            if change < -LOST_ACCEPTANCE * others:
                shares = f"{others + change:.0%} instead of {others:.0%}"
                return f"of {escape(name)}, a token after an accepted one is accepted in {shares}"
        return None
