"""Kept text for tests: questions of a few tokens, whose answers differ."""

from pathlib import Path

from slipstream.learning.kept_text import KeptAnswer, KeptText, decode, encode
from slipstream.steering.state import Kind


def make(number: int, *, kind: Kind = "code", at: int = 100, tokens: int = 20) -> KeptAnswer:
    """Return an answer to a question of its own."""
    record = encode(kind, at, [7, 8, number], [1000 + number] * tokens)
    assert record is not None
    return decode(record)


def keep(folder: Path, answers: list[KeptAnswer]) -> None:
    text = KeptText(folder)
    for one in answers:
        record = encode(one.kind, one.at, one.prompt.tolist(), one.answer.tolist())
        assert record is not None
        text.add(one.kind, record)
    text.close()
