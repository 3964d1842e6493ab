"""A server in a process of its own that streams at a pace: prebuilt bytes, all streams at once.

`python paced_server.py SECONDS_A_CHUNK CHUNKS` prints its port. As an engine's step does, each
tick gives every stream a chunk; its text is the time at which the tick began, on the clock
that all processes share.
"""

import asyncio
import json
import sys
import time
from typing import cast

TOKENS_A_CHUNK = 2
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
COMMON = {
    "id": "chatcmpl-0123456789abcdef0123456789abcdef",
    "object": "chat.completion.chunk",
    "created": 1763190000,
    "model": "paced",
}


def frame(event: str) -> bytes:
    data = f"data: {event}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(data), data)


def make_chunk(delta: dict[str, str], finish_reason: str | None = None, ids: int = 0) -> bytes:
    choice = {
        "index": 0,
        "delta": delta,
        "logprobs": None,
        "finish_reason": finish_reason,
        "token_ids": [1234] * ids,
    }
    return frame(json.dumps({**COMMON, "choices": [choice]}))


def make_end(chunks: int) -> bytes:
    usage = {"prompt_tokens": 10, "completion_tokens": chunks * TOKENS_A_CHUNK}
    last = frame(json.dumps({**COMMON, "choices": [], "usage": usage}))
    return make_chunk({}, "length") + last + frame("[DONE]") + b"0\r\n\r\n"


class Stream(asyncio.Protocol):
    """One connection; every request on it is a new stream."""

    def __init__(self, running: dict["Stream", int], chunks: int) -> None:
        self.running, self.chunks, self.received = running, chunks, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        self.received += data
        if self.received.endswith(b"}"):
            self.received = b""
            self.transport.write(HEAD + make_chunk({"role": "assistant", "content": ""}))
            self.running[self] = self.chunks

    def connection_lost(self, exc: Exception | None) -> None:
        self.running.pop(self, None)


async def serve(seconds: float, chunks: int) -> None:
    loop = asyncio.get_running_loop()
    running: dict[Stream, int] = {}
    server = await loop.create_server(lambda: Stream(running, chunks), "127.0.0.1", 0, backlog=1024)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    end, tick = make_end(chunks), loop.time()
    while True:
        tick = max(tick + seconds, loop.time())
        await asyncio.sleep(tick - loop.time())
        chunk = make_chunk({"content": f"{time.monotonic():.6f} "}, ids=TOKENS_A_CHUNK)
        for stream, left in list(running.items()):
            stream.transport.write(chunk if left > 1 else chunk + end)
            running[stream] = left - 1
            if left == 1:
                del running[stream]


if __name__ == "__main__":
    asyncio.run(serve(float(sys.argv[1]), int(sys.argv[2])))
