"""The API server's own time, which all keys share: its event loop and its tokenizer.

A key whose body took long to check pauses before its next one. The tokenizer reads one text after
the other, so a key has a bounded amount of text on the way to it; a longer text goes alone.
"""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

COSTLY_SECONDS = 0.02
# vLLM takes about twice as long as the gate for the same body.
PAUSE_TIMES = 8
TOKENIZING_BYTES = 2**18

# What a request calls once it is tokenized.
TOKENIZED: ContextVar[Callable[[], None] | None] = ContextVar("tokenized", default=None)


class ServerTime:
    """Bounds what one key takes of the event loop and of the tokenizer."""

    def __init__(self, *, clock: Callable[[], float] = time.thread_time) -> None:
        self._clock = clock
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._free_at: dict[str, float] = {}
        self._bytes: Counter[str] = Counter()
        self._freed: dict[str, asyncio.Event] = {}

    @asynccontextmanager
    async def check_body(self, caller: str) -> AsyncIterator[None]:
        """Wait for the key's turn to have a body checked, and measure how long that takes."""
        loop = asyncio.get_running_loop()
        async with self._turns[caller]:
            if (pause := self._free_at.pop(caller, 0.0) - loop.time()) > 0:
                await asyncio.sleep(pause)
            began = self._clock()
            try:
                yield
            finally:  # A body that is refused took its time, too.
                took = self._clock() - began
                if took > COSTLY_SECONDS:
                    self._free_at[caller] = loop.time() + PAUSE_TIMES * took
            if took > COSTLY_SECONDS:
                await asyncio.sleep(0)  # The others' turn, before vLLM checks it again.

    def has_room(self, caller: str, size: int) -> bool:
        """Return whether a text may go to the tokenizer now."""
        return not self._bytes[caller] or self._bytes[caller] + size <= TOKENIZING_BYTES

    async def tokenize(self, caller: str, size: int) -> Callable[[], None]:
        """Wait until a text may go to the tokenizer; return what is called when it was there."""
        while not self.has_room(caller, size):
            await self._freed.setdefault(caller, asyncio.Event()).wait()
        self._bytes[caller] += size
        done = False

        def release() -> None:
            nonlocal done
            if not done:
                done = True
                self._bytes[caller] -= size
                self._freed.pop(caller, asyncio.Event()).set()

        return release


def follow_tokenizer(engine: Any) -> None:
    """Have the engine's client say when a request comes to it, which is when it is tokenized."""
    for name in ("generate", "encode"):
        if (given := getattr(engine, name, None)) is not None:
            setattr(engine, name, _after_tokenizing(given))


def _after_tokenizing(given: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        if (release := TOKENIZED.get()) is not None:
            release()
        return given(*arguments, **named)

    return call
