"""What follows from the findings: a certificate is only for what was really put to the test."""

from typing import Any

import pytest

from slipstream.measuring.client.engine_metrics import EngineCounts
from slipstream.measuring.verifying.certificate import (
    AnswerCheck,
    Certificate,
    Findings,
    Regret,
    Tolerance,
    conclude,
)
from slipstream.measuring.verifying.conformance.answers import (
    CallCheck,
    CallDifference,
    CallVerdict,
    ParsedAnswer,
)
from slipstream.measuring.verifying.sampling_check import SamplingCheck
from slipstream.measuring.verifying.served_check import ServedCheck
from slipstream.measuring.verifying.served_check import conclude as conclude_served

CALLS = CallCheck(
    requests=30,
    same=30,
    plain_calls=33,
    drafted_calls=33,
    cut_off=0,
    differences=(),
    plain_invalid={},
    drafted_invalid={},
    skipped={},
)
SAMPLING = SamplingCheck(
    samples=400, tokens=4, cells=11, distance=0.07, p_value=0.43, detectable=0.16
)


def regret(arm: Any, faults: int = 0) -> Regret:
    return Regret(arm=arm, answers=8, tokens=9000, best=8990, ties=10, faults=faults, worst=0.9)


def check(arm: Any, faults: int = 0) -> AnswerCheck:
    return AnswerCheck(
        left=("plain", "alone"),
        right=(arm, "batched"),
        prompts=8,
        equal=8 - faults,
        ties=0,
        faults=faults,
        worst_gap=0.9,
        earliest=3,
    )


def differ(*verdicts: CallVerdict) -> CallCheck:
    differences = tuple(
        CallDifference(
            request=f"auto {at}",
            verdict=verdict,
            because="the same tokens were parsed to something else",
            reports=("vllm#56077",),
            plain=ParsedAnswer(ending="tool_calls"),
            drafted=ParsedAnswer(ending="stop"),
        )
        for at, verdict in enumerate(verdicts)
    )
    return CALLS.model_copy(update={"same": 30 - len(verdicts), "differences": differences})


def find(**changes: Any) -> Findings:
    found: dict[str, Any] = {
        "tolerance": Tolerance(gap=0.125, dtype="bfloat16", because="three roundings"),
        "checks": (check("plain"), check("drafted")),
        "regrets": (regret("plain"), regret("drafted")),
        "sampling": SAMPLING,
        "calls": CALLS,
        "counts": EngineCounts(drafts=3100, drafted=46500, accepted=6021),
        "failure": None,
    }
    return Findings(**{**found, **changes})


def test_what_was_tested_and_held_is_certified_with_what_would_have_been_seen() -> None:
    assert conclude(find()) == (
        True,
        "Speculation does not change the text: of 9,000 tokens with drafts each is the target's "
        "own choice or tied with it. One fault in 3,000 tokens would have been seen with a "
        "probability of 95 %; of sampled text, a distance of 0.16 or more with 90 %. Of 30 "
        "requests with tools or a schema, 30 get the same answer, with 33 calls.",
    )


def test_what_is_no_fault_of_the_drafts_passes() -> None:
    passed, sentence = conclude(find(calls=differ("tie", "not repeated")))
    assert (passed, "28 get the same answer" in sentence) == (True, True)
    skipped = CALLS.model_copy(update={"requests": 0, "same": 0})
    assert conclude(find(calls=skipped))[1].endswith("with 90 %.")
    assert conclude(find(checks=(check("plain", 3), check("drafted"))))[0]


@pytest.mark.parametrize(
    ("changes", "beginning"),
    [
        ({"regrets": (regret("plain", 2), regret("drafted"))}, "Cannot tell: even without drafts"),
        (
            {"regrets": (regret("plain"), regret("drafted", 2))},
            "Speculation changes the text: 2 of",
        ),
        ({"checks": (check("drafted", 3),)}, "Speculation changes the text: answers differ"),
        (
            {"sampling": SAMPLING.model_copy(update={"p_value": 0.0001})},
            "Speculation changes the text: sampled text has another distribution (p = 0.0001",
        ),
        (
            {"sampling": SAMPLING.model_copy(update={"p_value": 0.0001, "detectable": None})},
            "Speculation changes the text: sampled text",
        ),
        (
            {"calls": differ("tie", "changed", "changed")},
            "Speculation changes the text: 2 of 30 requests with tools or a schema are answered "
            "differently (auto 1: the same tokens were parsed to something else; auto 2: ",
        ),
        ({"counts": EngineCounts(drafts=3100, accepted=0)}, "Cannot tell: no draft was accepted"),
        ({"counts": EngineCounts()}, "Cannot tell: no draft was accepted"),
        (
            {"sampling": SAMPLING.model_copy(update={"samples": 20, "detectable": None})},
            "Cannot tell whether speculation changes sampled text: 20 samples",
        ),
    ],
)
def test_nothing_else_passes(changes: dict[str, Any], beginning: str) -> None:
    passed, sentence = conclude(find(**changes))
    assert not passed
    assert sentence.startswith(beginning)
    certificate = Certificate.model_construct(passed=passed, findings=find(**changes))
    is_blind = beginning.startswith("Cannot tell")
    assert certificate.outcome == ("cannot tell" if is_blind else "failed")


@pytest.mark.parametrize(
    ("drafted", "counted", "passed", "beginning"),
    [
        (regret("drafted"), {"drafts": 9, "accepted": 5}, True, "Passed: each of 9,000 tokens"),
        (regret("drafted", 2), {"drafts": 9, "accepted": 5}, False, "2 of 9,000 tokens are not"),
        (regret("drafted"), {"drafts": 9, "accepted": 0}, False, "Cannot tell: no draft was acc"),
        (regret("drafted"), {"drafts": 0, "accepted": 0}, False, "Cannot tell: nothing was draft"),
    ],
)
def test_a_server_alone_is_judged_by_its_tokens_and_its_drafts(
    drafted: Regret, counted: dict[str, Any], passed: bool, beginning: str
) -> None:
    counts = EngineCounts(**counted)
    verdict = conclude_served(drafted, counts, drafted=True)
    assert (verdict[0], verdict[1].startswith(beginning)) == (passed, True)
    check = ServedCheck.model_construct(regret=drafted, counts=counts)
    assert check.is_undrafted == (counts.drafts == 0)
