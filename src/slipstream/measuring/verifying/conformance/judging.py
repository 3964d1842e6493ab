"""Both arms' answers compared: the same, tied, or changed by speculation.

Only chat completions tell token ids. A case is therefore always asked over chat, too, and the
answer over another API is explained by a tie there if each arm said the same over both.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from slipstream.measuring.client.completions import Answer
from slipstream.measuring.client.sample import ToolCall
from slipstream.measuring.tool_calls import find_misfit
from slipstream.measuring.verifying.conformance.answers import (
    CallCheck,
    CallDifference,
    ParsedAnswer,
    Verdict,
)
from slipstream.measuring.verifying.conformance.asking import (
    Asked,
    CallRequest,
    PlainCalls,
    ask_requests,
)
from slipstream.measuring.verifying.conformance.cases import Case, Way
from slipstream.measuring.verifying.regret import Key, Profile, find_difference, judge_all

Given = Mapping[str, Asked]
"""By the name of the request."""
Weigh = Callable[[Iterable[Answer]], Mapping[Key, Profile]]
AskAgain = Callable[[CallRequest], Asked]


def compare_calls(url: str, plain: PlainCalls, drafted: Given, *, gap: float) -> CallCheck:
    """Compare both arms; the engine with drafts, which still runs, judges and is asked again."""
    return CallJudge(
        requests=plain.requests,
        skipped=plain.skipped,
        plain=plain.asked,
        drafted=drafted,
        gap=gap,
        weigh=lambda answers: judge_all(url, answers, lambda *_: None),
        ask_again=lambda request: ask_requests(url, [request], lambda *_: None)[request.name],
    ).check()


class Judgement(NamedTuple):
    """The verdict on a difference, and why."""

    verdict: Verdict
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallJudge:
    """Both arms' answers; `weigh` has the target judge tokens, which are tied up to `gap`."""

    requests: Sequence[CallRequest]
    skipped: Mapping[str, str]
    plain: Given
    drafted: Given
    gap: float
    weigh: Weigh
    ask_again: AskAgain

    def check(self) -> CallCheck:
        found = [one for one in map(self._compare, self.requests) if one is not None]
        plain, drafted = (
            {one.name: given[one.name].answer for one in self.requests}
            for given in (self.plain, self.drafted)
        )
        return CallCheck(
            requests=len(self.requests),
            same=len(self.requests) - len(found),
            plain_calls=sum(len(answer.calls) for answer in plain.values()),
            drafted_calls=sum(len(answer.calls) for answer in drafted.values()),
            cut_off=sum(answer.is_cut_off for answer in drafted.values()),
            differences=tuple(found),
            plain_invalid=self._list_invalid(plain),
            drafted_invalid=self._list_invalid(drafted),
            skipped=dict(self.skipped),
        )

    def _list_invalid(self, answers: Mapping[str, ParsedAnswer]) -> dict[str, str]:
        found = ((one.name, find_problem(one.case, answers[one.name])) for one in self.requests)
        return {name: problem for name, problem in found if problem is not None}

    def _compare(self, request: CallRequest) -> CallDifference | None:
        plain, drafted = self.plain[request.name].answer, self.drafted[request.name].answer
        wrong = find_problem(request.case, plain), find_problem(request.case, drafted)
        if plain.is_same(drafted) and (wrong[0] is None) == (wrong[1] is None):
            return None
        verdict, because = self._judge(request, *wrong)
        return CallDifference(
            request=request.name,
            verdict=verdict,
            because=because,
            reports=tuple(request.case.reports),
            plain=plain,
            drafted=drafted,
        )

    def _judge(self, request: CallRequest, before: str | None, problem: str | None) -> Judgement:
        """Judge a difference by what is wrong without drafts and with them.

        No tie explains an invalid answer where the grammar enforces the form, nor a failed request.
        """
        plain, drafted = self.plain[request.name].answer, self.drafted[request.name].answer
        if before is not None and (plain.failure or not drafted.failure):
            return Judgement("engine", f"wrong without drafts: {before}")
        if problem is not None and (drafted.failure or request.case.strict):
            return Judgement("changed", problem)
        tie = self._find_tie(request)
        if tie is not None:
            return tie
        if request.way.api == "chat":
            return Judgement("changed", self._describe_tokens(request))
        if problem is None and self.ask_again(request).answer.is_same(plain):
            return Judgement("not repeated", "repeated, it was as without drafts")
        return Judgement("changed", problem or "repeated, it was still not as without drafts")

    def _find_tie(self, request: CallRequest) -> Judgement | None:
        """Return the tie that explains a difference, if one does."""
        witness = request
        if request.way.api != "chat":
            witness = CallRequest(request.case, Way("chat", True))
            arms = (self.plain, self.drafted)
            if witness.name not in self.drafted or any(
                arm[request.name].answer.content != arm[witness.name].answer.content for arm in arms
            ):
                return None
        left, right = self.plain[witness.name].tokens, self.drafted[witness.name].tokens
        if left is None or right is None or left.token_ids == right.token_ids:
            return None
        found = find_difference(left, right, self.weigh((left, right)))
        if found is None or found.gap is None or found.gap > self.gap:
            return None
        return Judgement("tie", f"tied at token {found.position}, {found.gap:.3f} apart")

    def _describe_tokens(self, request: CallRequest) -> str:
        left, right = self.plain[request.name].tokens, self.drafted[request.name].tokens
        if left is not None and right is not None and left.token_ids == right.token_ids:
            return "the same tokens were parsed to something else"
        return "other tokens, where the target sees no tie"


def find_problem(case: Case, answer: ParsedAnswer) -> str | None:
    """Return what is wrong with an answer; one that was cut off may be in pieces."""
    if answer.failure is not None:
        return answer.failure
    if answer.is_cut_off:
        return None
    if case.schema is not None:
        return _find_text_problem(answer.text, case.schema)
    if case.choice != "auto" and not answer.calls:
        return "no call, although one is required"
    if not case.parallel and len(answer.calls) > 1:
        return f"{len(answer.calls)} calls, although they may not be parallel"
    ids = [call.id for call in answer.calls]
    if "" in ids or len(set(ids)) < len(ids):
        return f"calls without an id of their own: {ids}"
    return next((one for one in (_find_misuse(case, call) for call in answer.calls) if one), None)


def _find_text_problem(text: str, schema: dict[str, object]) -> str | None:
    try:
        return find_misfit(json.loads(text), schema)
    except ValueError:
        return f"the text is not JSON: {text!r}"


def _find_misuse(case: Case, call: ToolCall) -> str | None:
    tool = next((tool for tool in case.tools if tool.name == call.name), None)
    if tool is None or (case.choice not in ("auto", "required") and call.name != case.choice):
        return f"a call of {call.name!r}, which was not requested"
    try:
        return find_misfit(json.loads(call.arguments), tool.schema)
    except ValueError:
        return f"arguments of {call.name} are not JSON: {call.arguments!r}"
