"""The page is for browsers on this machine only, and holds nothing that is somebody's."""

import asyncio
import base64
import hashlib
import json
import re
import time
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx
import pytest

from slipstream.serving.access.keys import KeyTerms, make_key
from slipstream.serving.messages import Readiness
from slipstream.steering.state import FRESH_SECONDS
from slipstream.vllm_plugin.gate.answers import view
from slipstream.vllm_plugin.gate.middleware import Gate
from tests.unit.vllm_plugin.gate.answers.test_visits import EVENTS, Streaming
from tests.unit.vllm_plugin.gate.pieces import (
    CHAT,
    HELLO,
    LOCAL,
    REMOTE,
    Engine,
    call,
    make_gate,
    make_scope,
    wait_until,
)
from tests.unit.vllm_plugin.gate.test_connections import Living, enliven, serve_as_vllm
from tests.unit.vllm_plugin.steering.reports import make_state

PAGE, STATE = "/slipstream", "/slipstream/state"
READER = KeyTerms(routes=("chat", "metrics"))
HERE = ((b"host", b"127.0.0.1:8000"),)


def ask(gate: Gate, path: str, **parts: Any) -> tuple[int, dict[bytes, bytes], bytes]:
    """Ask as uvicorn does, from here unless a part says otherwise."""
    asked = {"headers": list(HERE), "server": ("127.0.0.1", 8000), "scheme": "http", **parts}
    start, *rest = asyncio.run(call(gate, make_scope(path.encode(), **asked)))
    return start["status"], dict(start["headers"]), b"".join(one["body"] for one in rest)


NAMES = {
    True: (b"127.0.0.1:8000", b"localhost:8000", b"LOCALHOST:8000", b"[::1]:8000"),
    False: (
        *(b"localhost", b"localhost:80", b"127.0.0.1:80000", b"192.0.2.1:8000", b"0.0.0.0:8000"),
        *(b"rebound.example:8000", b"127.0.0.1.rebound.example:8000", b"", b"localhost:8000\n"),
        *(b"localhost.rebound.example:8000", b"rebound.example#localhost:8000"),
    ),
}
FORWARDING = (
    *(
        (b"host", b"127.0.0.1:8000"),
        (b"x-forwarded-for", b"127.0.0.1"),
        (b"x-forwarded-host", b"a"),
    ),
    *((b"forwarded", b"for=127.0.0.1"), (b"via", b"1.1 a"), (b"x-real-ip", b"127.0.0.1")),
    (b"true-client-ip", b"127.0.0.1"),
)
BARE = {"headers": [(b"host", b"localhost")]}
ASKED: list[tuple[dict[str, Any], bool]] = [
    *(({"headers": [(b"host", one)]}, allowed) for allowed in NAMES for one in NAMES[allowed]),
    *(({"headers": [*HERE, header]}, False) for header in FORWARDING),
    *(({}, True), ({"headers": []}, False)),
    ({"client": ("::1", 5000), "server": ("::1", 8000)}, True),
    ({"client": ("::ffff:127.0.0.1", 5000)}, True),
    *(({"client": one}, False) for one in (REMOTE, None)),
    *(({"server": one}, False) for one in (None, ("/run/slipstream.sock", None))),
    ({"http_version": "1.0"}, False),
    ({**BARE, "server": ("127.0.0.1", 80)}, True),
    ({**BARE, "server": ("127.0.0.1", 443), "scheme": "https"}, True),
]


@pytest.mark.parametrize(("parts", "allowed"), ASKED)
@pytest.mark.parametrize("path", [PAGE, STATE])
def test_who_is_not_here_finds_no_such_route(
    tmp_path: Path, engine: Engine, path: str, parts: dict[str, Any], allowed: bool
) -> None:
    gate = make_gate(tmp_path, engine)
    status, _, body = ask(gate, path, **parts)
    assert status == (200 if allowed else 404)
    if not allowed:
        _, _, nothing = ask(gate, "/nothing", **parts)
        assert body == nothing
    assert ask(gate, path, method="POST")[0] == 404
    assert ask(gate, f"{path}/")[0] == 404
    assert engine.scopes == []


def test_with_keys_one_is_needed_which_a_browser_asks_for_as_a_password(tmp_path: Path) -> None:
    keys = tmp_path / "keys" / "keys.json"
    made = make_key(keys, "alice", now=datetime.now(UTC), expires=None, terms=READER)
    chat = make_key(keys, "bob", now=datetime.now(UTC), expires=None)
    gate = make_gate(tmp_path, Engine(), keys_file=keys)

    def ask_as(scheme: str, secret: str, path: str = STATE) -> tuple[int, dict[bytes, bytes]]:
        headers = [*HERE, (b"authorization", f"{scheme} {secret}".encode())]
        return ask(gate, path, headers=headers)[:2]

    def write(secret: str) -> str:
        return base64.b64encode(f"me:{secret}".encode()).decode()

    # As nginx with `proxy_http_version 1.1` sends the request of anybody.
    status, headers, _ = ask(gate, PAGE)
    assert (status, headers[b"www-authenticate"][:5]) == (401, b"Basic")
    for path in (PAGE, STATE):
        assert ask_as("Bearer", made.secret, path)[0] == 200
        assert ask_as("Basic", write(made.secret), path)[0] == 200
    for scheme, secret in (("Basic", write("guessed")), ("Basic", "%%%"), ("Basic", made.secret)):
        assert ask_as(scheme, secret)[0] == 401
    assert ask_as("Basic", write(chat.secret))[0] == 403
    assert ask(gate, PAGE, client=REMOTE)[0] == 404
    # Nowhere else: a browser would send it along from a page of others.
    assert ask_as("Bearer", made.secret, "/metrics")[0] == 200
    assert ask_as("Basic", write(made.secret), "/metrics")[0] == 401


def read_policy(header: bytes) -> dict[str, list[str]]:
    directives = [directive.split() for directive in header.decode().split("; ")]
    return {name: values for name, *values in directives}


def hash_part(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


class Elements(HTMLParser):
    """Collects a page's elements with their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_a_browser_runs_the_pages_own_script_and_nothing_else(tmp_path: Path) -> None:
    _, headers, body = ask(make_gate(tmp_path, Engine()), PAGE)
    page = body.decode()
    policy = read_policy(headers[b"content-security-policy"])
    (style,) = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    assert policy == {
        "default-src": ["'none'"],
        "base-uri": ["'none'"],
        "form-action": ["'none'"],
        "frame-ancestors": ["'none'"],
        "style-src": [hash_part(style)],
        "script-src": [hash_part(script)],
        "connect-src": ["'self'"],
    }
    for _, attributes in Elements(page).found:
        assert not any(
            name.startswith("on") or name in ("src", "href", "style") for name in attributes
        )
    for unsafe in ("innerHTML", "eval(", "document.write", "http://", "https://"):
        assert unsafe not in script.replace("http://www.w3.org/2000/svg", "")
    assert headers[b"cache-control"] == b"no-store"
    assert headers[b"x-content-type-options"] == b"nosniff"


def test_the_figures_are_those_of_the_moment_and_nobodys(tmp_path: Path) -> None:
    keys = tmp_path / "keys" / "keys.json"
    made = make_key(keys, "alice", now=datetime.now(UTC), expires=None, terms=READER)
    named = ("/data/models/private/Qwen3-8B",)
    gate = make_gate(tmp_path, enliven(Streaming(*EVENTS)), keys_file=keys, served_names=named)
    gate.run.hear(Readiness(state="ready"))
    gate.run.hear(make_state())
    with serve_as_vllm(gate) as port:
        base = f"http://127.0.0.1:{port}"
        said = {**HELLO, "model": "/data/models/private/Qwen3-8B", "stream": True}
        key = {"Authorization": f"Bearer {made.secret}"}
        assert httpx.post(f"{base}{CHAT}", json=said, headers=key).status_code == 200
        answer = httpx.get(f"{base}{STATE}", headers=key)
        assert httpx.get(f"{base}{PAGE}", headers=key).text.startswith("<!DOCTYPE html>")
    state = answer.json()
    assert (state["state"], state["model"]) == ("ready", "Qwen3-8B")
    assert (state["in_flight"], state["waiting"]) == (0, 0)
    assert state["first_token_seconds"]["streams"] >= 1
    assert state["steering"]["draft_length"] == 5
    assert [point[1:] for point in state["history"]][:1] == [[55.2, 5]]
    assert state["steering"]["kinds"]["prose"]["accepted"] == [300, 90, 20, 5, 0]
    for secret in (made.secret, made.key.id, str(tmp_path), "private", "Hello", "127.0.0.1"):
        assert secret not in answer.text


def test_a_page_that_is_opened_has_the_last_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view, "POINT_SECONDS", 0.001)
    monkeypatch.setattr(view, "MOST_POINTS", 5)
    gate = make_gate(tmp_path, Living())
    gate.run.hear(make_state())

    def read_history(port: int) -> list[list[Any]]:
        history: list[list[Any]] = httpx.get(f"http://127.0.0.1:{port}{STATE}").json()["history"]
        return history

    with serve_as_vllm(gate) as port:
        wait_until(lambda: len(read_history(port)) == 5)
        gate.run.hear(make_state(at=time.time() - FRESH_SECONDS - 1))
        wait_until(lambda: read_history(port)[-1][1:] == [None, None])
        times = [at for at, *_ in read_history(port)]
    assert times == sorted(times)


def test_without_a_report_the_figures_say_so(tmp_path: Path) -> None:
    status, headers, body = ask(make_gate(tmp_path, Engine()), STATE)
    assert (status, json.loads(body)["steering"]) == (200, None)
    assert headers[b"content-type"] == b"application/json"


def test_looking_is_not_logged(tmp_path: Path) -> None:
    log = tmp_path / "access.jsonl"
    gate = make_gate(tmp_path, Living(), access_log=log)
    with serve_as_vllm(gate) as port:
        base = f"http://127.0.0.1:{port}"
        assert httpx.get(f"{base}{STATE}").status_code == 200
        assert httpx.get(f"{base}{STATE}", headers={"Host": "a.example"}).status_code == 404
    (line,) = map(json.loads, log.read_text().splitlines())
    assert (line["status"], line["client"]) == (404, LOCAL[0])
