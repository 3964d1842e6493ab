"""`Certificate`: whether speculation changes the text, with all of its evidence.

`docs/verifying.md` tells what each check sees and what it cannot see.
"""

from typing import Literal

from slipstream.measuring.bench import Conditions
from slipstream.measuring.client.engine_metrics import EngineCounts
from slipstream.measuring.verifying.conformance.answers import CallCheck
from slipstream.measuring.verifying.sampling_check import SamplingCheck
from slipstream.records import Record

ArmName = Literal["plain", "drafted"]
Condition = Literal["alone", "long", "cached", "batched", "constrained", "lengths"]
Side = tuple[ArmName, Condition]

SHOWN_CALLS = 3


class Tolerance(Record):
    """The largest gap in log-probability at which two tokens are tied, and why."""

    gap: float
    dtype: str
    because: str


class AnswerCheck(Record):
    """Answers of two sides to the same prompts, compared with each other token by token.

    Where two part for the first time it is a tie, or beyond the tolerance a fault. `earliest`
    counts tokens from 0.
    """

    left: Side
    right: Side
    prompts: int
    equal: int
    ties: int
    faults: int
    worst_gap: float | None
    earliest: int | None

    @property
    def name(self) -> str:
        (arm, condition), (other, against) = self.right, self.left
        return f"{arm} {condition} against {other} {against}"


class Regret(Record):
    """How much less likely an arm's greedy tokens are than the target's best ones."""

    arm: ArmName
    answers: int
    tokens: int
    best: int
    ties: int
    faults: int
    worst: float


class Failure(Record):
    """The shortest prompt with a token that is no tie, and a shortened one that repeats it.

    `gap` is None where the answer ends or fails. `reproduced` is None where it was not tried: under
    a grammar only the plain arm can tell.
    """

    condition: Condition
    prompt_id: str
    position: int
    gap: float | None
    max_tokens: int
    reproduced: bool | None
    prompt_ids: tuple[int, ...]


class Findings(Record):
    """The results of every check; `counts` are those of the drafted engine."""

    tolerance: Tolerance
    checks: tuple[AnswerCheck, ...]
    regrets: tuple[Regret, Regret]
    sampling: SamplingCheck
    calls: CallCheck
    counts: EngineCounts
    failure: Failure | None


class Certificate(Record):
    """The findings with their conditions and conclusion.

    The conditions have the plan with drafts; the other engine differs in nothing else.
    """

    schema_version: Literal[3] = 3
    passed: bool
    sentence: str
    findings: Findings
    conditions: Conditions
    concurrency: int

    @classmethod
    def make(cls, findings: Findings, conditions: Conditions, concurrency: int) -> "Certificate":
        passed, sentence = conclude(findings)
        return cls(
            passed=passed,
            sentence=sentence,
            findings=findings,
            conditions=conditions,
            concurrency=concurrency,
        )

    @property
    def outcome(self) -> Literal["passed", "failed", "cannot tell"]:
        """Return the conclusion in a word; only a text that was seen to change is a failure."""
        if self.passed:
            return "passed"
        is_witness = not self.findings.regrets[0].faults
        return "failed" if is_witness and _list_changes(self.findings) else "cannot tell"


def conclude(findings: Findings) -> tuple[bool, str]:
    plain, drafted = findings.regrets
    if plain.faults:
        return False, (
            f"Cannot tell: even without drafts, {plain.faults:,} of {plain.tokens:,} tokens are "
            f"less likely than the engine's own best by prefill, up to {plain.worst:.2f}."
        )
    if changes := _list_changes(findings):
        return False, f"Speculation changes the text: {'; '.join(changes)}."
    if not findings.counts.accepted:
        return False, "Cannot tell: no draft was accepted, so nothing was tested."
    greedy = (
        f"of {drafted.tokens:,} tokens with drafts each is the target's own choice or tied with "
        f"it. One fault in {drafted.tokens // 3:,} tokens would have been seen with a probability "
        "of 95 %"
    )
    seen = findings.sampling.detectable
    if seen is None:
        return False, (
            "Cannot tell whether speculation changes sampled text: "
            f"{findings.sampling.samples:,} samples would not have shown any distance with a "
            f"probability of 90 %. Greedy text does not change: {greedy}."
        )
    return True, (
        f"Speculation does not change the text: {greedy}; of sampled text, a distance of "
        f"{seen:.2f} or more with 90 %.{_describe_calls(findings.calls)}"
    )


def _describe_calls(calls: CallCheck) -> str:
    if not calls.requests:
        return ""
    tied = len(calls.differences)
    return (
        f" Of {calls.requests} requests with tools or a schema, {calls.same} get the same "
        f"answer, with {calls.drafted_calls} calls"
        + (f"; the other {tied} do not differ because of speculation." if tied else ".")
    )


def _list_changes(findings: Findings) -> list[str]:
    drafted, gap = findings.regrets[1], findings.tolerance.gap
    changes = []
    if drafted.faults:
        changes.append(
            f"{drafted.faults:,} of {drafted.tokens:,} tokens are less likely than the target's "
            f"own by more than {gap:.2f}, up to {drafted.worst:.2f}"
        )
    parted = [check for check in findings.checks if check.right[0] == "drafted" and check.faults]
    if parted:
        checks = ", ".join(f"{check.name} {check.faults} of {check.prompts}" for check in parted)
        changes.append(f"answers differ where the target sees no tie ({checks})")
    if changed := findings.calls.changed:
        differences = "; ".join(f"{one.request}: {one.because}" for one in changed[:SHOWN_CALLS])
        more = "; ..." if len(changed) > SHOWN_CALLS else ""
        changes.append(
            f"{len(changed)} of {findings.calls.requests} requests with tools or a schema are "
            f"answered differently ({differences}{more})"
        )
    if not findings.sampling.passed:
        changes.append(
            f"sampled text has another distribution (p = {findings.sampling.p_value:.4f}, "
            f"distance {findings.sampling.distance:.2f})"
        )
    return changes
