"""Every request has an id and one line in the log, whatever its end; never what was said."""

import asyncio
import json
import re
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
from slipstream.vllm_plugin.gate.answers.visits import Visit
from slipstream.vllm_plugin.gate.middleware import Gate
from tests.unit.vllm_plugin.gate.pieces import (
    CHAT,
    HELLO,
    Engine,
    ask,
    make_gate,
    make_scope,
    read_all,
    wait_until,
)
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
    assert (line.key, line.client) == ("anyone", "127.0.0.1")
    assert (line.client_id, line.refused, line.first_seconds) == (None, None, None)
    assert abs(line.at - datetime.now(UTC)) < timedelta(seconds=5)
    assert line.answer_bytes == len(ANSWER)
    assert line.body_bytes == len(json.dumps(HELLO, separators=(",", ":")))


DONE = b"data: [DONE]\n\n"
EARLY = [b"event: response.%s\ndata: {}\n\n" % one for one in (b"created", b"in_progress")]
LATE = b'event: response.completed\n{"usage":{"input_tokens":5,"output_tokens":7}}'


@pytest.mark.parametrize(
    ("events", "tokens", "first_seconds"),
    [
        ([*EVENTS, b'data: {"choices":[],' + USAGE + b"}\n\n", DONE], (12, 34), 0.05),
        ([*EVENTS, DONE], (None, None), 0.05),
        ([*EARLY, *EVENTS, LATE], (5, 7), 0.05 + 3 * 0.02),
    ],
)
def test_a_stream_has_its_chunks_its_first_token_and_the_tokens_that_it_reports(
    tmp_path: Path, events: list[bytes], tokens: tuple[int | None, ...], first_seconds: float
) -> None:
    line = ask_once(tmp_path, Streaming(*events), stream=True)
    assert (line.prompt_tokens, line.completion_tokens) == tokens
    assert line.chunks == len(events)
    assert line.first_seconds is not None
    assert first_seconds <= line.first_seconds < line.seconds - 0.02


def test_a_refusal_is_a_line_with_a_code(tmp_path: Path) -> None:
    made = make_key(tmp_path / "keys" / "keys.json", "alice", now=datetime.now(UTC), expires=None)
    gate = make_logging_gate(tmp_path, Engine(), keys_file=tmp_path / "keys" / "keys.json")
    key = {"Authorization": f"Bearer {made.secret}"}
    with serve(gate) as port, httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
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
    gate = make_logging_gate(tmp_path, Stream())
    read = gate.run.accounting.describe
    with serve(gate) as port:
        with connect(port) as connection:
            connection.sendall(start_post(len(REQUEST_BODY)) + REQUEST_BODY)
            assert b"token" in connection.recv(65536) + connection.recv(65536)
            assert (read().in_flight, read().last_token is None) == (1, False)
        wait_until(lambda: read().in_flight == 0)
        (line,) = read_lines(tmp_path)
    assert (line.status, line.ended, read().total) == (200, "left", 1)


def test_a_client_that_leaves_within_its_body_left(tmp_path: Path) -> None:
    with serve(make_logging_gate(tmp_path, Engine())) as port:
        with connect(port) as connection:
            connection.sendall(start_post(100) + b'{"mod')
            time.sleep(0.1)
        (line,) = read_lines(tmp_path)
    assert (line.status, line.ended, line.body_bytes) == (None, "left", 5)


async def fail(scope: Scope, receive: Receive, send: Send) -> None:
    raise ValueError(SECRET)


@pytest.mark.parametrize(
    ("app", "status"), [(fail, 500), *((Engine(status=one), one) for one in (400, 404, 500))]
)
def test_an_engine_that_fails_is_answered_for_and_its_error_is_its_status(
    tmp_path: Path, app: Any, status: int
) -> None:
    line = ask_once(tmp_path, app)
    assert (line.status, line.ended, line.refused) == (status, "complete", None)


def test_an_engine_that_fails_within_its_answer_cut_it_off(tmp_path: Path) -> None:
    engine = Streaming(*EVENTS, then=ValueError(SECRET))
    with serve(make_logging_gate(tmp_path, engine)) as port:
        with connect(port) as connection:
            connection.sendall(start_post(len(REQUEST_BODY)) + REQUEST_BODY)
            assert status_of(read_to_end(connection)) == 200
        (line,) = read_lines(tmp_path)
    assert (line.status, line.ended, line.chunks) == (200, "failed", 3)


def test_probes_are_not_lines_but_their_refusals_are(tmp_path: Path) -> None:
    hashed = sha256(b"probe").hexdigest()
    gate = make_logging_gate(tmp_path, Engine(), probe_sha256=hashed, host="0.0.0.0")
    with serve(gate) as port, httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
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
        f"GET {target} HTTP/1.1\r\nHost: e\r\nConnection: close\r\n{header}: {evil[1:]}\r\n\r\n"
        for target in targets
        for header in ("X-Request-Id", "X-Forwarded-For", "traceparent", "User-Agent")
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


OURS = re.compile("[0-9a-f]{16}")
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
HARMLESS = ["a", "9f1c2d3e-0000-4abc-8def-000000000001", "Root=1-67891233-abc", "x" * 64, "a.b_c:d"]
ODD = [
    *("", "x" * 65, "a b", 'a"b', "a'b", "a\\nb", "a;b", "<b>", "${jndi:x}", "../a", "10.0.0.1/x"),
    *("\x1b[31mred", "a\tb", "caf\xe9", "a,b", "a%0ab"),
]


@pytest.mark.parametrize("given", HARMLESS)
def test_a_harmless_id_comes_back_and_the_engine_gets_another(tmp_path: Path, given: str) -> None:
    engine = Engine()
    answer = ask(make_gate(tmp_path, engine), json=HELLO, headers={"X-Request-Id": given})
    assert answer.headers.get_list("x-request-id") == [given]
    assert OURS.fullmatch(engine.headers[b"x-request-id"].decode())


@pytest.mark.parametrize("given", ODD)
def test_an_odd_id_is_as_good_as_none(tmp_path: Path, engine: Engine, given: str) -> None:
    head = f"GET /v1/models HTTP/1.1\r\nConnection: close\r\nX-Request-Id: {given}\r\n\r\n"
    with serve(make_gate(tmp_path, engine)) as port:
        answer = send_raw(port, head.encode("latin-1"))
    if b" 400 " not in answer.splitlines()[0]:  # the server itself refuses control characters
        (shown,) = re.findall(rb"x-request-id: ([^\r]*)\r\n", answer)
        assert shown == engine.headers[b"x-request-id"]
        assert OURS.fullmatch(shown.decode())


def test_every_answer_has_an_id_and_no_two_are_the_same(tmp_path: Path) -> None:
    gate = make_gate(tmp_path, Engine())
    answers = [
        *(ask(gate, path) for path in ("/livez", "/readyz", "/health", "/v1/models")),
        *(ask(gate, json=one) for one in (HELLO, HELLO | {"n": 1000})),
        *(ask(gate, content=one) for one in (b"x", b" " * 3_000_000)),
        ask(gate, "/nothing"),
        ask(gate, "/v1/models", headers={"Origin": "https://evil.example"}),
    ]
    assert [answer.status_code for answer in answers] == [
        *(200, 503, 200, 200, 200),
        *(400, 400, 413, 404, 403),
    ]
    ids = [answer.headers["x-request-id"] for answer in answers]
    assert len({*ids}) == len(ids)
    assert all(OURS.fullmatch(one) for one in ids)


def test_two_clients_with_the_same_id_are_two_to_the_engine(tmp_path: Path, engine: Engine) -> None:
    gate = make_gate(tmp_path, engine)
    for _ in range(2):
        answer = ask(gate, json=HELLO, headers={"X-Request-Id": "same"})
        assert answer.headers["x-request-id"] == "same"
    first, second = (dict(scope["headers"])[b"x-request-id"] for scope in engine.scopes)
    assert first != second
    assert b"same" not in (first, second)


def test_the_engines_own_id_header_does_not_come_beside_ours(tmp_path: Path) -> None:
    """vLLM adds one with --enable-request-id-headers."""

    async def engine(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"x-request-id", b"the engine's")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    answer = ask(make_gate(tmp_path, engine), "/v1/models", headers={"X-Request-Id": "mine"})
    assert answer.headers.get_list("x-request-id") == ["mine"]


def test_the_headers_of_a_trace_reach_the_engine(tmp_path: Path, engine: Engine) -> None:
    trace = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01", "tracestate": "vendor=1"}
    ask(make_gate(tmp_path, engine), json=HELLO, headers=trace)
    assert {name: engine.headers[name.encode()].decode() for name in trace} == trace


@pytest.mark.parametrize(
    ("headers", "client_id", "trace_id"),
    [
        ([(b"x-request-id", b"a")], "a", None),
        ([(b"x-request-id", b"a"), (b"x-request-id", b"b")], None, None),
        ([(b"traceparent", f"00-{TRACE}-00f067aa0ba902b7-01".encode())], None, TRACE),
        ([(b"traceparent", b"00-x-y-01")], None, None),
        ([(b"traceparent", f"00-{TRACE}".encode())], None, None),
        ([(b"traceparent", f'00-{TRACE}-"-01'.encode())], None, None),
    ],
)
def test_of_several_ids_none_counts_and_a_trace_has_the_form_of_the_standard(
    headers: list[tuple[bytes, bytes]], client_id: str | None, trace_id: str | None
) -> None:
    visit = Visit(make_scope(b"/", headers=headers))
    assert (visit.client_id, visit.trace_id) == (client_id, trace_id)
