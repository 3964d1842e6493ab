"""A server whose every byte a test decides, and streams in vLLM's form."""

import json
import socketserver
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

CHUNKED = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
LAST_CHUNK = b"0\r\n\r\n"
MODELS = json.dumps({"data": [{"id": "the-model"}, {"id": "another"}]}).encode()

Respond = Callable[[dict[str, Any]], Iterable[bytes | None]]


@dataclass
class StreamServer:
    """Sends what `respond` gives, piece by piece, and hangs up at None.

    `status` is that of whatever is not asked by POST.
    """

    respond: Respond
    metrics: bytes = b""
    status: str = "200 OK"
    url: str = ""
    connections: int = 0
    heads: list[str] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)


def say(text: Any, **choice: Any) -> dict[str, Any]:
    """Make a chunk of a chat."""
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None, **choice}]}


ROLE = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
STOP = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


def count(prompt: int, output: int, **more: Any) -> dict[str, Any]:
    """Make the last chunk, with the usage."""
    usage = {"prompt_tokens": prompt, "completion_tokens": output, **more.pop("usage", {})}
    return {"choices": [], "usage": usage, **more}


def write_events(*events: dict[str, Any] | str) -> bytes:
    """Write events as a server sends them; a string goes as it is."""
    lines = (event if isinstance(event, str) else json.dumps(event) for event in events)
    return "".join(f"data: {line}\n\n" for line in lines).encode()


def frame(data: bytes) -> bytes:
    """Make one chunk of HTTP."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def answer_with(*events: dict[str, Any] | str) -> list[bytes | None]:
    """Make a whole good answer, every event in a chunk of its own."""
    return [CHUNKED, *(frame(write_events(event)) for event in (*events, "[DONE]")), LAST_CHUNK]


def answer_plainly(text: str = "hi") -> list[bytes | None]:
    return answer_with(ROLE, say(text), STOP, count(3, 1))


def refuse(status: str, body: bytes) -> list[bytes | None]:
    return [b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), len(body), body)]


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """Cut bytes at any places."""
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


@contextmanager
def run_stream_server(
    respond: Respond, certificate: ssl.SSLContext | None = None
) -> Iterator[StreamServer]:
    """Serve on a free port until the block is left; a connection is kept as HTTP/1.1 has it."""
    fake = StreamServer(respond)

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            fake.connections += 1
            try:
                while head := self.read_head():
                    self.answer(head)
            except (ConnectionError, StopIteration):
                pass

        def read_head(self) -> str:
            lines = iter(self.rfile.readline, b"\r\n")
            return b"".join(line for line in lines if line or self.hang_up()).decode()

        def answer(self, head: str) -> None:
            fake.heads.append(head)
            if head.startswith("GET"):
                told = fake.metrics if "/metrics" in head else MODELS
                pieces: Iterable[bytes | None] = refuse(fake.status, told)
            else:
                length = int(head.lower().partition("content-length:")[2].split()[0])
                body = json.loads(self.rfile.read(length))
                fake.bodies.append(body)
                pieces = fake.respond(body)
            for piece in pieces:
                if piece is None:
                    self.hang_up()
                else:
                    self.wfile.write(piece)

        def hang_up(self) -> bool:
            raise ConnectionError

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        request_queue_size = 64

        def get_request(self) -> tuple[Any, Any]:
            connection, address = super().get_request()
            if certificate is not None:
                connection = certificate.wrap_socket(connection, server_side=True)
            return connection, address

    with Server(("127.0.0.1", 0), Handler) as server:
        scheme, host = ("https", "localhost") if certificate else ("http", "127.0.0.1")
        fake.url = f"{scheme}://{host}:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield fake
        finally:
            server.shutdown()
            thread.join()
