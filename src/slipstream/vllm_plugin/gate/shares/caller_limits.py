"""Limits of one key: concurrent requests, rates per minute, and how fast it is refused.

A minute's amount fills up steadily. Tokens are paid for beforehand as estimated and set right
when the answer has ended: a key that took more than it had owes the rest.
"""

import asyncio
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from slipstream.vllm_plugin.gate.answers import Refusal, try_later
from slipstream.vllm_plugin.gate.answers.tokens import AnswerTokens
from slipstream.vllm_plugin.gate.callers.key_ring import Caller

BYTES_PER_TOKEN = 4
MOST_TOKENS = 1 << 31
USUAL_ANSWER_TOKENS = 256.0
_LATEST = 0.1
REFUSED_IN_A_ROW = 100
LONGEST_WAIT_SECONDS = 5.0


class _Bucket:
    """A token bucket of one minute."""

    def __init__(self, full: float, now: float) -> None:
        self.level, self._at = full, now

    def wait_for(self, amount: float, per_minute: int, now: float) -> float:
        """Return the seconds until an amount is there, or a minute's if it is more than that."""
        self.level = min(per_minute, self.level + (now - self._at) * per_minute / 60)
        self._at = now
        return max(0.0, (min(amount, per_minute) - self.level) * 60 / per_minute)


class CallerLimits:
    """Counts each key's concurrent requests and its use in the last minute."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._inside: Counter[str] = Counter()
        self._requests: dict[str, _Bucket] = {}
        self._tokens: dict[str, _Bucket] = {}
        self._usual_tokens: defaultdict[str, float] = defaultdict(lambda: USUAL_ANSWER_TOKENS)

    @contextmanager
    def enter(self, caller: Caller, retry_after_seconds: int) -> Iterator[None]:
        """Admit a request before its body is read, for the duration of the block."""
        most, per_minute = caller.terms.concurrent_requests, caller.terms.requests_per_minute
        if most is not None and self._inside[caller.id] >= most:
            what = f"{most} requests of this key are already in progress"
            raise _before_the_body(
                try_later(429, what, retry_after_seconds, reason="concurrent_requests")
            )
        if per_minute is not None and (
            wait := self._take(self._requests, caller.id, 1, per_minute)
        ):
            what = f"this key may send {per_minute} requests per minute"
            raise _before_the_body(
                try_later(429, what, math.ceil(wait), reason="requests_per_minute")
            )
        self._inside[caller.id] += 1
        try:
            yield
        finally:
            self._inside[caller.id] -= 1
            if not self._inside[caller.id]:
                del self._inside[caller.id]

    @contextmanager
    def pay(self, caller: Caller, size: int, answer: float | None) -> Iterator[AnswerTokens | None]:
        """Charge the tokens of a body and its longest answer; yield a counter of the real ones."""
        per_minute = caller.terms.tokens_per_minute
        if per_minute is None:
            yield None
            return
        prompt = size // BYTES_PER_TOKEN
        # Here it is as the client wrote it: below zero, or more than a number can be.
        bounded = self._usual_tokens[caller.id] if answer is None else max(0, answer)
        charged = prompt + min(bounded, MOST_TOKENS)
        if wait := self._take(self._tokens, caller.id, charged, per_minute):
            what = f"this key may use {per_minute} tokens per minute, and this request needs about"
            what = f"{what} {charged:.0f}"
            raise try_later(429, what, math.ceil(wait), reason="tokens_per_minute")
        used = AnswerTokens()
        try:
            yield used
        finally:
            actual = 0.0
            if used.seated:
                # Of an answer that was left before anything of it came, nobody knows the length.
                answer_tokens = used.answer if used.ended or used.answer else charged - prompt
                usual = self._usual_tokens[caller.id]
                self._usual_tokens[caller.id] = usual + _LATEST * (answer_tokens - usual)
                actual = (prompt if used.prompt is None else used.prompt) + answer_tokens
            self._tokens[caller.id].level += charged - actual

    def _take(self, buckets: dict[str, _Bucket], key: str, amount: float, most: int) -> float:
        """Take an amount, or return the seconds until it would be available."""
        now = self._clock()
        bucket = buckets.setdefault(key, _Bucket(most, now))
        wait = bucket.wait_for(amount, most, now)
        if not wait:
            bucket.level -= amount
        return wait


class RefusalPace:
    """Delays refusals, which take time from others: a hundred at once, then some per second."""

    def __init__(self, per_second: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds_each = 1 / per_second
        self._clock = clock
        self._next: dict[str, float] = {}

    def follow(self, per_second: float) -> None:
        self._seconds_each = 1 / per_second

    def place(self, caller: str) -> float:
        """Return the seconds that the next refusal of a caller has to wait."""
        now = self._clock()
        earliest = now - (REFUSED_IN_A_ROW - 1) * self._seconds_each
        due = max(self._next.get(caller, earliest), earliest)
        due = min(due, now + LONGEST_WAIT_SECONDS)
        self._next[caller] = due + self._seconds_each
        return max(due - now, 0)

    async def wait(self, caller: str) -> None:
        if seconds := self.place(caller):
            await asyncio.sleep(seconds)


def _before_the_body(refusal: Refusal) -> Refusal:
    refusal.headers += ((b"connection", b"close"),)
    return refusal
