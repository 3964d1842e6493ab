"""Gates without an engine: real TLS with certificates of clients, a state, and slow answers.

Each is a process, so that it can be killed. It reads its state from a file and writes down what it
was asked.
"""

import asyncio
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn

from slipstream.fleet.trust import Authority, Issued
from slipstream.vllm_plugin.gate.answers import Receive, Scope, Send

ANSWER_SECONDS = 0.2
PIECES = 5


@dataclass
class StubGate:
    """A replica, as the test sees it."""

    name: str
    folder: Path
    port: int
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @classmethod
    def make(cls, name: str, folder: Path, authority: Authority, issued: Issued) -> "StubGate":
        """Make a gate with its certificate and a free port."""
        folder.mkdir(parents=True)
        files = {"ca.pem": authority.pem, "c.pem": issued.certificate, "k.pem": issued.key}
        for file, content in {**files, "state": b"ready", "asked.jsonl": b""}.items():
            (folder / file).write_bytes(content)
        with socket.create_server(("127.0.0.1", 0)) as free:
            return cls(name, folder, int(free.getsockname()[1]))

    def start(self) -> None:
        """Start it, unless it runs."""
        argv = [sys.executable, __file__, self.name, str(self.folder), str(self.port)]
        self.process = subprocess.Popen(argv, env=os.environ | {"PYTHONPATH": ":".join(sys.path)})

    def kill(self) -> None:
        """Kill it: what is under way is cut off."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()

    def become(self, state: str) -> None:
        """Have it say that it is ready, or drains."""
        (self.folder / "state").write_text(state)

    def read_asked(self) -> list[dict[str, Any]]:
        """Return all that it was asked: the key and the body of each."""
        lines = (self.folder / "asked.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def count_under_way(self) -> int:
        """Return how many answers have begun and not ended."""
        return int((self.folder / "under-way").read_text() or 0)


class _App:
    def __init__(self, name: str, folder: Path) -> None:
        self._name, self._folder, self._under_way = name, folder, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        body = await _read(receive)
        ready = (self._folder / "state").read_text() == "ready"
        if scope["path"] == "/readyz":
            await _say(send, 200 if ready else 503, {"state": self._name})
        elif not ready:
            await _say(send, 503, {"error": {"message": "the server is about to stop"}})
        elif scope["path"] == "/v1/models":
            await _say(send, 200, {"data": [{"id": self._name}]})
        else:
            document = json.loads(body)
            key = headers.get("authorization") or headers.get("x-api-key")
            with (self._folder / "asked.jsonl").open("a") as file:
                file.write(json.dumps({"key": key, "body": document}) + "\n")
            self._count(1)
            try:
                seconds = float(document.get("seconds", ANSWER_SECONDS))
                await self._generate(send, seconds, stream=bool(document.get("stream")))
            finally:
                self._count(-1)

    def _count(self, change: int) -> None:
        self._under_way += change
        (self._folder / "under-way").write_text(str(self._under_way))

    async def _generate(self, send: Send, seconds: float, *, stream: bool) -> None:
        if not stream:
            await asyncio.sleep(seconds)
            await _say(send, 200, {"model": self._name, "choices": []})
            return
        kind = (b"content-type", b"text/event-stream")
        await send({"type": "http.response.start", "status": 200, "headers": [kind]})
        for _ in range(PIECES):
            piece = f'data: {{"model": "{self._name}"}}\n\n'.encode()
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            await asyncio.sleep(seconds / PIECES)
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


async def _read(receive: Receive) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        body += bytes(message.get("body", b""))
        if not message.get("more_body"):
            return bytes(body)


async def _say(send: Send, status: int, document: dict[str, Any]) -> None:
    kind = (b"content-type", b"application/json")
    await send({"type": "http.response.start", "status": status, "headers": [kind]})
    await send({"type": "http.response.body", "body": json.dumps(document).encode()})


def _serve(name: str, folder: Path, port: int) -> None:
    (folder / "under-way").write_text("0")
    uvicorn.run(
        _App(name, folder),
        port=port,
        log_level="critical",
        lifespan="off",
        ssl_certfile=folder / "c.pem",
        ssl_keyfile=folder / "k.pem",
        ssl_ca_certs=str(folder / "ca.pem"),
        ssl_cert_reqs=ssl.CERT_REQUIRED,
    )


if __name__ == "__main__":
    _serve(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
