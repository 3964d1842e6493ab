"""A `Certificate` as a page with a picture, and as Markdown."""

from collections.abc import Sequence

from slipstream.measuring.certificate import Certificate, Failure, Findings, TwinCheck
from slipstream.reporting.conditions_text import THINKING, describe_machine
from slipstream.reporting.drawing import Scale, draw, frame, shorten, write
from slipstream.reporting.host_text import render_host
from slipstream.reporting.html_page import Figure, render_page
from slipstream.reporting.plan_text import render_command
from slipstream.reporting.report import Report, Row, Section, Table, render_markdown, show
from slipstream.units import UNKNOWN

ROW = 24.0
REPRODUCED = {True: "happens again", False: "was not reproduced alone", None: "was not tried again"}


def render_certificate_markdown(certificate: Certificate) -> str:
    """Write a certificate as Markdown."""
    return render_markdown(_describe(certificate))


def render_certificate_html(certificate: Certificate) -> str:
    """Write a certificate as one page."""
    checks = Figure(
        "answers with and without drafts",
        "Answers to the same prompts, token by token: filled, equal to the end; hollow, parted "
        "where two tokens were tied; crossed, parted where they were not.",
        [_draw_checks(certificate.findings.checks)] if certificate.findings.checks else [],
        layout="wide",
    )
    return render_page(_describe(certificate), [checks])


def _describe(certificate: Certificate) -> Report:
    findings, under = certificate.findings, certificate.conditions
    drafted = findings.regrets[1]
    return Report(
        title=f"{under.plan.target} with {under.plan.drafter or 'no drafter'}",
        answer="passed" if certificate.passed else "failed",
        figure=f"{drafted.faults:,}",
        interval=f"of {drafted.tokens:,} tokens",
        figure_note="with drafts are neither the target's own choice nor tied with it",
        sentence=certificate.sentence,
        sections=[
            *_describe_failure(findings.failure),
            Section("answers, side by side", _tabulate_checks(findings)),
            Section("tokens, judged by prefill", _tabulate_regrets(findings)),
            Section("conditions", Table((), _list_facts(certificate), words=(0, 1))),
            Section("the command that makes it again", code=under.command),
            Section("engine without drafts", code=render_command(list(under.plain_argv), ())),
            Section("engine with drafts", code=render_command(list(under.drafted_argv), ())),
            Section("machine", code=render_host(under.host)),
        ],
    )


def _describe_failure(failure: Failure | None) -> list[Section]:
    if failure is None:
        return []
    gap = "it just ends" if failure.gap is None else f"it is {failure.gap:.2f} off"
    told = f"{failure.prompt_id} ({failure.condition}), token {failure.position}: {gap}"
    lines = [f"{told}; it {REPRODUCED[failure.reproduced]} with these tokens"]
    return [Section("shortest prompt", lines=lines, code=" ".join(map(str, failure.prompt_ids)))]


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


def _list_facts(certificate: Certificate) -> list[Row]:
    findings, under = certificate.findings, certificate.conditions
    counts, sampling = findings.counts, findings.sampling
    return [
        ("taken", f"{under.at:%Y-%m-%d %H:%M:%S %Z}"),
        ("versions", ", ".join(map(" ".join, under.versions.items())) or UNKNOWN),
        ("machine", describe_machine(under.host)),
        ("workload", f"{under.workload}, sha256 {under.workload_sha256}"),
        *(("left out", f"{name}: {why}") for name, why in under.left_out.items()),
        ("answers", f"at most {under.max_tokens} tokens, thinking {THINKING[under.thinking]}"),
        ("batches", f"{under.concurrency} at once"),
        ("seed", str(under.seed)),
        (
            "tolerance",
            f"{findings.tolerance.gap:.3f} in log-probability: {findings.tolerance.because}",
        ),
        ("drafts", f"{show(counts.drafts, 0)}, tokens accepted {show(counts.accepted, 0)}"),
        (
            "sampled",
            f"{sampling.samples} texts an arm: distance {sampling.distance:.3f}, "
            f"p = {sampling.p_value:.4f}; seen with 90 %: {show(sampling.detectable, 2)}",
        ),
    ]


def _draw_checks(checks: Sequence[TwinCheck]) -> str:
    rows = [_draw_check(check, ROW * at) for at, check in enumerate(checks)]
    told = "; ".join(f"{check.name}: {_count(check)}" for check in checks)
    return frame(960, ROW * len(checks), "Answers with and without drafts", told, *rows)


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
