"""What the gate itself costs: the time on the event loop of a request and of a chunk of answer.

The engine in its place gives its chunks at once, so the difference is the gate's alone.
"""

import asyncio
import json
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from slipstream.serving.access.keys import make_key
from slipstream.vllm_plugin.gate.answers import App, Message, Receive, Scope, Send
from tests.unit.vllm_plugin.gate.pieces import make_gate, make_scope

CHAT = "/v1/chat/completions"
CHUNK = b"data: " + b"x" * 200 + b"\n\n"
REPEATS = 7
REQUESTS = 100
CHUNKS = 1000


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds on the event loop."""

    request: float
    chunk: float


def measure_gate(folder: Path, words: int) -> Cost:
    """Time a gate with two keys, accounting and an access log, for so many words."""
    made = [
        make_key(folder / "keys" / "keys.json", name, now=datetime.now(UTC), expires=None)
        for name in ("one", "two")
    ]
    said = {"role": "user", "content": "word " * words}
    body = json.dumps({"model": "m", "messages": [said], "max_tokens": 64, "stream": True}).encode()

    def gate(chunks: int) -> App:
        return make_gate(
            folder,
            make_engine(chunks),
            keys_file=folder / "keys" / "keys.json",
            access_log=folder / "access.jsonl",
            speculation=True,
            seats=8,
            limits={"max_tokens": 256},
        )

    async def measure() -> Cost:
        key = made[0].secret
        gated = [await _time(gate(chunks), key, body) for chunks in (0, CHUNKS)]
        bare = [await _time(make_engine(chunks), key, body) for chunks in (0, CHUNKS)]
        answer = (gated[1] - gated[0]) - (bare[1] - bare[0])
        return Cost(request=gated[0] - bare[0], chunk=answer / CHUNKS)

    return asyncio.run(measure())


def make_engine(chunks: int) -> App:
    """Make an engine that answers at once with so many chunks."""

    async def engine(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for _ in range(chunks):
            await send({"type": "http.response.body", "body": CHUNK, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    return engine


async def _time(app: App, key: str, body: bytes) -> float:
    """Return the seconds of a request, in the quickest of some turns."""
    headers = [
        (b"host", b"engine"),
        (b"authorization", f"Bearer {key}".encode()),
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        """Take what comes."""

    turns = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        for _ in range(REQUESTS):
            scope = make_scope(CHAT.encode(), method="POST", headers=headers)
            await app(scope, receive, send)
        turns.append((time.perf_counter() - started) / REQUESTS)
    return min(turns)
