"""A request of the access log, as one line."""

from slipstream.serving.following import AccessLine

_ENDS = {"left": "client left", "failed": "cut off"}


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
