"""Every answer has an id; the engine sees only ours, and a client's is kept if it is harmless."""

import re
from pathlib import Path

import httpx
import pytest

from slipstream.vllm_plugin.gate.answers import Receive, Scope, Send
from slipstream.vllm_plugin.gate.answers.visits import Visit
from tests.unit.vllm_plugin.gate.pieces import CHAT, HELLO, Engine, make_gate, make_scope
from tests.unit.vllm_plugin.gate.test_sockets import send_raw, serve

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
    with serve(make_gate(tmp_path, engine)) as port:
        answer = httpx.post(
            f"http://127.0.0.1:{port}{CHAT}", json=HELLO, headers={"X-Request-Id": given}
        )
    assert answer.headers.get_list("x-request-id") == [given]
    assert OURS.fullmatch(engine.headers[b"x-request-id"].decode())


@pytest.mark.parametrize("given", ODD)
def test_an_odd_id_is_as_good_as_none(tmp_path: Path, engine: Engine, given: str) -> None:
    head = (
        f"GET /v1/models HTTP/1.1\r\nHost: e\r\nConnection: close\r\nX-Request-Id: {given}\r\n\r\n"
    )
    with serve(make_gate(tmp_path, engine)) as port:
        answer = send_raw(port, head.encode("latin-1"))
    if b" 400 " not in answer.splitlines()[0]:  # the server itself refuses control characters
        (shown,) = re.findall(rb"x-request-id: ([^\r]*)\r\n", answer)
        assert shown == engine.headers[b"x-request-id"]
        assert OURS.fullmatch(shown.decode())


def test_every_answer_has_an_id_and_no_two_are_the_same(tmp_path: Path) -> None:
    gate = make_gate(tmp_path, Engine())
    with (
        serve(gate) as port,
        httpx.Client(base_url=f"http://127.0.0.1:{port}") as client,
    ):
        answers = [
            client.get("/livez"),
            client.get("/readyz"),
            client.get("/health"),
            client.get("/v1/models"),
            client.post(CHAT, json=HELLO),
            client.post(CHAT, json=HELLO | {"n": 1000}),
            client.post(CHAT, content=b"x"),
            client.post(CHAT, content=b" " * 3_000_000),
            client.get("/nothing"),
            client.get("/v1/models", headers={"Origin": "https://evil.example"}),
        ]
    assert [answer.status_code for answer in answers] == [
        *(200, 503, 200, 200, 200),
        *(400, 400, 413, 404, 403),
    ]
    ids = [answer.headers["x-request-id"] for answer in answers]
    assert len({*ids}) == len(ids)
    assert all(OURS.fullmatch(one) for one in ids)


def test_two_clients_with_the_same_id_are_two_to_the_engine(tmp_path: Path, engine: Engine) -> None:
    with serve(make_gate(tmp_path, engine)) as port:
        for _ in range(2):
            url, same = f"http://127.0.0.1:{port}{CHAT}", {"X-Request-Id": "same"}
            assert httpx.post(url, json=HELLO, headers=same).headers["x-request-id"] == "same"
    first, second = (dict(scope["headers"])[b"x-request-id"] for scope in engine.scopes)
    assert first != second
    assert b"same" not in (first, second)


def test_the_engines_own_id_header_does_not_come_beside_ours(tmp_path: Path) -> None:
    """vLLM adds one with --enable-request-id-headers."""

    async def engine(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"x-request-id", b"the engine's")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    with serve(make_gate(tmp_path, engine)) as port:
        answer = httpx.get(f"http://127.0.0.1:{port}/v1/models", headers={"X-Request-Id": "mine"})
    assert answer.headers.get_list("x-request-id") == ["mine"]


def test_the_headers_of_a_trace_reach_the_engine(tmp_path: Path, engine: Engine) -> None:
    trace = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01", "tracestate": "vendor=1"}
    with serve(make_gate(tmp_path, engine)) as port:
        httpx.post(f"http://127.0.0.1:{port}{CHAT}", json=HELLO, headers=trace)
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
