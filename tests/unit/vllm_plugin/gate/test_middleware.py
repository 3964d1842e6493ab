"""What passes the gate passes as it came, at once, and only while the server stays."""

import asyncio
from pathlib import Path

import pytest

from slipstream.serving.messages import Readiness
from slipstream.vllm_plugin.gate.answers import Message, Receive, Scope, Send
from slipstream.vllm_plugin.steering.request_ledger import ROUTES, Tag, read_tag
from tests.unit.vllm_plugin.gate.callers.test_key_ring import new_key
from tests.unit.vllm_plugin.gate.pieces import (
    CHAT,
    Engine,
    ask,
    ask_chat,
    call,
    make_gate,
    make_scope,
    read_error,
)

ODD_BODY = (
    b'  {"model" :"m","messages":[{"role":"user", "content":"\\u00e9 \xc3\xa9 1.50"}],"n":1.0}\n'
)


def post(*bodies: bytes) -> tuple[Scope, list[Message]]:
    """Make a request whose body comes in parts."""
    messages: list[Message] = [
        {"type": "http.request", "body": body, "more_body": True} for body in bodies
    ]
    messages[-1]["more_body"] = False
    return make_scope(CHAT.encode(), method="POST"), messages


def test_a_body_is_given_on_byte_for_byte(tmp_path: Path, engine: Engine) -> None:
    assert ask(make_gate(tmp_path, engine), CHAT, content=ODD_BODY).status_code == 200
    assert engine.bodies == [ODD_BODY]
    assert engine.headers[b"content-length"] == str(len(ODD_BODY)).encode()


def test_a_body_in_parts_is_given_on_whole(tmp_path: Path, engine: Engine) -> None:
    scope, messages = post(ODD_BODY[:7], b"", ODD_BODY[7:])
    asyncio.run(call(make_gate(tmp_path, engine), scope, *messages))
    assert engine.bodies == [ODD_BODY]


def test_after_the_body_the_engine_hears_the_client_leave(tmp_path: Path) -> None:
    heard: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        heard.extend([(await receive())["type"], (await receive())["type"]])

    scope, messages = post(b"{}")
    asyncio.run(call(make_gate(tmp_path, app), scope, *messages))
    assert heard == ["http.request", "http.disconnect"]


def test_a_client_that_leaves_within_its_body_is_let_go(tmp_path: Path, engine: Engine) -> None:
    scope, (message,) = post(b'{"model"')
    message["more_body"] = True
    gate = make_gate(tmp_path, engine)
    assert asyncio.run(call(gate, scope, message)) == []
    assert engine.scopes == []
    assert gate.run.accounting.describe().total == 0


def test_every_part_of_an_answer_is_sent_at_once(tmp_path: Path) -> None:
    """The engine makes the next part only when the client has the one before."""
    arrived: list[bytes] = []
    seen: list[list[bytes]] = []

    async def look() -> None:
        seen.append(list(arrived))

    async def send(message: Message) -> None:
        if message.get("body"):
            arrived.append(message["body"])

    async def stream() -> None:
        gate = make_gate(tmp_path, Engine(chunks=(b"a", b"b", b"c"), before_each=look))
        scope, messages = post(b"{}")

        async def receive() -> Message:
            return messages.pop(0)

        await gate(scope, receive, send)

    asyncio.run(stream())
    assert arrived == [b"a", b"b", b"c"]
    assert seen == [[], [b"a"], [b"a", b"b"]]


def test_an_answer_is_not_touched_but_for_its_id(tmp_path: Path) -> None:
    scope, messages = post(b"{}")
    bare = asyncio.run(call(Engine(), make_scope(CHAT.encode(), method="POST"), *post(b"{}")[1]))
    gated = asyncio.run(call(make_gate(tmp_path, Engine()), scope, *messages))
    assert gated[0]["headers"].pop()[0] == b"x-request-id"
    assert gated == bare


@pytest.mark.parametrize("state", ["draining", "stopping"])
def test_while_it_drains_a_server_takes_nothing_new(tmp_path: Path, state: str) -> None:
    engine = Engine()
    gate = make_gate(tmp_path, engine, retry_after_seconds=7)
    assert ask_chat(gate).status_code == 200
    gate.run.hear(Readiness(state=state, reasons=("stop was asked for",)))
    refused = ask_chat(gate)
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "7")
    assert read_error(refused)
    assert ask(gate, "/v1/models").status_code == 503
    assert ask(gate, "/health").status_code == 200
    assert len(engine.bodies) == 2
    gate.run.hear(Readiness(state="ready"))
    assert ask_chat(gate).status_code == 200


STORY = [{"role": "user", "content": "Tell me a story."}]


def test_a_request_is_tagged_with_its_key_and_kind(tmp_path: Path) -> None:
    file, engine = tmp_path / "keys.json", Engine()
    key, secret = new_key(file)
    gate = make_gate(tmp_path, engine, keys_file=file, tags=True)
    answer = ask_chat(gate, key=secret, messages=STORY)
    tag = read_tag(engine.document["vllm_xargs"])
    assert tag == Tag(answer.headers["x-request-id"], key, "prose", "chat", keep=True)


@pytest.mark.parametrize(
    ("path", "body", "route"),
    [
        ("/v1/completions", {"prompt": "x"}, "completions"),
        ("/v1/messages", {"messages": STORY, "max_tokens": 9}, "messages"),
        ("/v1/responses", {"input": "x"}, "responses"),
    ],
)
def test_every_api_that_generates_is_tagged(
    tmp_path: Path, engine: Engine, path: str, body: dict[str, object], route: str
) -> None:
    ask(make_gate(tmp_path, engine, tags=True), path, json=body | {"model": "m"})
    assert read_tag(engine.document["vllm_xargs"]).route == route
    assert route in ROUTES


def test_a_clients_own_tag_is_refused_and_without_a_ledger_there_is_none(tmp_path: Path) -> None:
    engine = Engine()
    gate = make_gate(tmp_path, engine, tags=True)
    forged = {"slipstream": "id boss code chat"}
    assert ask_chat(gate, vllm_xargs=forged).status_code == 400
    assert engine.bodies == []
    ask_chat(make_gate(tmp_path, engine))
    assert "vllm_xargs" not in engine.document
