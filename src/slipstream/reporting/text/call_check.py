"""A `CallCheck` as text: tool calls with and without drafts, and their differences."""

from typing import get_args

from slipstream.measuring.verifying.conformance.answers import ParsedAnswer
from slipstream.measuring.verifying.conformance.cases import REPORTS
from slipstream.measuring.verifying.conformance.record import CallCheck, CallDifference, Verdict
from slipstream.reporting.pages.report import Row, Section, Table

TITLE = "tool calls and structured output"


def describe_calls(calls: CallCheck) -> list[Section]:
    """Return a table of what was compared, and a section with every difference."""
    sections = [Section(TITLE, Table((), _list_facts(calls), words=(0, 1)))]
    if calls.differences:
        lines = [line for one in calls.differences for line in _describe_difference(one)]
        sections.append(Section("calls that differ", lines=lines))
    return sections


def _list_facts(calls: CallCheck) -> list[Row]:
    verdicts = [one.verdict for one in calls.differences]
    counts = [f"{verdicts.count(one)} {one}" for one in get_args(Verdict)]
    by_reason: dict[str, list[str]] = {}
    for name, why in calls.skipped.items():
        by_reason.setdefault(why, []).append(name)
    return [
        ("requests", f"{calls.requests}: {calls.same} the same, {', '.join(counts)}"),
        ("calls", f"{calls.plain_calls} without drafts, {calls.drafted_calls} with drafts"),
        ("cut off", f"{calls.cut_off} answers with drafts, at their last token"),
        *_list_invalid("invalid without drafts, so the engine's", calls.plain_invalid),
        *_list_invalid("invalid with drafts", calls.drafted_invalid),
        *(("skipped", f"{', '.join(names)}: {why}") for why, names in by_reason.items()),
    ]


def _list_invalid(title: str, invalid: dict[str, str]) -> list[Row]:
    return [(title, f"{name}: {what}") for name, what in invalid.items()] or [(title, "none")]


def _describe_difference(one: CallDifference) -> list[str]:
    seen = [f"  see {name}: {REPORTS[name]}" for name in one.reports if one.verdict == "changed"]
    return [
        f"{one.verdict}: {one.request}: {one.because}",
        f"  without drafts: {_describe_answer(one.plain)}",
        f"  with drafts: {_describe_answer(one.drafted)}",
        *seen,
    ]


def _describe_answer(answer: ParsedAnswer) -> str:
    if answer.failure is not None:
        return f"failed: {answer.failure}"
    calls = [f"{call.name}({call.arguments})" for call in answer.calls]
    text = [repr(answer.text)] if answer.text else []
    reasoning = [f"reasoning {answer.reasoning!r}"] if answer.reasoning else []
    return f"{', '.join([*reasoning, *text, *calls]) or 'nothing'}, ended by {answer.ending}"
