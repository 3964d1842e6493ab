"""HTTP/1.1 as far as a measured stream needs it, at a tenth of the usual cost for each chunk.

httpx takes 200 us of a server core for a chunk (h11 below anyio): 256 streams of 40 chunks a
second would need two cores, and every time taken is the client's own. Here a read wakes no
task and reuses one buffer (asyncio's would be 256 KiB, made anew each time): 20 us, with the
chunk's JSON. tests/unit/measuring/client/test_client_capacity.py prints the figure.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import httpx

from slipstream.measuring.client.endpoint import CONNECT_SECONDS, Endpoint

# uvicorn closes a connection that was idle for 5 s, maybe just as it is used again.
IDLE_SECONDS = 2

Take = Callable[[bytes, float], None]

_BUFFER_BYTES = 1 << 16
_CLOSED = "the server closed the connection"


class AnswerReader:
    """One HTTP/1.1 response, parsed as its bytes arrive; raises ValueError."""

    def __init__(self) -> None:
        self.status = 0
        self.complete = False
        self.keeps = False
        self._rest = b""
        self._chunked = False
        self._last_chunk = False
        self._left: int | None = 0

    def feed(self, data: bytes) -> bytes:
        """Return what these bytes add to the body."""
        if not self.status:
            head, found, data = (self._rest + data).partition(b"\r\n\r\n")
            if not found:
                self._rest = head
                return b""
            self._rest = b""
            self._read_head(head)
        if self._chunked:
            return self._join_chunks(self._rest + data)
        if self._left is not None:
            self._left -= len(data)
            self.complete = self._left <= 0
        return data

    def end(self) -> None:
        """Process the end of the connection, which may be the proper end of the response."""
        self.complete = self.complete or (self.status > 0 and self._left is None)

    def _read_head(self, head: bytes) -> None:
        status, *lines = head.decode("latin-1").split("\r\n")
        version, code, *_ = status.split(" ", 2)
        if not version.startswith("HTTP/1."):
            raise ValueError(version)
        self.status = int(code)
        split = (line.partition(":") for line in lines)
        fields = {name.lower(): value.strip() for name, _, value in split}
        self._chunked = fields.get("transfer-encoding", "").lower() == "chunked"
        length = fields.get("content-length")
        if not self._chunked:
            self._left = None if length is None else int(length)
        self.keeps = version == "HTTP/1.1" and fields.get("connection", "").lower() != "close"

    def _join_chunks(self, data: bytes) -> bytes:
        """Decode chunks; `_left` counts the bytes of a chunk with its line end."""
        pieces, at, self._rest = [], 0, b""
        while at < len(data) and not self.complete:
            if self._left:
                pieces.append(data[at : max(at, at + self._left - 2)])
                taken = min(self._left, len(data) - at)
                at, self._left = at + taken, self._left - taken
                self.complete = self._last_chunk and not self._left
            elif (end := data.find(b"\r\n", at)) < 0:
                self._rest = data[at:]
                break
            else:
                size = int(data[at:end].partition(b";")[0], 16)
                at, self._left, self._last_chunk = end + 2, size + 2, size == 0
        return b"".join(pieces)


class HttpConnection(asyncio.BufferedProtocol):
    """A kept connection: one exchange at a time, each with a callback for its body."""

    def __init__(self, buffer: memoryview) -> None:
        self.reader = AnswerReader()
        self.refusal = b""
        self.heard_at = 0.0
        self._buffer = buffer
        self._transport: asyncio.WriteTransport | None = None
        self._take: Take | None = None
        self._done: asyncio.Future[None] | None = None

    def send(self, request: bytes, take: Take) -> asyncio.Future[None]:
        """Send a request; a good answer's body goes to `take`, another's into `refusal`."""
        self.reader, self.refusal, self._take = AnswerReader(), b"", take
        self.heard_at = time.monotonic()
        self._done = asyncio.get_running_loop().create_future()
        if self._transport is None:
            self._done.set_exception(ConnectionError(_CLOSED))
        else:
            self._transport.write(request)
        return self._done

    @property
    def is_free(self) -> bool:
        fresh = time.monotonic() - self.heard_at < IDLE_SECONDS
        return self._transport is not None and self.reader.keeps and self.reader.complete and fresh

    def close(self) -> None:
        """Close the connection, whatever is under way on it."""
        if self._done is not None:
            self._done.cancel()
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.heard_at = now = time.monotonic()
        if self._done is None or self._take is None or self._done.done():
            return
        data = bytes(self._buffer[:nbytes])
        try:
            body = self.reader.feed(data)
        except ValueError:
            self._done.set_exception(ConnectionError(f"not HTTP/1.1: {data[:80]!r}"))
            return
        if self.reader.status == httpx.codes.OK:
            self._take(body, now)
        else:
            self.refusal += body
        if self.reader.complete:
            self._done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.reader.end()
        if self._done is None or self._done.done():
            return
        if self.reader.complete:
            self._done.set_result(None)
        else:
            self._done.set_exception(exc or ConnectionError(_CLOSED))


class Wire:
    """A pool of connections to one server."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._base = endpoint.base
        self._ssl = endpoint.make_context()
        self._idle: list[HttpConnection] = []
        # One for all: what a read brings is used up before the next.
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        fields = {
            "Host": self._base.netloc.decode(),
            "User-Agent": "slipstream",
            "Content-Type": "application/json",
            **endpoint.headers,
        }
        self._fields = "".join(f"{name}: {value}\r\n" for name, value in fields.items())

    def make_post(self, path: str, body: Any) -> bytes:
        content = json.dumps(body).encode()
        path = self._base.raw_path.decode().rstrip("/") + path
        head = f"POST {path} HTTP/1.1\r\n{self._fields}Content-Length: {len(content)}\r\n\r\n"
        return head.encode() + content

    @asynccontextmanager
    async def borrow(self) -> AsyncIterator[HttpConnection]:
        """Return a kept connection or a new one; raises OSError."""
        connection = self._find_free() or await self._connect()
        try:
            yield connection
        finally:
            if connection.is_free:
                self._idle.append(connection)
            else:
                connection.close()

    def close(self) -> None:
        """Close the connections that nobody uses."""
        while self._idle:
            self._idle.pop().close()

    def _find_free(self) -> HttpConnection | None:
        while self._idle:
            if (connection := self._idle.pop()).is_free:
                return connection
            connection.close()
        return None

    async def _connect(self) -> HttpConnection:
        port = self._base.port or (80 if self._ssl is None else 443)
        async with asyncio.timeout(CONNECT_SECONDS):
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: HttpConnection(self._buffer), self._base.host, port, ssl=self._ssl
            )
        return connection
