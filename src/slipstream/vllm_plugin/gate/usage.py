"""The tokens of prompt and answer, as the answer of each API reports them.

A Responses stream repeats the request's tools in its first events, and Anthropic's begins with an
answer of no tokens: what such an event says of the answer does not count.
"""

import json
from typing import Any, NamedTuple

# Sent before there is a token.
BEFORE_TOKENS = (
    b"event: response.created",
    b"event: response.queued",
    b"event: response.in_progress",
    b"event: message_start",
    b"event: ping",
)
_MESSAGE_START = BEFORE_TOKENS[3]
_WITHIN_BYTES = 1 << 16
_USAGE_BYTES = 1024
# Anthropic's count of the prompt leaves out what came from the prefix cache.
_CACHED = ("cache_read_input_tokens", "cache_creation_input_tokens")
_decoder = json.JSONDecoder()


class Usage(NamedTuple):
    """Token counts, None where they are not reported."""

    prompt: int | None = None
    answer: int | None = None


def read_usage(chunk: bytes) -> Usage:
    """Find the last usage in a part of an answer.

    Within a string quotes are escaped, so what is found is a key and nothing that was said.
    """
    starts = chunk.startswith(BEFORE_TOKENS)
    if starts and not chunk.startswith(_MESSAGE_START):
        return Usage()
    start = chunk.rfind(b'"usage":', max(0, len(chunk) - _WITHIN_BYTES))
    if start < 0:
        return Usage()
    text = chunk[start + 8 :][:_USAGE_BYTES].decode("latin-1").lstrip()
    try:
        usage, _ = _decoder.raw_decode(text)
    except (ValueError, RecursionError):
        return Usage()
    if not isinstance(usage, dict):
        return Usage()
    prompt = _read_count(usage, "prompt_tokens", "input_tokens")
    if prompt is not None:
        prompt += sum(_read_count(usage, name) or 0 for name in _CACHED)
    answer = _read_count(usage, "completion_tokens", "output_tokens")
    return Usage(prompt, None if starts else answer)


def _read_count(usage: dict[str, Any], *names: str) -> int | None:
    counts = [count for name in names if isinstance(count := usage.get(name), int)]
    return counts[0] if counts else None
