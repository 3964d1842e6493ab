"""The suite in the order of the engines: sent without drafts, with drafts, then compared."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from slipstream.measuring.verifying.conformance.asking import (
    Asked,
    CallRequest,
    ask_requests,
    find_refusal,
)
from slipstream.measuring.verifying.conformance.cases import CASES
from slipstream.measuring.verifying.conformance.judging import CallJudge
from slipstream.measuring.verifying.conformance.record import CallCheck
from slipstream.measuring.verifying.regret import judge_all

NO_REASONING = "the plan has no --reasoning-parser"

Report = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class PlainCalls:
    """The answers of the plain engine, and the requests that it refuses."""

    requests: Sequence[CallRequest]
    asked: Mapping[str, Asked]
    skipped: Mapping[str, str]


def ask_plain(url: str, report: Report, *, reasoning: bool) -> PlainCalls:
    """Send the requests to the plain engine; those that it refuses are named and left out."""
    skipped = _list_skipped(url, reasoning=reasoning)
    requests = [
        CallRequest(case, way) for case in CASES if case.name not in skipped for way in case.ways
    ]
    asked = ask_requests(url, requests, report)
    refused = {name: str(one.answer.failure) for name, one in asked.items() if one.refused}
    kept = [request for request in requests if request.name not in refused]
    return PlainCalls(kept, asked, skipped | refused)


def _list_skipped(url: str, *, reasoning: bool) -> dict[str, str]:
    skipped = {case.name: NO_REASONING for case in CASES if case.reasons and not reasoning}
    refusal = find_refusal(url)
    if refusal is not None:
        skipped |= {case.name: refusal for case in CASES if case.tools}
    return skipped


def compare_calls(
    url: str, plain: PlainCalls, drafted: Mapping[str, Asked], *, gap: float
) -> CallCheck:
    """Compare both arms; the engine with drafts, which still runs, judges and is asked again."""

    def ask_again(request: CallRequest) -> Asked:
        return ask_requests(url, [request], _ignore)[request.name]

    return CallJudge(
        requests=plain.requests,
        skipped=plain.skipped,
        plain=plain.asked,
        drafted=drafted,
        gap=gap,
        weigh=lambda answers: judge_all(url, answers, _ignore),
        ask_again=ask_again,
    ).check()


def _ignore(done: int, of: int) -> None:
    """Report nothing: a few requests more."""
