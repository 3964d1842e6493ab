"""Callers do not see each other's cache, nor take each other's place; the supervisor is one."""

import asyncio
import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from slipstream.serving.access.gate_file import KeyDefaults
from slipstream.serving.messages import Readiness
from slipstream.vllm_plugin.gate import settings as gate_settings
from slipstream.vllm_plugin.gate.callers.key_ring import PROBE_SCHEMA
from tests.unit.vllm_plugin.gate.callers.test_key_ring import keyed_gate, new_key
from tests.unit.vllm_plugin.gate.pieces import (
    CHAT,
    HELLO,
    REMOTE,
    Engine,
    ask,
    ask_async,
    ask_chat,
    make_gate,
)

PROBE_SHA256 = sha256(b"probe").hexdigest()
PROBE = {"model": "m", "prompt": "Once", "max_tokens": 1}


@pytest.fixture(autouse=True)
def _look_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_settings, "LOOK_EVERY_SECONDS", 0.0)


def test_several_keys_have_prefix_caches_of_their_own(tmp_path: Path) -> None:
    file, engine = tmp_path / "keys.json", Engine()
    keys = [new_key(file)[1]]
    gate = make_gate(tmp_path, engine, keys_file=file)
    ask_chat(gate, key=keys[0])
    assert "cache_salt" not in json.loads(engine.bodies.pop())
    keys.append(new_key(file)[1])
    for key in (keys[0], keys[0], keys[1]):
        ask_chat(gate, key=key)
    documents: list[dict[str, Any]] = [json.loads(body) for body in engine.bodies]
    salts = [document.pop("cache_salt") for document in documents]
    assert documents == [HELLO] * 3
    assert salts[0] == salts[1] != salts[2]
    assert all(len(salt) == 64 and salt.isalnum() for salt in salts)
    assert all(key not in str(salts) and key not in file.read_text() for key in keys)
    lengths = [int(dict(scope["headers"])[b"content-length"]) for scope in engine.scopes[1:]]
    assert lengths == [len(body) for body in engine.bodies]


@pytest.mark.parametrize(
    "body", [b'{"cache_salt": null}\n', b'{"cache_salt": "x", "cache_salt": null}']
)
def test_a_key_cannot_leave_its_prefix_cache(tmp_path: Path, body: bytes) -> None:
    engine = Engine()
    gate, (secret, _) = keyed_gate(tmp_path, engine, {}, {})
    ask(gate, CHAT, key=secret, content=body)
    assert len(engine.document["cache_salt"]) == 64


def test_a_salt_of_the_caller_parts_its_cache_and_never_joins_anothers(tmp_path: Path) -> None:
    engine = Engine()
    gate, (one, other) = keyed_gate(tmp_path, engine, {}, {})
    for key, salt in ((one, None), (one, 'a"b'), (other, None), (other, 'a"b')):
        ask_chat(gate, key=key, cache_salt=salt)
    plain, salted, others, others_salted = (
        json.loads(body)["cache_salt"] for body in engine.bodies
    )
    assert (salted, others_salted) == (f'{plain}a"b', f'{others}a"b')
    ask_chat(gate, key=one, cache_salt=others)
    assert json.loads(engine.bodies[-1])["cache_salt"] == plain + others
    assert len({plain, others, salted, others_salted}) == 4


def test_a_key_has_a_limit_of_requests_at_once(tmp_path: Path) -> None:
    async def ask_three_times() -> list[tuple[int, str | None]]:
        held = asyncio.Event()
        slow, keys = Engine(before_each=held.wait), KeyDefaults(requests_at_once=2)
        gate, (one, other) = keyed_gate(tmp_path, slow, {}, {}, keys=keys)
        kept = [asyncio.create_task(ask_async(gate, key=one, json=HELLO)) for _ in range(2)]
        await asyncio.sleep(0.05)
        refused = await ask_async(gate, key=one, json=HELLO)
        free = asyncio.create_task(ask_async(gate, key=other, json=HELLO))
        await asyncio.sleep(0.05)
        held.set()
        after = [await task for task in (*kept, free)]
        after.append(await ask_async(gate, key=one, json=HELLO))
        return [(one.status_code, one.headers.get("retry-after")) for one in (refused, *after)]

    refused, *after = asyncio.run(ask_three_times())
    assert refused == (429, "5")
    assert after == [(200, None)] * 4


def test_an_open_gate_has_no_such_limit(tmp_path: Path) -> None:
    async def ask_many() -> list[int]:
        gate = make_gate(tmp_path, Engine(), keys=KeyDefaults(requests_at_once=1))
        answers = await asyncio.gather(*(ask_async(gate, json=HELLO) for _ in range(5)))
        return [answer.status_code for answer in answers]

    assert asyncio.run(ask_many()) == [200] * 5


def test_the_supervisor_has_a_key_of_its_own(tmp_path: Path) -> None:
    gate, (secret,) = keyed_gate(tmp_path, Engine(), probe_sha256=PROBE_SHA256)
    gate.run.hear(Readiness(state="draining"))
    assert ask(gate, "/v1/completions", key="probe", json=PROBE).status_code == 200
    assert ask_chat(gate, key=secret).status_code == 503
    assert ask_chat(gate, key="other").status_code == 401


@pytest.mark.parametrize(
    ("path", "fields", "status"),
    [
        ("/v1/completions", {}, 200),
        ("/v1/completions", {"max_tokens": 64, "temperature": 0.8, "top_p": 0.9, "seed": 1}, 200),
        ("/v1/completions", {"max_tokens": 65}, 400),
        ("/v1/completions", {"max_tokens": None}, 403),
        ("/v1/completions", {"max_tokens": True, "n": 8}, 403),
        ("/v1/completions", {"stream": True}, 403),
        ("/v1/completions", {"structured_outputs": {"json": PROBE_SCHEMA}}, 200),
        ("/v1/completions", {"structured_outputs": {"json": {}}}, 403),
        ("/v1/completions", {"structured_outputs": {"regex": "a"}}, 403),
        ("/v1/completions", {"prompt": ["a", "b"]}, 403),
        ("/v1/completions", {"prompt": "x" * 2**14}, 403),
        (CHAT, HELLO, 403),
        ("/v1/models", None, 403),
        ("/metrics", None, 200),
        ("/health", None, 200),
        ("/v1/embeddings", {}, 404),
    ],
)
def test_the_supervisors_key_does_what_a_probe_does_and_no_more(
    tmp_path: Path, path: str, fields: dict[str, Any] | None, status: int
) -> None:
    engine = Engine()
    gate, _ = keyed_gate(tmp_path, engine, probe_sha256=PROBE_SHA256)
    content = {} if fields is None else {"json": PROBE | fields}
    assert ask(gate, path, key="probe", client=REMOTE, **content).status_code == status
    assert len(engine.scopes) == (status == 200)


def test_the_supervisors_key_has_a_limit_of_its_own(tmp_path: Path) -> None:
    async def ask_many() -> list[int]:
        held = asyncio.Event()
        slow, path = Engine(before_each=held.wait), "/v1/completions"
        gate = make_gate(tmp_path, slow, probe_sha256=PROBE_SHA256)
        asked = [
            asyncio.create_task(ask_async(gate, path, key="probe", json=PROBE)) for _ in range(6)
        ]
        await asyncio.sleep(0.1)
        held.set()
        return sorted([(await task).status_code for task in asked])

    assert asyncio.run(ask_many()) == [200] * 4 + [429] * 2
