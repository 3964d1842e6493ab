"""Collects what the engine's core sends: text is struck out before any of it reaches a disk.

A process of its own, since the patterns are applied to what clients say: a pattern that takes long
for a hostile text holds up nobody else, and costs that text. A question with a match is not kept;
an answer is kept up to its first match.

    python -P -m slipstream.learning.collector FOLDER SOCKET TOKENIZER [PATTERN ...]
"""

import os
import re
import signal
import socket
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from slipstream.learning.kept_text import (
    LEAST_ANSWER_TOKENS,
    MOST_RECORD_BYTES,
    KeptAnswer,
    KeptText,
    decode,
    encode,
)
from slipstream.serving.messages import short_path

MATCH_SECONDS = 0.5

Decode = Callable[[Sequence[int]], str]


class TooSlowError(Exception):
    """A pattern took longer than it may."""


def strike_out(
    answer: KeptAnswer, patterns: Sequence[re.Pattern[str]], to_text: Decode
) -> KeptAnswer | None:
    """Return an answer up to the first match, None if nothing of it may be kept."""
    if not patterns:
        return answer
    prompt, tokens = answer.prompt.tolist(), answer.answer.tolist()
    text, begin = to_text(prompt + tokens), len(to_text(prompt))
    try:
        with _limited(MATCH_SECONDS):
            found = [match.start() for one in patterns if (match := one.search(text))]
    except TooSlowError:
        return None
    if not found:
        return answer
    if min(found) < begin:
        return None
    fits = bisect_right(
        range(len(tokens)), min(found), key=lambda count: len(to_text(prompt + tokens[:count]))
    )
    kept = answer.answer[: max(0, fits - 1)]
    if len(kept) < LEAST_ANSWER_TOKENS:
        return None
    return KeptAnswer(answer.kind, answer.at, answer.prompt, kept)


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Raise in the block after a time; a search looks for signals as it goes."""

    def stop(*_: object) -> None:
        raise TooSlowError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def load_decoder(tokenizer: Path) -> Decode:
    from tokenizers import Tokenizer

    loaded = Tokenizer.from_file(str(tokenizer))
    return lambda tokens: str(loaded.decode(list(tokens), skip_special_tokens=False))


def keep(
    record: bytes, kept: KeptText, patterns: Sequence[re.Pattern[str]], to_text: Decode
) -> None:
    """Keep one record, if it is one and the disk takes it."""
    try:
        answer = strike_out(decode(record), patterns, to_text)
    except ValueError:
        return
    if answer is None:
        return
    if patterns:
        whole = encode(answer.kind, answer.at, answer.prompt.tolist(), answer.answer.tolist())
        record = whole or b""
    if record:
        with suppress(OSError):  # A full disk costs what comes while it is full.
            kept.add(answer.kind, record)


def main(arguments: Sequence[str]) -> None:
    folder, path, tokenizer, *patterns = arguments
    compiled = [re.compile(pattern) for pattern in patterns]
    to_text = load_decoder(Path(tokenizer)) if compiled else (lambda _: "")
    kept = KeptText(Path(folder))
    place = Path(path)
    place.unlink(missing_ok=True)
    # A record at a time, whole or not at all; only this user may send one.
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiving:
        with short_path(place) as short:
            receiving.bind(short)
            os.chmod(short, 0o600)  # noqa: PTH101 the path is for the system call only
        while True:
            keep(receiving.recv(MOST_RECORD_BYTES + 1), kept, compiled, to_text)


if __name__ == "__main__":
    main(sys.argv[1:])
