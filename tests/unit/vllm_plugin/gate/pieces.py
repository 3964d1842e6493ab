"""A gate before an engine that remembers what reached it, and ways to ask it."""

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx

from slipstream.serving.access.gate_file import GATE_VARIABLE, GateLimits, GateSettings
from slipstream.vllm_plugin.gate.answers import App, Message, Receive, Scope, Send
from slipstream.vllm_plugin.gate.constraints.forms import ConstraintForm
from slipstream.vllm_plugin.gate.constraints.measuring import ConstraintVerdict, WorkerProcess
from slipstream.vllm_plugin.gate.middleware import Gate

CHAT = "/v1/chat/completions"
LOCAL = ("127.0.0.1", 5000)
REMOTE = ("192.0.2.7", 5000)
HELLO = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}


@dataclass
class Engine:
    """An app in the engine's place."""

    status: int = 200
    chunks: tuple[bytes, ...] = (b'{"answer": 42}',)
    before_each: Callable[[], Awaitable[object]] | None = None
    scopes: list[Scope] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scopes.append(scope)
        self.bodies.append(await read_all(receive) if scope["method"] == "POST" else b"")
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        for chunk in self.chunks:
            if self.before_each is not None:
                await self.before_each()
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    @property
    def paths(self) -> list[str]:
        return [scope["path"] for scope in self.scopes]

    @property
    def document(self) -> Any:
        """Return the one request that came, as the engine reads it."""
        (body,) = self.bodies
        return json.loads(body)

    @property
    def headers(self) -> dict[bytes, bytes]:
        (scope,) = self.scopes
        return dict(scope["headers"])


class Measured(WorkerProcess):
    """A worker that finds what it is told to, one after the other, and the last again."""

    def __init__(self, *found: ConstraintVerdict | Exception) -> None:
        super().__init__()
        self.found = [*found] or [ConstraintVerdict("fits", 1)]
        self.asked: list[list[ConstraintForm]] = []

    async def measure(
        self, forms: list[ConstraintForm], most_milliseconds: int
    ) -> ConstraintVerdict:
        self.asked.append(forms)
        found = self.found.pop(0) if len(self.found) > 1 else self.found[0]
        if isinstance(found, Exception):
            raise found
        return found


async def read_all(receive: Receive) -> bytes:
    body = b""
    while True:
        message = await receive()
        body += bytes(message["body"])
        if not message["more_body"]:
            return body


def make_gate(
    folder: Path,
    engine: Any,
    *,
    limits: dict[str, Any] | None = None,
    worker: Any = None,
    **own: Any,
) -> Gate:
    """Build a gate from a settings file, as vLLM would; constraints fit if nobody measures."""
    own = {"refusals_per_second": 10**6} | own
    settings = GateSettings(limits=GateLimits(**limits or {}), **own)
    settings.write(folder / "gate.json")
    with patch.dict(os.environ, {GATE_VARIABLE: str(folder / "gate.json")}):
        gate = Gate(engine)
    gate._constraints.worker = worker or Measured()
    return gate


async def ask_async(
    gate: Gate,
    path: str = CHAT,
    *,
    method: str | None = None,
    client: tuple[str, int] = LOCAL,
    key: str | None = None,
    headers: dict[str, str] | None = None,
    **content: Any,
) -> httpx.Response:
    """Ask once; with a body it is a POST."""
    sent = dict(headers or {})
    if key is not None:
        sent["authorization"] = f"Bearer {key}"
    method = method or ("POST" if content else "GET")
    transport = httpx.ASGITransport(gate, client=client)
    async with httpx.AsyncClient(transport=transport, base_url="http://engine") as asker:
        return await asker.request(method, path, headers=sent, **content)


def ask(gate: Gate, path: str = CHAT, **how: Any) -> httpx.Response:
    return asyncio.run(ask_async(gate, path, **how))


def ask_chat(gate: Gate, *, key: str | None = None, **fields: Any) -> httpx.Response:
    """Ask for a chat with these fields added."""
    return ask(gate, key=key, json=HELLO | fields)


def read_error(answer: httpx.Response) -> str:
    """Return the message of a refusal, which must have the API's form."""
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["code"] == answer.status_code
    return str(error["message"])


async def call(app: App, scope: Scope, *messages: Message) -> list[Message]:
    """Drive an app with a scope of one's own; return all that it sent."""
    sent: list[Message] = []
    waiting = list(messages)

    async def receive() -> Message:
        return waiting.pop(0) if waiting else {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent


def make_scope(raw_path: bytes, **parts: Any) -> Scope:
    """Make a request's scope as uvicorn does."""
    return {
        "type": "http",
        "method": "GET",
        "raw_path": raw_path,
        "path": raw_path.decode("latin-1"),
        "root_path": "",
        "query_string": b"",
        "headers": [],
        "client": LOCAL,
        **parts,
    }


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for what another thread or process does soon."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.01)
