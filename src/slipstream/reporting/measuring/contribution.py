"""A `Contribution` as a report: whether the text is the same, and where the plan was wrong."""

from slipstream.measuring.contribution import Contribution, PlannedAgainstMeasured
from slipstream.measuring.verifying.certificate import Certificate
from slipstream.reporting.report import Report, Section, Table
from slipstream.units import UNKNOWN, show_bytes


def describe_contribution(contribution: Contribution, certificate: Certificate) -> Report:
    """Return what a recipe has beside its comparison."""
    rows = [
        (
            one.what,
            _show(one, one.planned),
            _show(one, one.measured),
            UNKNOWN if one.ratio is None else f"{one.ratio:.2f}",
        )
        for one in contribution.planned
    ]
    starts = ", ".join(f"{seconds:.0f}" for seconds in contribution.start_seconds)
    took = f"starts took {starts} s; {contribution.seconds / 60:.1f} minutes in all"
    return Report(
        title=contribution.recipe.title,
        answer=certificate.outcome,
        figure="",
        interval="",
        figure_note="",
        sentence=certificate.sentence,
        sections=[
            Section(
                "the plan and the engine",
                Table(("", "planned", "measured", "ratio"), rows),
                lines=[took],
            )
        ],
    )


def _show(one: PlannedAgainstMeasured, figure: int | None) -> str:
    if figure is None:
        return UNKNOWN
    return show_bytes(figure) if one.unit == "bytes" else f"{figure:,} tokens"
