"""Only the listed paths reach the engine, byte for byte, however a path is written."""

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from slipstream.serving.messages import Readiness
from slipstream.vllm_plugin.gate.answers import Receive, Scope, Send
from tests.unit.vllm_plugin.gate.pieces import (
    CHAT,
    HELLO,
    LOCAL,
    REMOTE,
    Engine,
    ask,
    call,
    make_gate,
    make_scope,
    read_error,
)

OTHER_ROUTES = {
    "POST": (
        *("/invocations", "/inference/v1/generate", "/v1/chat/completions/batch", "/tokenize"),
        *("/v1/completions/render", "/v1/load_lora_adapter", "/generative_scoring", "/v1/models"),
        *("/scale_elastic_ep", "/collective_rpc", "/v1/embeddings", "/v1/responses/render"),
        *("/v1/responses/resp_1", "/v1/responses/resp_1/cancel/", "/update_weights"),
        *("/init_weight_transfer_engine", "/start_weight_update", "/start_draft_weight_update"),
        *("/finish_weight_update", "/pause", "/resume"),
    ),
    "GET": (
        *("/v1/responses", "/v1/responses/1", "/v1/responses/resp_", "/v1/responses/resp_%2e"),
        *("/v1/responses/{id}", f"/v1/responses/resp_{'a' * 81}", "/v1/responses/resp_1/cancel"),
        *("/openapi.json", "/docs", "/version", "/load", "/ping", "/", CHAT),
    ),
    "OPTIONS": (CHAT,),
    "DELETE": ("/v1/models", "/v1/responses/resp_1"),
}
TRICKS = [
    *("/%76%31/models", "/v1%2fmodels", "/v1/model%73", "//v1/models", "/v1//models", "/V1/models"),
    *("/v1/MODELS", "/v1/models/", "/v1/models/.", "/v1/./models", "/v1/../v1/models"),
    *("/v1/models;a=b", "/v1/models%3f", "/v1/models%00", "/v1/models\\", "/v1/models%20"),
    *("v1/models", ""),
]


@pytest.mark.parametrize(
    ("method", "path"), [(method, path) for method, paths in OTHER_ROUTES.items() for path in paths]
)
def test_every_other_route_is_not_there(tmp_path: Path, method: str, path: str) -> None:
    engine = Engine()
    answer = ask(make_gate(tmp_path, engine), path, method=method, json=HELLO)
    assert answer.status_code == 404
    assert read_error(answer)
    assert engine.scopes == []


@pytest.mark.parametrize(
    "route",
    [
        *(f"POST {CHAT}", "POST /v1/completions", "POST /v1/responses", "POST /v1/messages"),
        *("GET /v1/responses/resp_1", "POST /v1/responses/resp_1/cancel", "GET /v1/models"),
        "POST /v1/messages/count_tokens",
    ],
)
def test_the_allowed_routes_reach_the_engine(tmp_path: Path, engine: Engine, route: str) -> None:
    method, path = route.split()
    answer = ask(make_gate(tmp_path, engine), path, method=method, json=HELLO)
    assert (answer.status_code, answer.json()) == (200, {"answer": 42})
    assert engine.paths == [path]


def test_more_routes_can_be_allowed(tmp_path: Path, engine: Engine) -> None:
    gate = make_gate(tmp_path, engine, routes=("POST /tokenize",))
    assert ask(gate, "/tokenize", json={"prompt": "x"}).status_code == 200
    assert ask(gate, CHAT, json=HELLO).status_code == 404
    assert engine.paths == ["/tokenize"]


@pytest.mark.parametrize("path", TRICKS)
def test_a_path_that_only_resembles_an_allowed_one_is_refused(tmp_path: Path, path: str) -> None:
    engine = Engine()
    scope = make_scope(path.encode(), path="/v1/models")
    start, _ = asyncio.run(call(make_gate(tmp_path, engine), scope))
    assert start["status"] == 404
    assert engine.scopes == []


PIECES = (
    *("/", "//", "v1", "V1", "%76%31", "models", "chat", "completions", "invocations", "metrics"),
    *("%2f", "%2e%2e", "..", ".", ";", "?", "#", "%00", "\\", "@", ":", " ", "health", "livez"),
)
PATHS = st.lists(st.sampled_from(PIECES)).map("".join) | st.text(max_size=20)


@given(raw=PATHS, method=st.text())
@example(raw="/v1/models", method="get")
@example(raw="/v1/models?/invocations", method="POST")
@example(raw="/metrics", method="HEAD")
def test_whatever_the_path_the_engine_sees_an_allowed_one(
    tmp_path_factory: pytest.TempPathFactory, raw: str, method: str
) -> None:
    engine = Engine()
    gate = make_gate(tmp_path_factory.getbasetemp(), engine)
    for name in ("GET", method):
        scope = make_scope(raw.encode(), method=name, root_path="/v1", path="/invocations")
        asyncio.run(call(gate, scope))
    allowed = {"/v1/models", "/metrics", "/health"}
    assert {*engine.paths} <= ({raw.partition("?")[0]} & allowed)
    assert all(scope["method"] == "GET" for scope in engine.scopes)


def test_the_engine_routes_by_the_path_that_was_judged(tmp_path: Path, engine: Engine) -> None:
    scope = make_scope(b"/v1/models?q=1", path="/invocations", root_path="/v1", headers=[])
    asyncio.run(call(make_gate(tmp_path, engine), scope))
    (seen,) = engine.scopes
    assert (seen["path"], seen["raw_path"], seen["root_path"]) == ("/v1/models", b"/v1/models", "")


def test_a_server_that_hides_the_raw_path_gets_nothing(tmp_path: Path, engine: Engine) -> None:
    scope = {**make_scope(b"/v1/models"), "raw_path": None}
    start, _ = asyncio.run(call(make_gate(tmp_path, engine), scope))
    assert (start["status"], engine.scopes) == (404, [])


def test_the_host_header_has_no_say(tmp_path: Path, engine: Engine) -> None:
    gate = make_gate(tmp_path, engine)
    hosts = ["engine/v1/models?", "127.0.0.1/v1/models#", "evil.example"]
    statuses = [ask(gate, "/invocations", headers={"host": host}).status_code for host in hosts]
    assert statuses == [404, 404, 404]
    assert ask(gate, "/v1/models", headers={"host": "/invocations"}).status_code == 200
    assert engine.paths == ["/v1/models"]


def test_a_web_socket_is_closed(tmp_path: Path, engine: Engine) -> None:
    scope = {**make_scope(b"/v1/models"), "type": "websocket"}
    sent = asyncio.run(call(make_gate(tmp_path, engine), scope, {"type": "websocket.connect"}))
    assert sent == [{"type": "websocket.close", "code": 1008}]
    assert engine.scopes == []


def test_the_life_of_the_app_is_the_apps_own(tmp_path: Path) -> None:
    seen: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append((await receive())["type"])
        await send({"type": "lifespan.startup.complete"})

    gate = make_gate(tmp_path, app)
    config = SimpleNamespace(http_protocol_class=HttpToolsProtocol)
    server = SimpleNamespace(state=SimpleNamespace(server=SimpleNamespace(config=config)))
    scope = {"type": "lifespan", "app": server}
    sent = asyncio.run(call(gate, scope, {"type": "lifespan.startup"}))
    assert (seen, sent) == (["lifespan.startup"], [{"type": "lifespan.startup.complete"}])


def test_the_process_lives_whatever_its_state(tmp_path: Path, engine: Engine) -> None:
    gate = make_gate(tmp_path, engine, host="0.0.0.0")
    answer = ask(gate, "/livez", client=REMOTE)
    assert (answer.status_code, answer.json()) == (200, {"state": "alive"})
    assert ask(gate, "/livez", method="HEAD").status_code == 200
    assert engine.scopes == []


@pytest.mark.parametrize(
    ("told", "status"),
    [
        (Readiness(state="ready"), 200),
        (Readiness(state="warming", reasons=("2 of 3 requests",)), 503),
        (Readiness(state="draining", reasons=("stop",)), 503),
    ],
)
def test_readiness_is_what_the_supervisor_says(
    tmp_path: Path, told: Readiness, status: int
) -> None:
    gate = make_gate(tmp_path, Engine(), host="0.0.0.0")
    gate.run.hear(told)
    answer = ask(gate, "/readyz", client=REMOTE)
    shown = {"state": told.state, "reasons": list(told.reasons)}
    assert (answer.status_code, answer.json()) == (status, shown)


def test_without_a_word_of_the_supervisor_nothing_is_ready(tmp_path: Path) -> None:
    answer = ask(make_gate(tmp_path, Engine()), "/readyz")
    assert (answer.status_code, answer.json()["state"]) == (503, "unknown")


@pytest.mark.parametrize(
    "client", [LOCAL, ("127.8.0.9", 1), ("::1", 1), ("::ffff:127.0.0.1", 1), None]
)
def test_programs_of_this_machine_read_the_metrics(
    tmp_path: Path, engine: Engine, client: tuple[str, int] | None
) -> None:
    scope = make_scope(b"/metrics", client=client)
    start, *_ = asyncio.run(call(make_gate(tmp_path, engine), scope))
    assert (start["status"], engine.paths) == (200, ["/metrics"])


FORWARDED = ("x-forwarded-for", "forwarded", "via", "x-real-ip", "x-client-ip", "x-forwarded-host")
ELSEWHERE = [
    *((client, {}) for client in (REMOTE, ("::2", 1), ("::ffff:192.0.2.7", 1), ("what", 1))),
    *((LOCAL, {name: "127.0.0.1"}) for name in FORWARDED),
]


@pytest.mark.parametrize(("client", "headers"), ELSEWHERE)
def test_other_machines_and_what_a_proxy_passes_on_do_not(
    tmp_path: Path, engine: Engine, client: tuple[str, int], headers: dict[str, str]
) -> None:
    gate = make_gate(tmp_path, engine, host="0.0.0.0")
    for path in ("/metrics", "/health"):
        assert ask(gate, path, client=client, headers=headers).status_code == 401
    assert engine.scopes == []
