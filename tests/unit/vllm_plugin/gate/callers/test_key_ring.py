"""Callers are told by their keys, do not share caches or places, and the supervisor is one."""

import asyncio
import hmac
import json
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from slipstream.serving.access.gate_file import KeyDefaults
from slipstream.serving.access.keys import KeyTerms, make_key, revoke_key, rotate_key
from slipstream.serving.messages import Readiness
from slipstream.serving.supervision.generation import _KINDS
from slipstream.vllm_plugin.gate import settings as gate_settings
from slipstream.vllm_plugin.gate.answers import Refusal
from slipstream.vllm_plugin.gate.callers import key_ring
from slipstream.vllm_plugin.gate.callers.key_ring import PROBE_SCHEMA, KeyRing
from slipstream.vllm_plugin.gate.middleware import Gate
from tests.unit.vllm_plugin.gate.pieces import (
    CHAT,
    HELLO,
    LOCAL,
    REMOTE,
    Engine,
    ask,
    ask_async,
    ask_chat,
    make_gate,
    read_error,
)

NOW = datetime(2026, 11, 15, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _look_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_settings, "LOOK_EVERY_SECONDS", 0.0)


def new_key(file: Path, expires: datetime | None = None, **terms: Any) -> tuple[str, str]:
    made = make_key(file, "someone", now=NOW, expires=expires, terms=KeyTerms(**terms))
    return made.key.id, made.secret


def keyed_gate(
    folder: Path, app: Any, *terms: dict[str, Any], **own: Any
) -> tuple[Gate, list[str]]:
    """Make a gate and a key for each of the terms, one if there are none."""
    secrets = [new_key(folder / "keys.json", **one)[1] for one in terms or ({},)]
    return make_gate(folder, app, keys_file=folder / "keys.json", **own), secrets


def test_with_a_key_file_a_key_is_needed_even_here(tmp_path: Path) -> None:
    engine = Engine()
    gate, (secret,) = keyed_gate(tmp_path, engine)
    without = ask(gate, "/v1/models")
    assert (without.status_code, without.headers["www-authenticate"]) == (401, "Bearer")
    assert read_error(without)
    assert ask(gate, "/v1/models", key=secret).status_code == 200
    assert len(engine.scopes) == 1


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer {}"},
        {"authorization": "bearer  {}"},
        {"x-api-key": "{}"},
        {"authorization": "Basic abc", "x-api-key": "{}"},
        {"authorization": "Bearer ", "x-api-key": "{}"},
        {"authorization": "Bearer sk-ant-other", "x-api-key": "{}"},
        {"authorization": "Bearer {}", "x-api-key": "sk-ant-other"},
    ],
)
def test_a_key_is_given_in_either_header(tmp_path: Path, headers: dict[str, str]) -> None:
    gate, (secret,) = keyed_gate(tmp_path, Engine())
    sent = {name: value.format(secret) for name, value in headers.items()}
    assert ask(gate, "/v1/models", headers=sent).status_code == 200


def test_of_two_valid_keys_the_bearers_counts(tmp_path: Path) -> None:
    only = ({"routes": ("chat",)}, {"routes": ("models",)})
    gate, (chatting, listing) = keyed_gate(tmp_path, Engine(), *only)
    both = {"x-api-key": listing}
    assert ask(gate, "/v1/models", key=chatting, headers=both).status_code == 403
    assert ask(gate, CHAT, key=chatting, headers=both, json=HELLO).status_code == 200


def test_what_is_no_key_opens_nothing(tmp_path: Path, engine: Engine) -> None:
    identity, secret = new_key(tmp_path / "keys.json")
    gate = make_gate(tmp_path, engine, keys_file=tmp_path / "keys.json")
    digest = sha256(secret.encode()).hexdigest()
    for wrong in (secret[:-1], secret + "x", secret.swapcase(), digest, identity, "", "EMPTY"):
        assert ask(gate, "/v1/models", headers={"x-api-key": wrong}).status_code == 401
    assert ask(gate, "/v1/models", headers={"authorization": secret}).status_code == 401
    assert ask(gate, f"/v1/models?api_key={secret}").status_code == 401
    assert engine.scopes == []


def test_the_key_stays_at_the_gate(tmp_path: Path, engine: Engine) -> None:
    gate, (secret,) = keyed_gate(tmp_path, engine)
    ask_chat(gate, key=secret)
    assert secret.encode() not in repr(engine.scopes).encode() + b"".join(engine.bodies)


@pytest.mark.parametrize("client", [LOCAL, REMOTE])
def test_where_there_are_keys_the_metrics_need_one_that_is_for_them(
    tmp_path: Path, client: tuple[str, int]
) -> None:
    """A proxy on this machine passes strangers on, and need not say so in any header."""
    engine = Engine()
    gate, (ordinary, scraper) = keyed_gate(tmp_path, engine, {}, {"routes": ("metrics",)})
    statuses = [
        ask(gate, "/metrics", client=client, key=key).status_code
        for key in (None, ordinary, scraper)
    ]
    assert statuses == [401, 403, 200]
    assert ask_chat(gate, key=scraper).status_code == 403
    assert engine.paths == ["/metrics"]
    assert ask(gate, "/health").status_code == 200


def test_keys_that_were_required_are_required_after_their_file_is_gone(tmp_path: Path) -> None:
    file, engine = tmp_path / "keys.json", Engine()
    _, secret = new_key(file)
    file.unlink()
    gate = make_gate(tmp_path, engine, keys_file=file, keys_required=True)
    assert [ask_chat(gate, key=key).status_code for key in (None, secret)] == [401, 401]
    assert ask(gate, "/metrics").status_code == 401
    assert engine.scopes == []


def test_a_rotated_key_counts_beside_its_successor_for_a_while(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    identity, old = new_key(file, routes=("chat",), weight=3)
    new = rotate_key(file, identity, now=NOW, overlap=timedelta(hours=1)).secret
    settings = make_gate(tmp_path, Engine(), keys_file=file).settings
    rings = [
        KeyRing(settings, clock=(NOW + timedelta(minutes=minutes)).timestamp)
        for minutes in (59, 60)
    ]
    callers = [ring.require_caller({b"x-api-key": new.encode()}) for ring in rings]
    callers.append(rings[0].require_caller({b"x-api-key": old.encode()}))
    assert {caller.id for caller in callers} == {identity}
    assert {caller.terms.weight for caller in callers} == {3}
    assert {caller.others for caller in callers} == {0}
    with pytest.raises(Refusal, match="has expired"):
        rings[1].require_caller({b"x-api-key": old.encode()})
    gate = make_gate(tmp_path, Engine(), keys_file=file)
    revoke_key(file, identity)
    assert [ask_chat(gate, key=key).status_code for key in (old, new)] == [401, 401]


def test_a_key_is_for_some_models(tmp_path: Path) -> None:
    engine, named = Engine(), ("other", "m")
    gate, (secret,) = keyed_gate(tmp_path, engine, {"models": ("m",)}, served_names=named)
    statuses = [ask_chat(gate, key=secret, model=model).status_code for model in ("m", "x", None)]
    assert statuses == [200, 404, 404]
    assert len(engine.bodies) == 1


def test_a_key_without_terms_has_the_gates_defaults(tmp_path: Path) -> None:
    own = {"concurrent_requests": 9, "priority": -2}
    keys = KeyDefaults(concurrent_requests=3, tokens_per_minute=1000, priority=5)
    gate, secrets = keyed_gate(tmp_path, Engine(), {}, own, keys=keys)
    ring = KeyRing(gate.settings)
    terms = [ring.require_caller({b"x-api-key": key.encode()}).terms for key in secrets]
    assert [one.concurrent_requests for one in terms] == [3, 9]
    assert [one.priority for one in terms] == [5, -2]
    assert [one.tokens_per_minute for one in terms] == [1000, 1000]


def test_keys_come_and_go_without_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    first, old = new_key(file)
    gate = make_gate(tmp_path, Engine(), keys_file=file)
    assert ask_chat(gate, key=old).status_code == 200
    _, new = new_key(file)
    assert [ask_chat(gate, key=key).status_code for key in (old, new)] == [200, 200]
    revoke_key(file, first)
    assert [ask_chat(gate, key=key).status_code for key in (old, new)] == [401, 200]


def test_an_expired_key_opens_nothing(tmp_path: Path) -> None:
    end = NOW + timedelta(days=1)
    _, brief = new_key(tmp_path / "keys.json", expires=end)
    settings = make_gate(tmp_path, Engine(), keys_file=tmp_path / "keys.json").settings
    headers = {b"x-api-key": brief.encode()}
    assert KeyRing(settings, clock=NOW.timestamp).require_caller(headers).id
    with pytest.raises(Refusal, match="unknown or has expired"):
        KeyRing(settings, clock=end.timestamp).require_caller(headers)


def test_every_key_is_compared_whichever_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, secrets = keyed_gate(tmp_path, Engine(), {}, {}, {})
    compared: list[bytes] = []

    def compare(kept: bytes, given: bytes) -> bool:
        compared.append(kept)
        return hmac.compare_digest(kept, given)

    monkeypatch.setattr(key_ring, "compare_digest", compare)
    kept = [sha256(secret.encode()).digest() for secret in secrets]
    for key in (*secrets, "wrong"):
        compared.clear()
        ask(gate, "/v1/models", key=key)
        assert compared[1:] == kept  # The first is the supervisor's.


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *((one, 200) for one in ("127.0.0.1", "::1", "localhost", "/run/slipstream/engine.sock")),
        *((one, 401) for one in ("0.0.0.0", "::", "", "192.0.2.7", "host.example")),
    ],
)
def test_without_a_key_file_only_a_gate_on_the_loopback_is_open(
    tmp_path: Path, host: str, status: int
) -> None:
    for keys in (None, tmp_path / "none.json"):
        gate = make_gate(tmp_path, Engine(), host=host, keys_file=keys)
        assert [ask_chat(gate, key=key).status_code for key in (None, "EMPTY")] == [status] * 2


def test_an_open_gate_shuts_when_a_key_is_made_and_never_opens_again(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    gate = make_gate(tmp_path, Engine(), keys_file=file)
    assert ask_chat(gate).status_code == 200
    _, secret = new_key(file)
    assert ask_chat(gate).status_code == 401
    file.unlink()
    assert ask_chat(gate).status_code == 401
    assert ask_chat(gate, key=secret).status_code == 401


FAULTY_LINES: list[dict[str, Any]] = [
    *({"sha256": "zz"}, {"sha256": 3}, {"expires": "soon"}, {"weight": 0}),
    *({"routes": "chat"}, {"tokens_per_minute": "many"}, {"id": None}),
]


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", *FAULTY_LINES])
def test_a_key_file_that_cannot_be_used_lets_nobody_in(tmp_path: Path, content: Any) -> None:
    file, engine = tmp_path / "keys.json", Engine()
    _, secret = new_key(file)
    if isinstance(content, dict):
        content = file.read_text() + json.dumps(json.loads(file.read_text()) | content)
    file.write_text(content)
    assert ask_chat(make_gate(tmp_path, engine, keys_file=file), key=secret).status_code == 401
    assert engine.scopes == []


def test_a_key_file_that_cannot_be_read_lets_nobody_in(tmp_path: Path) -> None:
    (tmp_path / "keys.json").mkdir()
    gate = make_gate(tmp_path, Engine(), keys_file=tmp_path / "keys.json")
    assert ask_chat(gate).status_code == 401


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("https://evil.example", 403),
        ("http://localhost.evil.example", 403),
        ("http://127.0.0.1.evil.example:80", 403),
        ("null", 403),
        ("", 403),
        ("http://localhost:3000", 200),
        ("http://127.0.0.1", 200),
        ("https://[::1]:8000", 200),
    ],
)
def test_a_page_of_another_site_cannot_use_an_open_gate(
    tmp_path: Path, origin: str, status: int
) -> None:
    gate = make_gate(tmp_path, Engine())
    assert ask(gate, CHAT, json=HELLO, headers={"origin": origin}).status_code == status


def test_with_a_key_any_page_may_ask(tmp_path: Path) -> None:
    gate, (secret,) = keyed_gate(tmp_path, Engine())
    headers = {"origin": "https://chat.example"}
    assert ask(gate, CHAT, key=secret, json=HELLO, headers=headers).status_code == 200


PROBE_SHA256 = sha256(b"probe").hexdigest()
PROBE = {"model": "m", "prompt": "Once", "max_tokens": 1}


def test_every_key_has_a_prefix_cache_of_its_own(tmp_path: Path) -> None:
    """One that is alone, too: who is alone after it must not find its texts."""
    file, engine = tmp_path / "keys.json", Engine()
    keys = [new_key(file)[1]]
    gate = make_gate(tmp_path, engine, keys_file=file)
    ask_chat(gate, key=keys[0])
    keys.append(new_key(file)[1])
    for key in keys:
        ask_chat(gate, key=key)
    documents: list[dict[str, Any]] = [json.loads(body) for body in engine.bodies]
    salts = [document.pop("cache_salt") for document in documents]
    assert documents == [HELLO] * 3
    assert salts[0] == salts[1] != salts[2]
    assert all(len(salt) == 64 and salt.isalnum() for salt in salts)
    assert all(key not in str(salts) and key not in file.read_text() for key in keys)
    lengths = [int(dict(scope["headers"])[b"content-length"]) for scope in engine.scopes]
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
        slow, keys = Engine(before_each=held.wait), KeyDefaults(concurrent_requests=2)
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
        gate = make_gate(tmp_path, Engine(), keys=KeyDefaults(concurrent_requests=1))
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
        *(("/v1/completions", dict(kind), 200) for kind in _KINDS.values()),
        ("/v1/completions", {"logprobs": 21}, 400),
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
        ("/v1/models", None, 200),
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


def test_the_supervisor_reaches_its_routes_whichever_are_served(tmp_path: Path) -> None:
    routes = ("POST /v1/chat/completions",)
    gate, (secret,) = keyed_gate(tmp_path, Engine(), probe_sha256=PROBE_SHA256, routes=routes)
    for key, code in (("probe", 200), (secret, 404), ("other", 404), (None, 404)):
        assert ask(gate, "/v1/completions", key=key, json=PROBE).status_code == code
    assert ask(gate, "/v1/models", method="GET", key="probe").status_code == 200
    assert ask(gate, "/v1/chat/completions", key="probe", json=PROBE).status_code == 403


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
