"""A request, a key or a kind is answered without drafts, and nobody else's request is."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from slipstream.steering.state import KINDS
from slipstream.vllm_plugin.steering.request_ledger import Tag, read_tag
from tests.unit.vllm_plugin.gate.callers.test_key_ring import keyed_gate
from tests.unit.vllm_plugin.gate.pieces import HELLO, Engine, ask, ask_chat, make_gate, read_error

CODE = [{"role": "user", "content": "Write a Python function that sorts a list."}]
HEADER = "X-Slipstream-Drafts"


def is_plain(engine: Engine) -> bool:
    return read_tag(json.loads(engine.bodies[-1])["vllm_xargs"]).plain


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", HELLO),
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/messages", {"messages": CODE, "max_tokens": 9}),
        ("/v1/responses", {"input": "x"}),
    ],
)
def test_a_request_of_any_api_turns_its_own_drafts_off(
    tmp_path: Path, path: str, body: dict[str, Any]
) -> None:
    engine = Engine()
    gate = make_gate(tmp_path, engine, tags=True)
    for word, plain in (("off", True), ("on", False), ("OFF", True)):
        assert (
            ask(gate, path, json=body | {"model": "m"}, headers={HEADER: word}).status_code == 200
        )
        assert is_plain(engine) is plain
        ask(gate, path, json=body | {"model": "m"})
        assert not is_plain(engine)


@pytest.mark.parametrize("word", ["plain", "", "off on", "- plain", "0"])
def test_another_word_is_refused(tmp_path: Path, word: str) -> None:
    engine = Engine()
    refused = ask(make_gate(tmp_path, engine, tags=True), json=HELLO, headers={HEADER: word})
    assert refused.status_code == 400
    assert HEADER in read_error(refused)
    assert engine.bodies == []


def test_a_key_and_a_kind_are_answered_plainly(tmp_path: Path) -> None:
    engine = Engine()
    gate, (plain, usual) = keyed_gate(
        tmp_path, engine, {"drafts": "off"}, {}, tags=True, plain_kinds=("code",)
    )
    ask_chat(gate, key=plain)
    assert is_plain(engine)
    # A client cannot turn on what its operator turned off.
    ask(gate, key=plain, json=HELLO, headers={HEADER: "on"})
    assert is_plain(engine)
    ask_chat(gate, key=usual)
    assert not is_plain(engine)
    ask_chat(gate, key=usual, messages=CODE)
    assert is_plain(engine)


def test_the_supervisor_proves_drafts_whatever_their_kind(tmp_path: Path) -> None:
    engine, digest = Engine(), hashlib.sha256(b"probe").hexdigest()
    gate = make_gate(tmp_path, engine, tags=True, plain_kinds=KINDS, probe_sha256=digest)
    body = {"model": "m", "prompt": "Hello.", "max_tokens": 8}
    assert ask(gate, "/v1/completions", key="probe", json=body).status_code == 200
    assert not is_plain(engine)
    assert ask(gate, "/v1/completions", json=body).status_code == 200
    assert is_plain(engine)


def test_a_client_cannot_write_a_tag_for_anybody(tmp_path: Path) -> None:
    engine = Engine()
    gate = make_gate(tmp_path, engine, tags=True)
    forged = {"slipstream": "id boss code chat plain"}
    assert ask_chat(gate, vllm_xargs=forged).status_code == 400
    asked = {"X-Request-Id": "a b code chat plain"}
    assert ask(gate, json=HELLO, headers=asked).status_code == 200
    assert not is_plain(engine)


@pytest.mark.parametrize(
    ("text", "tag"),
    [
        ("i k code chat", Tag("i", "k", "code", "chat")),
        ("i k code chat -", Tag("i", "k", "code", "chat")),
        ("i k code chat plain", Tag("i", "k", "code", "chat", plain=True)),
        ("i - code chat plainly", Tag("i", None, "code", "chat")),
        ("i k code chat - keep", Tag("i", "k", "code", "chat", keep=True)),
        ("i k code chat plain keeper", Tag("i", "k", "code", "chat", plain=True)),
        ("i k code chat plain keep keep", Tag()),
        ("i k code", Tag()),
        ("i k code chat pl\u00e4in", Tag()),
        (7, Tag()),
    ],
)
def test_the_core_reads_six_words_or_as_few_as_four(text: object, tag: Tag) -> None:
    assert read_tag({"slipstream": text}) == tag


def test_a_key_and_the_supervisor_are_not_kept_to_learn_from(tmp_path: Path) -> None:
    engine, digest = Engine(), hashlib.sha256(b"probe").hexdigest()
    gate, (private, usual) = keyed_gate(
        tmp_path, engine, {"learning": "off"}, {}, tags=True, probe_sha256=digest
    )
    body = {"model": "m", "prompt": "Hello.", "max_tokens": 8}
    kept = []
    for key in (private, usual, "probe"):
        assert ask(gate, "/v1/completions", key=key, json=body).status_code == 200
        kept.append(read_tag(json.loads(engine.bodies[-1])["vllm_xargs"]).keep)
    assert kept == [False, True, False]
