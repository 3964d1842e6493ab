"""HTTP by hand: bytes out, as no library would send them, and one answer back, timed."""

import select
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPResponse

# The gate itself gives a constraint up after 60 s.
TIMEOUT_SECONDS = 75.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back, and the seconds from before the connection to the last byte."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    seconds: float


def connect(port: int) -> socket.socket:
    """Open a connection to a server of this machine."""
    return socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_SECONDS)


def make_request(
    target: str,
    *,
    method: str = "GET",
    key: str | None = None,
    body: bytes | None = None,
    host: str = "engine",
    headers: tuple[str, ...] = (),
) -> bytes:
    """Make the bytes of a request for one connection."""
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}", "Connection: close", *headers]
    if key is not None:
        lines.append(f"Authorization: Bearer {key}")
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")


def exchange(port: int, sent: bytes) -> Answer:
    """Send a request and read its answer, which may come before all was sent."""
    started = time.monotonic()
    with connect(port) as connection:
        _send_until_answered(connection, sent)
        answer = HTTPResponse(connection, method=sent.partition(b" ")[0].decode())
        answer.begin()
        body = answer.read()
    seconds = time.monotonic() - started
    return Answer(answer.status, dict(answer.getheaders()), body, seconds)


def _send_until_answered(connection: socket.socket, sent: bytes) -> None:
    waiting = memoryview(sent)
    while waiting:
        readable, _, _ = select.select([connection], [connection], [], TIMEOUT_SECONDS)
        if readable:
            return
        try:
            waiting = waiting[connection.send(waiting[: 1 << 16]) :]
        except ConnectionError:
            return
