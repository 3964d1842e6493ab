"""A `LedgerSummary` as a table: one group per line, with the acceptance by position."""

from slipstream.reporting.report import show
from slipstream.reporting.tables import align
from slipstream.steering.ledger import LedgerGroup, LedgerSummary
from slipstream.units import UNKNOWN

SHOWN_POSITIONS = 8


def render_ledger(summary: LedgerSummary) -> str:
    """Return every group and the sum; acceptance is in percent, by position."""
    header = (
        *(summary.by.upper(), "REQUESTS", "ABORTED", "TOKENS", "SHARE", "TOKENS/STEP"),
        *("MS/TOKEN", "FIRST TOKEN", "CACHED", "ACCEPTED BY POSITION"),
    )
    return "\n".join(align([header, *(_describe(one) for one in (*summary.groups, summary.total))]))


def _describe(group: LedgerGroup) -> tuple[str, ...]:
    cached = group.cached_tokens / group.prompt_tokens if group.prompt_tokens else None
    seconds = group.seconds_per_token
    return (
        "".join(letter if letter.isprintable() else "?" for letter in group.name),
        str(group.requests),
        str(group.aborted),
        str(group.tokens),
        _show_share(group.token_share),
        f"{group.tokens_per_step or 1.0:.2f}",
        show(None if seconds is None else 1000 * seconds),
        show(group.first_seconds, 2, "s"),
        _show_share(cached),
        _show_positions(group.by_position),
    )


def _show_share(share: float | None) -> str:
    return UNKNOWN if share is None else f"{share:.0%}"


def _show_positions(acceptance: tuple[float, ...]) -> str:
    if not acceptance:
        return "no drafts"
    shown = " ".join(f"{share:.0%}" for share in acceptance[:SHOWN_POSITIONS])
    return f"{shown} ..." if len(acceptance) > SHOWN_POSITIONS else shown
