"""Runs as text: one in full, several as a list, their events and their requests."""

from datetime import datetime

from slipstream.reporting.tables import align
from slipstream.serving.following import AccessLine
from slipstream.serving.run import Event
from slipstream.serving.run_status import RunStatus, StatusList
from slipstream.units import UNKNOWN, show_bytes

SHOWN_DRAFTERS = 5
_MEASURED = {
    "tokens_per_second": "{:.1f} tokens/s alone",
    "tokens_per_step": "{:.2f} tokens per step",
    "ready_seconds": "ready after {:.0f} s",
}
_ENDS = {"left": "client left", "failed": "cut off"}


def render_status(status: RunStatus, now: datetime) -> str:
    """Return the status of one run."""
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
        ("processes", _describe_processes(status)),
        ("requests", _describe_requests(status)),
        ("measured", _describe_measurements(status)),
        *(("drift", drift.describe()) for drift in status.drifts),
        ("restarts", str(status.restarts)),
        ("stepped down", ", ".join(status.rungs) or "no"),
        *(("note", note) for note in status.notes),
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
    """Write an event on a line."""
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
    waiting = f", {status.waiting} wait for a seat" if status.waiting else ""
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
