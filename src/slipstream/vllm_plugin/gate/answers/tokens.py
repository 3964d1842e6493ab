"""The tokens of prompt and answer, by the usage that each API reports, or else by what is streamed.

A Responses stream repeats the request's tools in its first events, and Anthropic's begins with an
answer of no tokens: what such an event says of the answer does not count. A chunk of a stream has
at least one token, and with drafts several: then its text is measured.
"""

import json
import re
from typing import Any, NamedTuple

# Sent before there is a token.
_MESSAGE_START = b"event: message_start"
BEFORE_TOKENS = (
    *(b"event: response.created", b"event: response.queued", b"event: response.in_progress"),
    *(_MESSAGE_START, b"event: ping"),
)
_WITHIN_BYTES = 1 << 16
_USAGE_BYTES = 1024
# Anthropic's count of the prompt leaves out what came from the prefix cache.
_CACHED = ("cache_read_input_tokens", "cache_creation_input_tokens")
_decoder = json.JSONDecoder()
CHARACTERS_PER_TOKEN = 4
# A quote within a text is written with a backslash, so no text can pass for these.
_TEXT = re.compile(
    rb'"(?:content|text|delta|reasoning|reasoning_content|arguments|thinking|partial_json)":\s*'
    rb'"((?:[^"\\]|\\.)+)"'
)
# Once a part is whole, a Responses stream repeats it, in several events.
_RESPONSES, _DELTA = b"event: response.", b".delta"
_EVENT_BYTES = 80


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


class AnswerTokens:
    """Counts the tokens of one answer as it passes."""

    def __init__(self) -> None:
        self.seated = False  # Before that, the engine has done nothing.
        self.ended = False
        self.prompt: int | None = None
        self._answer: int | None = None
        self._chunks = self._characters = 0

    @property
    def answer(self) -> int:
        if self._answer is not None:
            return self._answer
        return max(self._chunks, self._characters // CHARACTERS_PER_TOKEN)

    def see(self, body: bytes) -> None:
        usage = read_usage(body)
        self.prompt = self.prompt if usage.prompt is None else usage.prompt
        self._answer = self._answer if usage.answer is None else usage.answer
        if body.startswith(BEFORE_TOKENS) or _repeats(body):
            return
        texts = _TEXT.findall(body)
        self._chunks += len(texts)
        self._characters += sum(map(len, texts))


def _repeats(body: bytes) -> bool:
    head = body[:_EVENT_BYTES].partition(b"\n")[0]
    return head.startswith(_RESPONSES) and not head.endswith(_DELTA)
