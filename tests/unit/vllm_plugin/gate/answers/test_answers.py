"""Errors have the form of their API, and the list of models has names only."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from slipstream.serving.messages import Readiness
from slipstream.vllm_plugin.gate.answers import Receive, Scope, Send
from tests.unit.vllm_plugin.gate.callers.test_key_ring import keyed_gate
from tests.unit.vllm_plugin.gate.pieces import HELLO, REMOTE, Engine, ask, make_gate

MESSAGES = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
ASKED = {**HELLO, "max_tokens": 5}


def read_kind(answer: httpx.Response) -> str:
    """Return the kind of an error, which must have Anthropic's form."""
    document = answer.json()
    assert document.keys() == {"type", "error"}
    assert document["type"] == "error"
    assert document["error"].keys() == {"type", "message"}
    return str(document["error"]["type"])


@pytest.mark.parametrize("path", [MESSAGES, COUNT])
@pytest.mark.parametrize(
    ("status", "kind", "settings", "content"),
    [
        (401, "authentication_error", {"host": "0.0.0.0"}, {"json": ASKED}),
        (400, "invalid_request_error", {}, {"content": b"{"}),
        (413, "request_too_large", {"limits": {"body_bytes": 9}}, {"json": ASKED}),
        (404, "not_found_error", {"routes": ("GET /v1/models",)}, {"json": ASKED}),
    ],
)
def test_a_refusal_has_anthropics_form(
    tmp_path: Path, path: str, status: int, kind: str, settings: dict[str, Any], content: Any
) -> None:
    engine = Engine()
    answer = ask(make_gate(tmp_path, engine, **settings), path, client=REMOTE, **content)
    assert (answer.status_code, read_kind(answer)) == (status, kind)
    assert engine.scopes == []


def test_a_server_that_is_about_to_stop_is_overloaded(tmp_path: Path) -> None:
    gate = make_gate(tmp_path, Engine())
    gate.run.hear(Readiness(state="draining"))
    answer = ask(gate, MESSAGES, json=ASKED)
    assert (answer.status_code, read_kind(answer)) == (503, "overloaded_error")
    assert answer.headers["retry-after"] == "5"


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (404, "not_found_error"),
        (422, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (502, "api_error"),
        (503, "overloaded_error"),
    ],
)
@pytest.mark.parametrize(
    "said",
    [
        {"error": {"message": "no", "type": "BadRequestError", "param": None, "code": 400}},
        {"type": "error", "error": {"type": "NotFoundError", "message": "no"}},
    ],
)
def test_an_error_of_the_engine_has_it_too(
    tmp_path: Path, status: int, kind: str, said: dict[str, Any]
) -> None:
    body = json.dumps(said).encode()
    engine = Engine(status=status, chunks=(body[:9], body[9:]))
    answer = ask(make_gate(tmp_path, engine), MESSAGES, json=ASKED)
    assert (answer.status_code, read_kind(answer)) == (status, kind)
    assert answer.json()["error"]["message"] == "no"
    assert int(answer.headers["content-length"]) == len(answer.content)


@pytest.mark.parametrize("said", [b"Internal Server Error", b"", b'{"detail": 3}', b"[" * 10**5])
def test_even_if_it_has_no_form_at_all(tmp_path: Path, said: bytes) -> None:
    answer = ask(make_gate(tmp_path, Engine(500, (said,))), MESSAGES, json=ASKED)
    assert (answer.status_code, read_kind(answer)) == (500, "api_error")
    assert answer.json()["error"]["message"]


def test_an_error_within_a_stream_has_a_kind_that_clients_know(tmp_path: Path) -> None:
    said = b'event: %s\ndata: {"type":"error","error":{"type":"internal_error"}}\n\n'
    engine = Engine(chunks=(said % b"ping", said % b"error"))
    answer = ask(make_gate(tmp_path, engine), MESSAGES, json=ASKED)
    changed = (said % b"error").replace(b"internal_error", b"api_error")
    assert answer.content == said % b"ping" + changed


def test_other_apis_errors_pass_as_the_engine_wrote_them(tmp_path: Path) -> None:
    said = b'{"error": {"message": "no", "type": "BadRequestError"}}'
    answer = ask(make_gate(tmp_path, Engine(400, (said,))), json=HELLO)
    assert (answer.status_code, answer.content) == (400, said)


def test_what_makes_no_tokens_waits_for_no_seat_and_costs_none(tmp_path: Path) -> None:
    gate, (secret,) = keyed_gate(tmp_path, Engine(), {"tokens_per_minute": 50}, seats=1)
    statuses = [ask(gate, COUNT, key=secret, json=HELLO).status_code for _ in range(3)]
    assert statuses == [200, 200, 200]


LISTED = {
    "object": "list",
    "data": [
        {"id": name, "root": f"/home/someone/models/{name}", "max_model_len": 512}
        for name in ("one", "two")
    ],
}


@pytest.mark.parametrize(("models", "shown"), [(None, ["one", "two"]), (("two",), ["two"])])
def test_models_are_listed_by_name_and_not_by_their_folder(
    tmp_path: Path, models: tuple[str, ...] | None, shown: list[str]
) -> None:
    listed = json.dumps(LISTED).encode()
    engine = Engine(chunks=(listed[:20], listed[20:]))
    gate, (key,) = keyed_gate(tmp_path, engine, {"models": models})
    answer = ask(gate, "/v1/models", key=key)
    assert "/home" not in answer.text
    assert [(one["id"], one["root"]) for one in answer.json()["data"]] == [
        (name, name) for name in shown
    ]
    assert answer.json()["data"][0]["max_model_len"] == 512


@pytest.mark.parametrize("body", [b"", b"no list", b'{"data": 3}', b"x" * 3 * 2**20])
def test_what_is_no_list_of_models_passes(tmp_path: Path, body: bytes) -> None:
    chunks = tuple(body[start : start + 2**19] for start in range(0, len(body), 2**19))
    gate = make_gate(tmp_path, Engine(chunks=chunks))
    assert ask(gate, "/v1/models").content == body
    gate = make_gate(tmp_path, Engine(status=500, chunks=(json.dumps(LISTED).encode(),)))
    assert ask(gate, "/v1/models").json() == LISTED


def test_a_list_of_models_keeps_its_length(tmp_path: Path) -> None:
    body = json.dumps(LISTED).encode()

    async def engine(scope: Scope, receive: Receive, send: Send) -> None:
        length = (b"content-length", str(len(body)).encode())
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        await send({"type": "http.response.body", "body": body})

    answer = ask(make_gate(tmp_path, engine), "/v1/models")
    assert int(answer.headers["content-length"]) == len(answer.content) < len(body)
