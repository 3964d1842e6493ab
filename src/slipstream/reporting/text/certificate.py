"""A `Certificate` as text: the answer first, then its evidence."""

from collections import Counter

from slipstream.measuring.verifying.certificate import Certificate, Failure, Findings
from slipstream.measuring.verifying.sampling_check import LEVEL
from slipstream.planning.plan import LaunchPlan
from slipstream.reporting.pages.report import Report, Row, Section, Table, render_text, show
from slipstream.reporting.text.call_check import describe_calls
from slipstream.reporting.text.conditions import THINKING, describe_machine
from slipstream.reporting.text.host import render_host
from slipstream.reporting.text.plan import render_command
from slipstream.units import UNKNOWN

_AGAIN = {
    True: "It happens again after the tokens below, and no shorter ones were found.",
    False: "Asked again alone, it was not reproduced. Its prompt was:",
    None: "Without the plain engine it cannot be tried again. Its prompt was:",
}


def render_certificate_text(certificate: Certificate) -> str:
    """Return a certificate as text."""
    return f"{certificate.outcome.upper()}: {render_text(describe_certificate(certificate))}"


def _name_method(plan: LaunchPlan) -> str:
    return plan.speculation.method.value if plan.speculation else "no drafts"


def describe_certificate(certificate: Certificate) -> Report:
    """Return the full report of a certificate, with its conditions."""
    findings, under = certificate.findings, certificate.conditions
    drafted = findings.regrets[1]
    environment = under.plan.variables
    return Report(
        title=f"{under.plan.target} with {under.plan.drafter or _name_method(under.plan)}",
        answer=certificate.outcome,
        figure=f"{drafted.faults:,}",
        interval=f"of {drafted.tokens:,} tokens",
        figure_note="with drafts are neither the target's own choice nor tied with it",
        sentence=certificate.sentence,
        sections=[
            *_describe_failure(findings.failure),
            Section("answers, side by side", _tabulate_checks(findings)),
            Section("tokens, judged by prefill", _tabulate_regrets(findings)),
            *describe_calls(findings.calls),
            Section("conditions", Table((), _list_facts(certificate), words=(0, 1))),
            Section("the command that makes it again", code=under.command),
            Section(
                "engine without drafts",
                code=render_command(list(under.plain_argv), environment),
                in_full=True,
            ),
            Section(
                "engine with drafts",
                code=render_command(list(under.drafted_argv), environment),
                in_full=True,
            ),
            Section("machine", code=render_host(under.host), in_full=True),
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


def _list_facts(certificate: Certificate) -> list[Row]:
    findings, under = certificate.findings, certificate.conditions
    counts, sampling, tolerance = findings.counts, findings.sampling, findings.tolerance
    left_out = Counter(under.left_out.values())
    return [
        ("taken", f"{under.at:%Y-%m-%d %H:%M:%S %Z}"),
        ("versions", ", ".join(map(" ".join, under.versions.items())) or UNKNOWN),
        ("machine", describe_machine(under.host)),
        ("workload", f"{under.workload}, sha256 {under.workload_sha256}"),
        *(("left out", f"{many}: {why}") for why, many in left_out.items()),
        ("answers", f"at most {under.max_tokens} tokens, thinking {THINKING[under.thinking]}"),
        ("concurrency", str(under.concurrency)),
        ("seed", str(under.seed)),
        ("tolerance", f"{tolerance.gap:.3f} in log-probability: {tolerance.because}"),
        ("drafts", f"{show(counts.drafts, 0)}, tokens accepted {show(counts.accepted, 0)}"),
        ("prefix cache", f"tokens of prompts found in it {show(counts.cache_hits, 0)}"),
        (
            "sampled",
            f"{sampling.samples} texts an arm: distance {sampling.distance:.3f} in "
            f"{sampling.cells} cells, p = {sampling.p_value:.4f}, fails below {LEVEL}; "
            f"seen with 90 %: {show(sampling.detectable, 2)}",
        ),
    ]
