"""One line for every request, whatever its end, behind a real server; never what was said."""

import asyncio
import json
import time
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest

from slipstream.serving.access.keys import make_key
from slipstream.serving.following import AccessLine, read_access_line
from slipstream.vllm_plugin.gate.answers import Receive, Scope, Send
from slipstream.vllm_plugin.gate.middleware import Gate
from tests.unit.vllm_plugin.gate.pieces import CHAT, HELLO, Engine, make_gate, read_all, wait_until
from tests.unit.vllm_plugin.gate.test_sockets import (
    REQUEST_BODY,
    Stream,
    connect,
    read_to_end,
    send_raw,
    serve,
    start_post,
    status_of,
)

SECRET = "the prompt that nobody may read"
USAGE = b'"usage":{"prompt_tokens":12,"total_tokens":46,"completion_tokens":34}'
ANSWER = b'{"id":"chatcmpl-1","choices":[{"message":{"content":"\\"usage\\": 9"}}],' + USAGE + b"}"
EVENTS = [
    b'data: {"choices":[{"delta":{"content":"' + word + b'"}}]}\n\n' for word in (b"a", b"b", b"c")
]


class Streaming:
    """An engine that streams events, as vLLM does; `then` is raised after them."""

    def __init__(self, *events: bytes, status: int = 200, then: Exception | None = None) -> None:
        self.events, self.status, self.then = events, status, then

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await read_all(receive)
        await asyncio.sleep(0.05)
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        for event in self.events:
            await asyncio.sleep(0.02)
            await send({"type": "http.response.body", "body": event, "more_body": True})
        if self.then is not None:
            raise self.then
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def make_logging_gate(folder: Path, engine: Any, **own: Any) -> Gate:
    return make_gate(folder, engine, access_log=folder / "access.jsonl", **own)


def read_lines(folder: Path, count: int = 1) -> list[AccessLine]:
    """Wait for so many lines, and return all that are there, in the form that is documented."""
    path = folder / "access.jsonl"
    wait_until(lambda: path.exists() and len(path.read_bytes().splitlines()) >= count)
    lines = [read_access_line(line) for line in path.read_bytes().splitlines()]
    assert len(lines) == count
    return [line for line in lines if line is not None]


def ask_once(folder: Path, engine: Any, **fields: Any) -> AccessLine:
    with serve(make_logging_gate(folder, engine)) as port:
        answer = httpx.post(f"http://127.0.0.1:{port}{CHAT}", json=HELLO | fields)
        answer.read()
        (line,) = read_lines(folder)
    assert line.id == answer.headers["x-request-id"]
    return line


def test_a_plain_answer_is_one_line_with_its_tokens(tmp_path: Path) -> None:
    line = ask_once(tmp_path, Engine(chunks=(ANSWER,)))
    assert (line.route, line.status, line.ended) == (f"POST {CHAT}", 200, "complete")
    assert (line.prompt_tokens, line.completion_tokens, line.chunks) == (12, 34, None)
    assert (line.key, line.client, line.client_id, line.refused) == (
        "anyone",
        "127.0.0.1",
        None,
        None,
    )
    assert abs(line.at - datetime.now(UTC)) < timedelta(seconds=5)
    assert (line.answer_bytes, line.first_seconds) == (len(ANSWER), None)
    assert line.body_bytes == len(json.dumps(HELLO, separators=(",", ":")))


def test_a_stream_that_asked_for_its_usage_has_its_tokens(tmp_path: Path) -> None:
    last = b'data: {"choices":[],' + USAGE + b"}\n\n"
    line = ask_once(tmp_path, Streaming(*EVENTS, last, b"data: [DONE]\n\n"), stream=True)
    assert (line.prompt_tokens, line.completion_tokens, line.chunks) == (12, 34, 5)
    assert line.first_seconds is not None
    assert 0.05 <= line.first_seconds < line.seconds - 0.05


def test_a_stream_without_usage_has_its_chunks(tmp_path: Path) -> None:
    line = ask_once(tmp_path, Streaming(*EVENTS, b"data: [DONE]\n\n"), stream=True)
    assert (line.prompt_tokens, line.completion_tokens, line.chunks) == (None, None, 4)


def test_what_comes_before_the_first_token_is_not_a_token(tmp_path: Path) -> None:
    early = (b"event: response.created\ndata: {}\n\n", b"event: response.in_progress\ndata: {}\n\n")
    usage = b'"usage":{"input_tokens":5,"output_tokens":7}'
    late = b'event: response.completed\ndata: {"response":{' + usage + b"}}"
    line = ask_once(tmp_path, Streaming(*early, *EVENTS, late), stream=True)
    assert line.first_seconds is not None
    assert line.first_seconds >= 0.05 + 3 * 0.02
    assert (line.prompt_tokens, line.completion_tokens) == (5, 7)


def test_a_refusal_is_a_line_with_a_code(tmp_path: Path) -> None:
    made = make_key(tmp_path / "keys" / "keys.json", "alice", now=datetime.now(UTC), expires=None)
    gate = make_logging_gate(tmp_path, Engine(), keys_file=tmp_path / "keys" / "keys.json")
    key = {"Authorization": f"Bearer {made.secret}"}
    with (
        serve(gate) as port,
        httpx.Client(base_url=f"http://127.0.0.1:{port}") as client,
    ):
        client.post(CHAT, json=HELLO)
        client.post(CHAT, json=HELLO, headers={"Authorization": f"Bearer {SECRET}"})
        client.post(CHAT, json=HELLO | {"n": 1000}, headers=key)
        client.get("/nothing", headers=key)
        client.post(CHAT, json=HELLO, headers=key)
        lines = read_lines(tmp_path, 5)
    assert [(line.status, line.refused, line.field, line.key) for line in lines] == [
        (401, "no_valid_key", None, None),
        (401, "no_valid_key", None, None),
        (400, "bad_request", "n", made.key.id),
        (404, "no_such_route", None, None),
        (200, None, None, made.key.id),
    ]
    written = (tmp_path / "access.jsonl").read_text()
    assert made.secret not in written
    assert SECRET not in written


def test_a_client_that_leaves_within_its_answer_left(tmp_path: Path) -> None:
    engine = Stream()
    with serve(make_logging_gate(tmp_path, engine)) as port:
        with connect(port) as connection:
            connection.sendall(start_post(len(REQUEST_BODY)) + REQUEST_BODY)
            assert b"token" in connection.recv(65536) + connection.recv(65536)
        (line,) = read_lines(tmp_path)
    assert (line.status, line.ended) == (200, "left")


def test_a_client_that_leaves_within_its_body_left(tmp_path: Path) -> None:
    with serve(make_logging_gate(tmp_path, Engine())) as port:
        with connect(port) as connection:
            connection.sendall(start_post(100) + b'{"mod')
            time.sleep(0.1)
        (line,) = read_lines(tmp_path)
    assert (line.status, line.ended, line.body_bytes) == (None, "left", 5)


def test_an_engine_that_fails_is_answered_for_with_an_id(tmp_path: Path) -> None:
    async def fail(scope: Scope, receive: Receive, send: Send) -> None:
        raise ValueError(SECRET)

    line = ask_once(tmp_path, fail)
    assert (line.status, line.ended, line.refused) == (500, "complete", None)


def test_an_engine_that_fails_within_its_answer_cut_it_off(tmp_path: Path) -> None:
    engine = Streaming(*EVENTS, then=ValueError(SECRET))
    with serve(make_logging_gate(tmp_path, engine)) as port:
        with connect(port) as connection:
            connection.sendall(start_post(len(REQUEST_BODY)) + REQUEST_BODY)
            assert status_of(read_to_end(connection)) == 200
        (line,) = read_lines(tmp_path)
    assert (line.status, line.ended, line.chunks) == (200, "failed", 3)


@pytest.mark.parametrize("status", [400, 404, 500])
def test_an_error_of_the_engine_is_its_status(tmp_path: Path, status: int) -> None:
    line = ask_once(tmp_path, Engine(status=status))
    assert (line.status, line.ended, line.refused) == (status, "complete", None)


def test_probes_are_not_lines_but_their_refusals_are(tmp_path: Path) -> None:
    gate = make_logging_gate(
        tmp_path, Engine(), probe_sha256=sha256(b"probe").hexdigest(), host="0.0.0.0"
    )
    with (
        serve(gate) as port,
        httpx.Client(base_url=f"http://127.0.0.1:{port}") as client,
    ):
        probe = {"Authorization": "Bearer probe"}
        for path in ("/livez", "/readyz", "/health"):
            client.get(path)
        client.get("/metrics", headers=probe)
        client.post(CHAT, json=HELLO, headers=probe)
        client.get("/metrics")
        (line,) = read_lines(tmp_path)
    assert (line.route, line.status) == ("GET /metrics", 401)


def test_nothing_that_a_client_writes_breaks_a_line(tmp_path: Path) -> None:
    """Quotes, newlines, terminal escapes: in the path, the id, the model, the forwarded address."""
    evil = '\x1b[2J"}\\n{"status":200,"id":"forged"}'
    targets = [
        '/"}%0a{"status":200}',
        "/%1b[2J%0d%0a" + "x" * 500,
        "/\xff\xfe\x80",
        f"/v1/models?key={SECRET.replace(' ', '+')}",
        "/'$(reboot)`id`'",
    ]
    heads = [
        f"GET {target} HTTP/1.1\r\nHost: e\r\nConnection: close\r\n{header}\r\n\r\n"
        for target in targets
        for header in (
            f"X-Request-Id: {evil[1:]}",
            f"X-Forwarded-For: {evil[1:]}",
            f"traceparent: {evil[1:]}",
            f"User-Agent: {evil[1:]}",
        )
    ]
    with serve(make_logging_gate(tmp_path, Engine()), proxy_headers=True) as port:
        answered = [send_raw(port, head.encode("latin-1")) for head in heads]
        body = HELLO | {"model": evil, "messages": [{"role": "user", "content": SECRET}]}
        httpx.post(f"http://127.0.0.1:{port}{CHAT}", json=body)
        httpx.post(f"http://127.0.0.1:{port}{CHAT}", json=body | {"n": 99, evil: 1})
        reached = sum(b"x-request-id" in answer for answer in answered)
        assert reached >= len(heads) // 2  # the others are not HTTP, says the server itself
        lines = read_lines(tmp_path, reached + 2)
    written = (tmp_path / "access.jsonl").read_bytes()
    assert written.isascii()
    assert all(sign >= 0x20 or sign == 0x0A for sign in written)
    assert max(map(len, written.splitlines())) < 1024
    assert "forged" not in {line.id for line in lines} | {line.client_id for line in lines}
    assert SECRET.encode() not in written
    assert SECRET.replace(" ", "+").encode() not in written
    assert {line.status for line in lines} == {200, 400, 404}


def test_a_path_that_cannot_be_written_fails_no_request(tmp_path: Path) -> None:
    gate = make_gate(tmp_path, Engine(), access_log=tmp_path / "no" / "access.jsonl")
    with serve(gate) as port:
        url = f"http://127.0.0.1:{port}{CHAT}"
        assert {httpx.post(url, json=HELLO).status_code for _ in range(5)} == {200}
