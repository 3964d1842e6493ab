"""How many tokens an answer has: as its usage says, or else by what is streamed.

A chunk of a stream has at least one token, and with drafts several: then its text is measured.
"""

import re

CHARACTERS_A_TOKEN = 4
# A quote within a text is written with a backslash, so no text can pass for these.
_USAGE = re.compile(rb'"(prompt|input|completion|output)_tokens":\s*(\d+)')
_TEXT = re.compile(
    rb'"(?:content|text|delta|reasoning|reasoning_content|arguments|thinking|partial_json)":\s*'
    rb'"((?:[^"\\]|\\.)+)"'
)


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
        for name, number in _USAGE.findall(body):
            if name in (b"prompt", b"input"):
                self.prompt = int(number)
            else:
                self._answer = int(number)
        texts = _TEXT.findall(body)
        self._chunks += len(texts)
        self._characters += sum(map(len, texts))
