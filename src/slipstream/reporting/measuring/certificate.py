"""A `Certificate` as a report and as a page, and a `Contribution`, which has one, as a report."""

from collections.abc import Callable
from typing import get_args

from slipstream.measuring.contribution import Contribution, PlannedAgainstMeasured
from slipstream.measuring.verifying.certificate import (
    AnswerCheck,
    Certificate,
    Failure,
    Findings,
    Regret,
)
from slipstream.measuring.verifying.conformance.answers import (
    CallCheck,
    CallDifference,
    CallVerdict,
    ParsedAnswer,
)
from slipstream.measuring.verifying.conformance.cases import REPORTS
from slipstream.measuring.verifying.sampling_check import LEVEL
from slipstream.reporting.drawing import Scale, draw, frame, shorten, write
from slipstream.reporting.html_page import Figure, render_page
from slipstream.reporting.measuring.conditions import describe_conditions, describe_plan
from slipstream.reporting.report import Report, Row, Section, Table, show, tabulate
from slipstream.units import UNKNOWN, show_bytes

CALLS = "tool calls and structured output"
ROW = 24.0

_AGAIN = {
    True: "It is reproduced by the tokens below; no shorter prompt was found.",
    False: "Sent again alone, it was not reproduced. Its prompt was:",
    None: "Without the plain engine it cannot be tried again. Its prompt was:",
}

_CHECKS: dict[str, Callable[[AnswerCheck], str]] = {
    "check": lambda one: one.name,
    "prompts": lambda one: str(one.prompts),
    "equal": lambda one: str(one.equal),
    "ties": lambda one: str(one.ties),
    "faults": lambda one: str(one.faults),
    "worst gap": lambda one: "none" if one.worst_gap is None else f"{one.worst_gap:.3f}",
    "first at token": lambda one: "none" if one.earliest is None else str(one.earliest),
}
_REGRETS: dict[str, Callable[[Regret], str]] = {
    "arm": lambda one: one.arm,
    "answers": lambda one: str(one.answers),
    "tokens": lambda one: str(one.tokens),
    "best": lambda one: str(one.best),
    "ties": lambda one: str(one.ties),
    "faults": lambda one: str(one.faults),
    "worst gap": lambda one: f"{one.worst:.3f}",
}


def describe_certificate(certificate: Certificate) -> Report:
    findings, plan = certificate.findings, certificate.conditions.plan
    drafted = findings.regrets[1]
    differences = [line for one in findings.calls.differences for line in _describe_difference(one)]
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
            Section("answers, side by side", tabulate(findings.checks, _CHECKS)),
            Section("tokens, scored by prefill", tabulate(findings.regrets, _REGRETS)),
            Section(CALLS, Table((), _list_call_facts(findings.calls), words=(0, 1))),
            Section("calls that differ", lines=differences),
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


def _list_call_facts(calls: CallCheck) -> list[Row]:
    verdicts = [one.verdict for one in calls.differences]
    counts = [f"{verdicts.count(one)} {one}" for one in get_args(CallVerdict)]
    by_reason: dict[str, list[str]] = {}
    for name, why in calls.skipped.items():
        by_reason.setdefault(why, []).append(name)
    return [
        ("requests", f"{calls.requests}: {calls.same} the same, {', '.join(counts)}"),
        ("calls", f"{calls.plain_calls} without drafts, {calls.drafted_calls} with drafts"),
        ("cut off", f"{calls.cut_off} answers with drafts, at their last token"),
        *_list_invalid("invalid without drafts, so caused by the engine", calls.plain_invalid),
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
    checks = certificate.findings.checks
    rows = [_draw_check(check, ROW * at) for at, check in enumerate(checks)]
    description = "; ".join(f"{check.name}: {_count(check)}" for check in checks)
    title = "Answers with and without drafts"
    figure = Figure(
        title.lower(),
        "Answers to the same prompts, token by token: filled, equal to the end; hollow, "
        "different from a tie of two tokens on; crossed, different without a tie.",
        [frame(960, ROW * len(checks), title, description, *rows)] if checks else [],
        layout="wide",
    )
    return render_page(describe_certificate(certificate), [figure])


def _draw_check(check: AnswerCheck, top: float) -> str:
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


def _count(check: AnswerCheck) -> str:
    return f"{check.equal} equal, {check.ties} tied, {check.faults} at fault"


def describe_contribution(contribution: Contribution, certificate: Certificate) -> Report:
    """Return what a recipe has beside its comparison: the same text, and where the plan erred."""

    def show_figure(one: PlannedAgainstMeasured, figure: int | None) -> str:
        if figure is None:
            return UNKNOWN
        return show_bytes(figure) if one.unit == "bytes" else f"{figure:,} tokens"

    table = tabulate(
        contribution.planned,
        {
            "": lambda one: one.what,
            "planned": lambda one: show_figure(one, one.planned),
            "measured": lambda one: show_figure(one, one.measured),
            "ratio": lambda one: show(one.ratio, 2),
        },
    )
    starts = ", ".join(f"{seconds:.0f}" for seconds in contribution.start_seconds)
    took = f"starts took {starts} s; {contribution.seconds / 60:.1f} minutes in all"
    section = Section("the plan and the engine", table, lines=[took])
    return Report(contribution.recipe.title, certificate.outcome, certificate.sentence, [section])
