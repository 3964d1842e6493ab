"""Runs as text: one in full, several as a list, their events, requests, keys and ledgers."""

from datetime import datetime

from slipstream.reporting.report import align, show
from slipstream.serving.access.keys import Key, KeyList, KeyTerms
from slipstream.serving.following import AccessLine
from slipstream.serving.run import Event
from slipstream.serving.run_status import RunStatus, StatusList
from slipstream.steering.ledger import LedgerGroup, LedgerSummary
from slipstream.units import UNKNOWN, show_bytes

SHOWN_DRAFTERS = 5
SHOWN_POSITIONS = 8
_MEASURED = {
    "tokens_per_second": "{:.1f} tokens/s alone",
    "tokens_per_step": "{:.2f} tokens per step",
    "ready_seconds": "ready after {:.0f} s",
}
_ENDS = {"left": "client left", "failed": "cut off"}


def render_status(status: RunStatus, now: datetime) -> str:
    age = show_age((now - status.since).total_seconds())
    rows = [
        ("run", status.id),
        ("state", f"{status.state} for {age}, since {status.since:%Y-%m-%d %H:%M:%S} UTC"),
        ("last", status.message or "no event yet"),
        ("url", status.url or "none"),
        *([] if status.gated else [("gate", "none: every user of this machine can send requests")]),
        ("target", status.target),
        ("drafter", status.drafter or "none: plain decoding"),
        *(
            ("drafted", f"{one.name} since {one.since:%Y-%m-%d %H:%M:%S} UTC")
            for one in status.drafters[-SHOWN_DRAFTERS:]
        ),
        *([("trial", status.trial.describe())] if status.trial else []),
        *([("learning", status.learning.describe())] if status.learning else []),
        ("processes", _describe_processes(status)),
        ("requests", _describe_requests(status)),
        ("measured", _describe_measurements(status)),
        *(("drift", drift.describe()) for drift in status.drifts),
        ("restarts", str(status.restarts)),
        ("stepped down", ", ".join(status.rungs) or "no"),
        *(("note", note) for note in (*status.run_notes, *status.notes)),
        ("folder", status.folder),
    ]
    return "\n".join([*align(rows), "", f"next: {status.next_command}"])


def render_statuses(listed: StatusList, now: datetime) -> str:
    """List runs, one a line, with what to type about the first."""
    if not listed.runs:
        return f"no runs in {listed.root}\n\nnext: slipstream serve TARGET"
    rows = [
        (
            status.id,
            status.state,
            show_age((now - status.since).total_seconds()),
            status.url or "none",
            status.drafter or "none",
        )
        for status in listed.runs
    ]
    table = align([("RUN", "STATE", "FOR", "URL", "DRAFTER"), *rows])
    return "\n".join([*table, "", f"next: slipstream status {listed.runs[0].id}"])


def render_event(event: Event) -> str:
    return f"{event.at:%Y-%m-%d %H:%M:%S}  {event.state:<11}  {event.message}"


def show_age(seconds: float) -> str:
    """Write how long something has been so, in its two largest units."""
    whole = max(0, int(seconds))
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"


def _describe_processes(status: RunStatus) -> str:
    gone = " (gone)" if status.state == "supervisor gone" else ""
    supervisor = f"supervisor {status.supervisor_pid}{gone}"
    if status.engine_pid is None:
        return f"{supervisor}, no engine"
    return f"{supervisor}, engine {status.engine_pid} with {show_bytes(status.engine_bytes)}"


def _describe_requests(status: RunStatus) -> str:
    if status.in_flight is None:
        return UNKNOWN
    ago = status.last_token_seconds_ago
    last = "no token yet" if ago is None else f"the last token {ago:.1f} s ago"
    waiting = f", {status.waiting} waiting for a seat" if status.waiting else ""
    return f"{status.in_flight} in flight{waiting}, {last}"


def _describe_measurements(status: RunStatus) -> str:
    parts = [
        form.format(status.measurements[name])
        for name, form in _MEASURED.items()
        if name in status.measurements
    ]
    return ", ".join(parts) or "nothing yet"


def render_access(line: AccessLine) -> str:
    """Write a request on a line, with the id by which its client knows it at the end."""
    status = "---" if line.status is None else str(line.status)
    return "  ".join(
        (
            f"{line.at:%Y-%m-%d %H:%M:%S}",
            status,
            line.key or "-",
            line.route,
            _describe_outcome(line),
            line.client_id or line.id,
        )
    )


def _describe_outcome(line: AccessLine) -> str:
    seconds = f"{line.seconds:.2f} s"
    if line.refused is not None:
        field = f" ({line.field})" if line.field else ""
        return f"refused: {line.refused}{field}, {seconds}"
    parts = [] if line.ended == "complete" else [f"{_ENDS[line.ended]} after"]
    parts.append(seconds)
    if line.first_seconds is not None:
        parts.append(f"(first token {line.first_seconds:.2f} s)")
    return f"{' '.join(parts)}, {_describe_size(line)}"


def _describe_size(line: AccessLine) -> str:
    if line.completion_tokens is not None:
        return f"{line.prompt_tokens} + {line.completion_tokens} tokens"
    return f"{line.answer_bytes} bytes" if line.chunks is None else f"{line.chunks} chunks"


def render_keys(listed: KeyList, now: datetime) -> str:
    if not listed.keys:
        return f"no keys in {listed.file}"
    rows = [
        (
            key.id,
            f"{key.created:%Y-%m-%d}",
            describe_end(key, now),
            describe_terms(key),
            key.name,
        )
        for key in listed.keys
    ]
    return "\n".join(align([("ID", "CREATED", "EXPIRES", "LIMITS", "NAME"), *rows]))


def describe_terms(key: Key) -> str:
    """Write what a key says of its own use, in one word for a script to split."""
    given = {name: getattr(key, name) for name in KeyTerms.model_fields}
    words = [f"{name}={_show_term(value)}" for name, value in given.items() if value is not None]
    return ",".join(words) or "default"


def _show_term(value: object) -> str:
    if isinstance(value, tuple):
        return "+".join(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def describe_end(key: Key, now: datetime) -> str:
    """Return until when a key is valid, as text."""
    if key.expires is None:
        return "never"
    return f"{'' if key.is_valid(now) else 'expired '}{key.expires:%Y-%m-%d}"


def render_ledger(summary: LedgerSummary) -> str:
    """Return every group and the sum; acceptance is in percent, by position."""
    header = (
        *(summary.by.upper(), "REQUESTS", "ABORTED", "TOKENS", "SHARE", "TOKENS/STEP"),
        *("COPIED", "MS/TOKEN", "FIRST TOKEN", "CACHED", "ACCEPTED BY POSITION"),
    )
    return "\n".join(
        align([header, *(_describe_group(one) for one in (*summary.groups, summary.total))])
    )


def _describe_group(group: LedgerGroup) -> tuple[str, ...]:
    cached = group.cached_tokens / group.prompt_tokens if group.prompt_tokens else None
    seconds = group.seconds_per_token
    return (
        "".join(letter if letter.isprintable() else "?" for letter in group.name),
        str(group.requests),
        str(group.aborted),
        str(group.tokens),
        _show_share(group.token_share),
        show(group.tokens_per_step, 2),
        _show_share(group.copied_share),
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
