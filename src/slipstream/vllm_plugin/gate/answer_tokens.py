"""The number of tokens of an answer: by its usage, or else by what is streamed.

A chunk of a stream has at least one token, and with drafts several: then its text is measured.
"""

import re

from slipstream.vllm_plugin.gate.usage import BEFORE_TOKENS, read_usage

CHARACTERS_A_TOKEN = 4
# A quote within a text is written with a backslash, so no text can pass for these.
_TEXT = re.compile(
    rb'"(?:content|text|delta|reasoning|reasoning_content|arguments|thinking|partial_json)":\s*'
    rb'"((?:[^"\\]|\\.)+)"'
)
# Once a part is whole, a Responses stream repeats it, in several events.
_RESPONSES, _DELTA = b"event: response.", b".delta"
_EVENT_BYTES = 80


class AnswerTokens:
    """Counts the tokens of one answer as it passes."""

    def __init__(self) -> None:
        self.seated = False  # Before that, the engine has done nothing.
        self.prompt: int | None = None
        self._answer: int | None = None
        self._chunks = self._characters = 0

    @property
    def answer(self) -> int:
        """Return the tokens so far."""
        if self._answer is not None:
            return self._answer
        return max(self._chunks, self._characters // CHARACTERS_A_TOKEN)

    def see(self, body: bytes) -> None:
        """Count a part of the answer."""
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
