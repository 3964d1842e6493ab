"""A `Certificate` as a page with a chart, and as Markdown."""

from collections.abc import Sequence

from slipstream.measuring.verifying.certificate import Certificate, TwinCheck
from slipstream.reporting.pages.drawing import Scale, draw, frame, shorten, write
from slipstream.reporting.pages.html_page import Figure, render_page
from slipstream.reporting.pages.report import render_markdown
from slipstream.reporting.text.certificate import describe_certificate

ROW = 24.0


def render_certificate_markdown(certificate: Certificate) -> str:
    """Write a certificate as Markdown."""
    return render_markdown(describe_certificate(certificate))


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
