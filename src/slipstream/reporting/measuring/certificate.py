"""A `Certificate` as a report and as a page: the answer first, then its evidence."""

from collections.abc import Sequence
from typing import get_args

from slipstream.measuring.verifying.certificate import Certificate, Failure, Findings, TwinCheck
from slipstream.measuring.verifying.conformance.answers import (
    CallCheck,
    CallDifference,
    ParsedAnswer,
    Verdict,
)
from slipstream.measuring.verifying.conformance.cases import REPORTS
from slipstream.measuring.verifying.sampling_check import LEVEL
from slipstream.reporting.drawing import Scale, draw, frame, shorten, write
from slipstream.reporting.html_page import Figure, render_page
from slipstream.reporting.measuring.conditions import describe_conditions, describe_plan
from slipstream.reporting.report import Report, Row, Section, Table, show

CALLS = "tool calls and structured output"
ROW = 24.0

_AGAIN = {
    True: "It happens again after the tokens below, and no shorter ones were found.",
    False: "Asked again alone, it was not reproduced. Its prompt was:",
    None: "Without the plain engine it cannot be tried again. Its prompt was:",
}


def describe_certificate(certificate: Certificate) -> Report:
    """Return the full report of a certificate, with its conditions."""
    findings, plan = certificate.findings, certificate.conditions.plan
    drafted = findings.regrets[1]
    method = plan.speculation.method.value if plan and plan.speculation else "no drafts"
    engines = {} if plan is None else {"without": plan.without_drafts(), "with": plan}
    return Report(
        title=f"{certificate.conditions.model} with {(plan and plan.drafter) or method}",
        answer=certificate.outcome,
        figure=f"{drafted.faults:,}",
        interval=f"of {drafted.tokens:,} tokens",
        figure_note="with drafts are neither the target's own choice nor tied with it",
        sentence=certificate.sentence,
        sections=[
            *_describe_failure(findings.failure),
            Section("answers, side by side", _tabulate_checks(findings)),
            Section("tokens, judged by prefill", _tabulate_regrets(findings)),
            *_describe_calls(findings.calls),
            *describe_conditions(
                certificate.conditions,
                ("concurrency", str(certificate.concurrency)),
                *_list_facts(findings),
            ),
            *(describe_plan(f"engine {word} drafts", one) for word, one in engines.items()),
        ],
    )


def _describe_failure(failure: Failure | None) -> list[Section]:
    if failure is None:
        return []
    gap = (
        "the answer ends or fails there" if failure.gap is None else f"it is {failure.gap:.2f} off"
    )
    where = f"{failure.prompt_id} ({failure.condition}), token {failure.position}: {gap}"
    ids = " ".join(map(str, failure.prompt_ids))
    return [Section("shortest prompt", lines=[f"{where}. {_AGAIN[failure.reproduced]}"], code=ids)]


def _tabulate_checks(findings: Findings) -> Table:
    header = ("check", "prompts", "equal", "ties", "faults", "worst gap", "first at token")
    rows: list[Row] = [
        (
            check.name,
            *map(str, (check.prompts, check.equal, check.ties, check.faults)),
            "none" if check.worst_gap is None else f"{check.worst_gap:.3f}",
            "none" if check.earliest is None else str(check.earliest),
        )
        for check in findings.checks
    ]
    return Table(header, rows)


def _tabulate_regrets(findings: Findings) -> Table:
    header = ("arm", "answers", "tokens", "best", "ties", "faults", "worst gap")
    rows: list[Row] = [
        (
            regret.arm,
            *map(str, (regret.answers, regret.tokens, regret.best, regret.ties, regret.faults)),
            f"{regret.worst:.3f}",
        )
        for regret in findings.regrets
    ]
    return Table(header, rows)


def _list_facts(findings: Findings) -> list[Row]:
    counts, sampling, tolerance = findings.counts, findings.sampling, findings.tolerance
    return [
        ("tolerance", f"{tolerance.gap:.3f} in log-probability: {tolerance.because}"),
        ("drafts", f"{show(counts.drafts, 0)}, tokens accepted {show(counts.accepted, 0)}"),
        ("cache hits", f"tokens of prompts found in the cache {show(counts.cache_hits, 0)}"),
        (
            "sampled",
            f"{sampling.samples} texts an arm: distance {sampling.distance:.3f} in "
            f"{sampling.cells} cells, p = {sampling.p_value:.4f}, fails below {LEVEL}; "
            f"seen with 90 %: {show(sampling.detectable, 2)}",
        ),
    ]


def _describe_calls(calls: CallCheck) -> list[Section]:
    """Return a table of what was compared, and a section with every difference."""
    sections = [Section(CALLS, Table((), _list_call_facts(calls), words=(0, 1)))]
    if calls.differences:
        lines = [line for one in calls.differences for line in _describe_difference(one)]
        sections.append(Section("calls that differ", lines=lines))
    return sections


def _list_call_facts(calls: CallCheck) -> list[Row]:
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


def render_certificate_html(certificate: Certificate) -> str:
    """Write a certificate as one page."""
    checks = Figure(
        "answers with and without drafts",
        "Answers to the same prompts, token by token: filled, equal to the end; hollow, parted "
        "where two tokens were tied; crossed, parted where they were not.",
        [_draw_checks(certificate.findings.checks)] if certificate.findings.checks else [],
        layout="wide",
    )
    return render_page(describe_certificate(certificate), [checks])


def _draw_checks(checks: Sequence[TwinCheck]) -> str:
    rows = [_draw_check(check, ROW * at) for at, check in enumerate(checks)]
    description = "; ".join(f"{check.name}: {_count(check)}" for check in checks)
    return frame(960, ROW * len(checks), "Answers with and without drafts", description, *rows)


def _draw_check(check: TwinCheck, top: float) -> str:
    x = Scale(0, check.prompts or 1, 330, 700)
    parts = [write(0, top + 16, shorten(check.name, 320)), write(712, top + 16, _count(check))]
    begin = 0
    for part, kind in ((check.equal, "equal"), (check.ties, "tie"), (check.faults, "fault")):
        left, right = x(begin), x(begin + part)
        if part:
            parts.append(
                draw("rect", x=left, y=top + 5, width=right - left - 1, height=14, kind=kind)
            )
        if part and kind == "fault":
            d = f"M{left:.1f} {top + 5:.1f}L{right - 1:.1f} {top + 19:.1f}"
            parts.append(draw("path", d=d, kind="fail"))
        begin += part
    return draw("g", *parts)


def _count(check: TwinCheck) -> str:
    return f"{check.equal} equal, {check.ties} tied, {check.faults} at fault"
