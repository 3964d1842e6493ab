"""Both arms' answers compared: the same, tied, or changed by speculation.

Only chat completions tell token ids. A case is therefore always asked over chat, too, and the
answer over another API is explained by a tie there if each arm said the same over both.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from slipstream.measuring.client.completions import Answer
from slipstream.measuring.client.sample import ToolCall
from slipstream.measuring.tool_calls import find_misfit
from slipstream.measuring.verifying.conformance.answers import (
    CallCheck,
    CallDifference,
    CallVerdict,
    ParsedAnswer,
)
from slipstream.measuring.verifying.conformance.asking import (
    CallReply,
    CallRequest,
    PlainCalls,
    ask_requests,
)
from slipstream.measuring.verifying.conformance.cases import Case, Way
from slipstream.measuring.verifying.regret import AnswerDifference, find_difference, score_all


@dataclass(frozen=True, slots=True)
class CallComparison:
    """Both arms' answers by the name of the request; tokens are tied up to `gap`.

    The engine with drafts, which still runs at `url`, scores answers and is asked again.
    """

    url: str
    plain: PlainCalls
    drafted: Mapping[str, CallReply]
    gap: float

    def check(self) -> CallCheck:
        requests = self.plain.requests
        found = [one for one in map(self._compare, requests) if one is not None]
        plain, drafted = (
            {one.name: replies[one.name].answer for one in requests}
            for replies in (self.plain.replies, self.drafted)
        )
        return CallCheck(
            requests=len(requests),
            same=len(requests) - len(found),
            plain_calls=sum(len(answer.calls) for answer in plain.values()),
            drafted_calls=sum(len(answer.calls) for answer in drafted.values()),
            cut_off=sum(answer.is_cut_off for answer in drafted.values()),
            differences=tuple(found),
            plain_invalid=self._list_invalid(plain),
            drafted_invalid=self._list_invalid(drafted),
            skipped=dict(self.plain.skipped),
        )

    def _list_invalid(self, answers: Mapping[str, ParsedAnswer]) -> dict[str, str]:
        cases = ((one.name, one.case) for one in self.plain.requests)
        found = ((name, find_problem(case, answers[name])) for name, case in cases)
        return {name: problem for name, problem in found if problem is not None}

    def _compare(self, request: CallRequest) -> CallDifference | None:
        plain, drafted = self.plain.replies[request.name].answer, self.drafted[request.name].answer
        wrong = find_problem(request.case, plain), find_problem(request.case, drafted)
        if plain.is_same(drafted) and (wrong[0] is None) == (wrong[1] is None):
            return None
        verdict, because = self._decide(request, plain, drafted, *wrong)
        return CallDifference(
            request=request.name,
            verdict=verdict,
            because=because,
            reports=tuple(request.case.reports),
            plain=plain,
            drafted=drafted,
        )

    def _decide(
        self,
        request: CallRequest,
        plain: ParsedAnswer,
        drafted: ParsedAnswer,
        before: str | None,
        problem: str | None,
    ) -> tuple[CallVerdict, str]:
        """Judge a difference by what is wrong without drafts and with them.

        No tie explains an invalid answer where the grammar enforces the form, nor a failed request.
        """
        if before is not None and (plain.failure or not drafted.failure):
            return "engine", f"wrong without drafts: {before}"
        if problem is not None and (drafted.failure or request.case.strict):
            return "changed", problem
        if (tie := self._find_tie(request)) is not None:
            return "tie", f"tied at token {tie.position}, {tie.gap:.3f} apart"
        if request.way.api == "chat":
            left, right = self._find_tokens(request)
            if left is not None and right is not None and left.token_ids == right.token_ids:
                return "changed", "the same tokens were parsed to something else"
            return "changed", "other tokens, where the target sees no tie"
        again = ask_requests(self.url, [request])[request.name] if problem is None else None
        if again is not None and again.answer.is_same(plain):
            return "not repeated", "when repeated, it was as without drafts"
        return "changed", problem or "when repeated, it still differed"

    def _find_tokens(self, request: CallRequest) -> tuple[Answer | None, Answer | None]:
        return self.plain.replies[request.name].tokens, self.drafted[request.name].tokens

    def _find_tie(self, request: CallRequest) -> AnswerDifference | None:
        """Return the tie that explains a difference, if one does."""
        witness = request
        if request.way.api != "chat":
            witness = CallRequest(request.case, Way("chat", True))
            if witness.name not in self.drafted or any(
                arm[request.name].answer.content != arm[witness.name].answer.content
                for arm in (self.plain.replies, self.drafted)
            ):
                return None
        left, right = self._find_tokens(witness)
        if left is None or right is None or left.token_ids == right.token_ids:
            return None
        found = find_difference(left, right, score_all(self.url, (left, right)))
        is_tie = found is not None and found.gap is not None and found.gap <= self.gap
        return found if is_tie else None


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
