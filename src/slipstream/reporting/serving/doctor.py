"""`Examination`, `Diagnosis` and `BundleList` as text: checks, why an engine ended, an archive."""

from slipstream.reporting.report import align
from slipstream.serving.supervision.causes.diagnosis import Finding
from slipstream.serving.support.bundle import BundleList
from slipstream.serving.support.checks import Check, CheckVerdict
from slipstream.serving.support.examination import Diagnosis, Examination
from slipstream.steering.flight import Flight

REPORT = "slipstream doctor --bundle bug.zip"


def render_examination(examination: Examination) -> str:
    """Return every check, and how many of them are not ok."""
    rows = [row for check in examination.checks for row in _describe(check)]
    faults, warnings = (_count(examination, verdict) for verdict in ("fault", "warning"))
    return "\n".join([*align(rows), "", f"{faults}, {warnings}"])


def render_diagnosis(diagnosis: Diagnosis) -> str:
    """Return the diagnosis of a log, the first cause first, and the engine's last steps."""
    flight = [_describe_flight(diagnosis.flight)] if diagnosis.flight else []
    given_up = [diagnosis.given_up, ""] if diagnosis.given_up else []
    if not diagnosis.findings:
        lines = [*given_up, f"no known failure in {diagnosis.log}"]
        if diagnosis.last_lines:
            lines += ["its last lines:", *(f"  {line}" for line in diagnosis.last_lines)]
        is_told = diagnosis.is_unknown or diagnosis.given_up
        report = ["", f"for a report: {REPORT}, and these lines"] if is_told else []
        return "\n".join([*lines, *flight, *report])
    blocks = ["\n".join(_describe_finding(finding)) for finding in diagnosis.findings]
    return "\n\n".join([*given_up[:1], f"in {diagnosis.log}:", *blocks, *flight])


def _describe_flight(flight: Flight) -> str:
    rows = [
        (
            "steps",
            f"{flight.steps:,} in {flight.seconds:.0f} s, the last at {flight.last_at:%X} UTC",
        ),
        ("sequences", f"{flight.running} running, {flight.waiting} waiting"),
        ("draft length", str(flight.draft_length)),
        (
            "last step",
            f"{flight.prompt_tokens:,} prompt tokens, {flight.verified:,} draft tokens verified, "
            f"{flight.copied:,} of them copied",
        ),
        (
            "step",
            f"{flight.step_seconds * 1e3:.0f} ms in the last minute, "
            f"{flight.last_step_seconds * 1e3:.0f} ms the last one",
        ),
        ("cache", f"{flight.cache:.0%} full"),
        ("memory", f"{flight.memory_mib:,} MiB, {flight.memory_grown_mib:+,} in the last minute"),
    ]
    return "\n".join(["what its core did last:", *align(rows, indent="  ")])


def _describe(check: Check) -> list[tuple[str, str, str]]:
    verdict = check.verdict.ljust(len("warning"))  # Columns stay where they are without one, too.
    rows: list[tuple[str, str, str]] = [(verdict, check.subject, check.message)]
    rows += [("", "", f"- {detail}") for detail in check.details]
    return rows if check.hint is None else [*rows, ("", "", f"hint: {check.hint}")]


def _describe_finding(finding: Finding) -> list[str]:
    rows = [
        ("line", finding.line),
        ("means", finding.meaning),
        ("hint", finding.remedy),
        ("source", ", ".join(finding.sources)),
    ]
    return [f"{finding.cause} ({finding.signature})", *align(rows, indent="  ")]


def _count(examination: Examination, verdict: CheckVerdict) -> str:
    count = examination.count(verdict)
    return f"{count or 'no'} {verdict}{'' if count == 1 else 's'}"


def render_bundle(bundle: BundleList) -> str:
    """List the files of an archive with their sizes."""
    rows = [(one.name, f"{one.size_bytes:,} bytes", one.holds) for one in bundle.files]
    left_out = "left out: prompts, answers, keys, names, addresses, paths, private models"
    return "\n".join([*align(rows), "", left_out])
