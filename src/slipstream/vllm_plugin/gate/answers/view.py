"""The run on one page: GET /slipstream, and GET /slipstream/state with its figures as JSON.

For a browser on this machine and nobody else: to others there is no such route. A page of another
site that has its name resolve to this machine (DNS rebinding) is told by its Host header. A proxy
on this machine can look like a browser, so with keys one that may read /metrics is needed here: a
browser asks for it as a password. No key, no prompt, no path and no client is in either answer.
"""

import asyncio
import json
import re
import time
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from slipstream.serving.access.gate_file import is_loopback
from slipstream.vllm_plugin.gate.answers import Scope, Send, send_body
from slipstream.vllm_plugin.gate.answers.metrics import open_metrics
from slipstream.vllm_plugin.gate.run_link import RunLink

PAGE = "GET /slipstream"
STATE = "GET /slipstream/state"
ROUTES = (PAGE, STATE)
# Here only, where nothing is done: browsers send a password along from pages of others.
ASK_PASSWORD = ((b"www-authenticate", b'Basic realm="slipstream: a key as password"'),)
NAME_CHARACTERS = 80
POINT_SECONDS = 2.0
MOST_POINTS = 300
# A proxy may send any of them for somebody who is not here.
_FORWARDED = re.compile(
    rb"forwarded|via|x-forwarded-.*|x-real-ip|x-client-ip|cf-connecting-ip|true-client-ip"
)
_HOST = re.compile(rb"(?:localhost|127\.0\.0\.1|\[::1\])(?::(\d{1,5}))?", re.IGNORECASE)
_USUAL_PORTS = {"http": 80, "https": 443}
_HEADERS = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
)
_CLOSED = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


def is_from_here(scope: Scope) -> bool:
    """Return whether a program of this machine asks; what a proxy passes on is from elsewhere."""
    client = scope.get("client")
    forwarded = any(_FORWARDED.fullmatch(name) for name, _ in scope["headers"])
    return not forwarded and (client is None or is_loopback(client[0]))


def is_for_here(scope: Scope) -> bool:
    """Return whether a browser or program of this machine asks, under a name of this machine."""
    server = scope.get("server")
    if scope.get("client") is None or server is None or not is_from_here(scope):
        return False
    # nginx without further settings says nothing else of those whom it passes on.
    if scope.get("http_version", "1.1") != "1.1":
        return False
    hosts = [value for name, value in scope["headers"] if name == b"host"]
    found = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
    if found is None:
        return False
    usual = _USUAL_PORTS.get(scope.get("scheme", "http"))
    return bool((int(found[1]) if found[1] else usual) == server[1])


def take_password(headers: Mapping[bytes, bytes]) -> Mapping[bytes, bytes]:
    """Return the headers with the password of a browser's user as the key."""
    scheme, _, words = headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() == b"basic":
        with suppress(ValueError):
            key = b64decode(words, validate=True).partition(b":")[2]
            return {**headers, b"authorization": b"Bearer " + key}
    return headers


class View:
    """Serves both routes, with what the supervisor and the engine's core reported last."""

    def __init__(self, served_names: tuple[str, ...], run: RunLink) -> None:
        self._model, self._run = _name_model(served_names), run
        self._page = Path(__file__).with_name("view.html").read_text()
        self._policy = _make_policy(self._page)
        self._history: deque[tuple[float, float | None, int | None]] = deque(maxlen=MOST_POINTS)

    async def follow(self) -> None:
        """Keep the history of the last minutes for pages that are opened later."""
        while True:
            state = self._run.steering
            seen = (None, None) if state is None else (state.tokens_per_second, state.draft_length)
            self._history.append((round(time.time(), 1), *seen))
            await asyncio.sleep(POINT_SECONDS)

    async def answer(self, route: str, send: Send) -> None:
        if route == PAGE:
            kind, body, policy = b"text/html; charset=utf-8", self._page, self._policy
        else:
            body = json.dumps(self._describe(), allow_nan=False)
            kind, policy = b"application/json", _CLOSED
        headers = ((b"content-security-policy", policy.encode()), *_HEADERS)
        await send_body(send, 200, kind, body.encode(), headers)

    def _describe(self) -> dict[str, object]:
        steering = self._run.steering
        in_flight, waiting = self._run.accounting.count_requests()
        return {
            "schema_version": 1,
            "at": time.time(),
            "state": self._run.readiness.state,
            "model": self._model,
            "in_flight": in_flight,
            "waiting": waiting,
            "first_token_seconds": open_metrics().summarize_first_tokens(),
            "steering": None if steering is None else steering.model_dump(mode="json"),
            "history": tuple(self._history),
        }


def _name_model(served: tuple[str, ...]) -> str:
    """Return the model's name without the folder or owner before it."""
    name = served[0].rstrip("/").rpartition("/")[2] if served else ""
    return "".join(sign if sign.isprintable() else "?" for sign in name[:NAME_CHARACTERS])


def _make_policy(page: str) -> str:
    """Allow the page its own style and script, by their hashes, and requests for its figures."""
    own = {
        kind: _hash(re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL))
        for kind, tag in (("style-src", "style"), ("script-src", "script"))
    }
    allowed = "; ".join(f"{kind} {hashes}" for kind, hashes in own.items())
    return f"{_CLOSED}; {allowed}; connect-src 'self'"


def _hash(contents: list[str]) -> str:
    digests = (b64encode(sha256(one.encode()).digest()).decode() for one in contents)
    return " ".join(f"'sha256-{digest}'" for digest in digests)
