"""A `Contribution` as text: the verdicts, and where the plan was wrong."""

from slipstream.measuring.comparing.comparison import Comparison
from slipstream.measuring.contribution import Contribution, PlannedAgainstMeasured
from slipstream.measuring.verifying.certificate import Certificate
from slipstream.reporting.text.tables import align
from slipstream.units import show_bytes


def render_contribution(
    contribution: Contribution, comparison: Comparison, certificate: Certificate
) -> str:
    """Show what was found and what of the plan was wrong."""
    rows = [("", "PLANNED", "MEASURED", "RATIO")]
    rows += [
        (
            one.what,
            _show(one, one.planned),
            _show(one, one.measured),
            "unknown" if one.ratio is None else f"{one.ratio:.2f}",
        )
        for one in contribution.planned
    ]
    starts = ", ".join(f"{seconds:.0f}" for seconds in contribution.start_seconds)
    return "\n".join(
        [
            comparison.verdict.sentence,
            certificate.sentence,
            *(f"caution: {one.message}" for one in comparison.verdict.cautions),
            "",
            *align(rows),
            "",
            f"starts took {starts} s; {contribution.seconds / 60:.1f} minutes in all",
        ]
    )


def _show(one: PlannedAgainstMeasured, figure: int | None) -> str:
    if figure is None:
        return "unknown"
    return show_bytes(figure) if one.unit == "bytes" else f"{figure:,} tokens"
