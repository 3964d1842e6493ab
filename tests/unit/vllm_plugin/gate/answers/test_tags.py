"""What the gate tells the engine's ledger of a request, which no client can write itself."""

from pathlib import Path

import pytest

from slipstream.vllm_plugin.steering.request_ledger import ROUTES, read_tag
from tests.unit.vllm_plugin.gate.callers.test_key_ring import new_key
from tests.unit.vllm_plugin.gate.pieces import Engine, ask, ask_chat, make_gate

STORY = [{"role": "user", "content": "Tell me a story."}]


def test_a_request_is_tagged_with_its_key_and_kind(tmp_path: Path) -> None:
    file, engine = tmp_path / "keys.json", Engine()
    key, secret = new_key(file)
    gate = make_gate(tmp_path, engine, keys_file=file, tags=True)
    answer = ask_chat(gate, key=secret, messages=STORY)
    tag = read_tag(engine.document["vllm_xargs"])
    assert (tag.id, tag.key) == (answer.headers["x-request-id"], key)
    assert (tag.kind, tag.route) == ("prose", "chat")


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
