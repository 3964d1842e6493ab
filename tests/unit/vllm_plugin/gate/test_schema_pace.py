"""What is new to the engine is counted by key; what it has seen is free."""

import asyncio
import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from slipstream.serving.access.gate_file import GateSettings
from slipstream.serving.access.keys import make_key
from slipstream.vllm_plugin.gate.answers import App, Receive, Refusal, Scope, Send
from slipstream.vllm_plugin.gate.compiled_constraints import Form
from slipstream.vllm_plugin.gate.middleware import Gate
from slipstream.vllm_plugin.gate.schema_pace import MINUTE, SchemaPace
from tests.unit.vllm_plugin.gate.pieces import (
    CHAT,
    HELLO,
    Engine,
    ask,
    ask_async,
    call,
    make_gate,
    make_scope,
    read_all,
    read_error,
)
from tests.unit.vllm_plugin.gate.test_sockets import (
    connect,
    send_raw,
    serve,
    start_post,
    status_of,
)

COSTLY = 2500


class Clock:
    """A time that passes when told."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def pace(tmp_path: Path, clock: Clock) -> SchemaPace:
    return SchemaPace(make_gate(tmp_path, Engine()).settings, clock=clock)


def new(number: int, units: int = 0) -> list[Form]:
    """Make a constraint like no other; its lengths cost about so many units."""
    schema = {"title": str(number), "type": "string", "maxLength": units // 25}
    return [Form("response_format", schema)]


def passes(pace: SchemaPace, forms: list[Form], caller: str = "a") -> bool:
    pace.admit(caller, forms)
    return True


def refused(pace: SchemaPace, forms: list[Form], caller: str = "a") -> tuple[str, int]:
    with pytest.raises(Refusal) as raised:
        pace.admit(caller, forms)
    refusal = raised.value
    assert (refusal.status, refusal.field) == (429, "response_format")
    return refusal.message, int(dict(refusal.headers)[b"retry-after"])


def test_the_thirty_first_new_schema_of_a_minute_waits(pace: SchemaPace, clock: Clock) -> None:
    for number in range(30):
        assert passes(pace, new(number))
        clock.now += 1
    message, seconds = refused(pace, new(30))
    assert message == (
        "response_format: 31 new schemas of this key within a minute; this server allows up to 30"
    )
    assert seconds == 30
    clock.now += seconds
    assert passes(pace, new(30))
    assert refused(pace, new(31))


def test_what_was_seen_is_free_for_everybody(pace: SchemaPace) -> None:
    for number in range(30):
        assert passes(pace, new(number))
    for number in range(30):
        assert passes(pace, new(number))
        assert passes(pace, new(number), "b")
    assert passes(pace, new(31), "b")


def test_another_key_has_its_own_count(pace: SchemaPace) -> None:
    assert passes(pace, new(0, COSTLY))
    assert refused(pace, new(1, COSTLY))
    assert passes(pace, new(1, COSTLY), "b")


def test_costly_ones_are_few_in_a_minute(pace: SchemaPace, clock: Clock) -> None:
    for number in range(2):
        pace.admit("a", new(number, COSTLY))()
        clock.now += 5
    message, seconds = refused(pace, new(2, COSTLY))
    assert message == (
        "response_format: the new schemas of this key within a minute cost 7500 units;"
        " this server allows up to 6000"
    )
    assert seconds == 50
    clock.now += seconds
    assert passes(pace, new(2, COSTLY))


def test_a_compile_is_under_way_until_the_first_token(pace: SchemaPace, clock: Clock) -> None:
    release = pace.admit("a", new(0, COSTLY))
    clock.now += 1
    message, seconds = refused(pace, new(1, COSTLY))
    assert message == (
        "response_format: this and what this key has compiling cost 5000 units;"
        " this server allows up to 3000 at once"
    )
    assert seconds == 24
    assert passes(pace, new(2))
    release()
    assert passes(pace, new(1, COSTLY))


def test_a_client_that_leaves_holds_its_place_for_a_while(pace: SchemaPace, clock: Clock) -> None:
    assert passes(pace, new(0, COSTLY))
    clock.now += 24.9
    assert refused(pace, new(1, COSTLY))
    clock.now += 0.2
    assert passes(pace, new(1, COSTLY))


def test_what_the_engine_may_have_forgotten_is_new_again(pace: SchemaPace, clock: Clock) -> None:
    for number in range(10):
        assert passes(pace, new(number, COSTLY))
        clock.now += MINUTE
    assert passes(pace, new(0, COSTLY))
    assert refused(pace, new(10, COSTLY))


def test_one_schema_past_what_a_minute_allows_still_passes(tmp_path: Path, clock: Clock) -> None:
    gate = make_gate(tmp_path, Engine(), schema_units_per_minute=100, limits={"schema_units": 9000})
    pace = SchemaPace(gate.settings, clock=clock)
    pace.admit("a", new(0, COSTLY))()
    assert refused(pace, new(1))
    clock.now += MINUTE
    assert passes(pace, new(1))


def keyed_gate(folder: Path, engine: App, **own: Any) -> tuple[Gate, str, str]:
    keys = folder / "keys.json"
    first, second = (
        make_key(keys, name, now=datetime.now(UTC), expires=None).secret for name in ("a", "b")
    )
    return make_gate(folder, engine, keys_file=keys, **own), first, second


def ask_for(number: int, length: int | None = None) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "properties": {f"p{number}": {"type": "string"}}}
    if length is not None:
        schema["properties"][f"p{number}"]["maxLength"] = length
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    return HELLO | {"response_format": form}


def test_a_key_past_its_count_gets_429(tmp_path: Path) -> None:
    engine = Engine()
    gate, one, other = keyed_gate(tmp_path, engine, new_schemas_per_minute=3)
    for number in (0, 1, 2, 0, 1, 2):
        assert ask(gate, key=one, json=ask_for(number)).status_code == 200
    answer = ask(gate, key=one, json=ask_for(3))
    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) in range(50, 61)
    assert read_error(answer).startswith("response_format: 4 new schemas of this key within a min")
    assert len(engine.scopes) == 6
    assert ask(gate, key=one, json=HELLO).status_code == 200
    assert ask(gate, key=one, json=ask_for(0)).status_code == 200
    assert ask(gate, key=other, json=ask_for(3)).status_code == 200


def test_whoever_leaves_early_cannot_compile_the_next_at_once(tmp_path: Path) -> None:
    async def wait_for_ever() -> None:
        await asyncio.Event().wait()

    engine = Engine(before_each=wait_for_ever)
    gate, one, other = keyed_gate(tmp_path, engine)
    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(ask_async(gate, key=one, json=ask_for(0, 100)), 0.05))
    engine.before_each = None
    answer = ask(gate, key=one, json=ask_for(1, 100))
    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) in (24, 25, 26)
    assert len(engine.scopes) == 1
    assert ask(gate, key=one, json=ask_for(1)).status_code == 200
    assert ask(gate, key=other, json=ask_for(1, 100)).status_code == 200


def test_an_answer_after_the_client_left_frees_nothing(tmp_path: Path) -> None:
    """vLLM answers 200 to nobody."""

    class Late(Engine):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await super().__call__(scope, self._notice(receive), send)

        def _notice(self, receive: Any) -> Any:
            async def receive_twice() -> Any:
                message = await receive()
                await receive()
                return message

            return receive_twice

    gate, one, _ = keyed_gate(tmp_path, Late())
    headers = [(b"authorization", f"Bearer {one}".encode())]
    scope = make_scope(CHAT.encode(), method="POST", headers=headers)
    body = json.dumps(ask_for(0, 100)).encode()
    message = {"type": "http.request", "body": body, "more_body": False}
    asyncio.run(call(gate, scope, message))
    assert ask(gate, key=one, json=ask_for(1, 100)).status_code == 429


def test_a_connection_that_closes_early_leaves_its_compile_behind(tmp_path: Path) -> None:
    """The attack of a client that is gone after a moment, through a real server."""

    async def compile_for_long(scope: Scope, receive: Receive, send: Send) -> None:
        reached.append(await read_all(receive))
        if b"maxLength" in reached[-1]:
            await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}", "more_body": False})

    def post(key: str, document: dict[str, Any]) -> bytes:
        body = json.dumps(document).encode()
        return start_post(len(body), f"Authorization: Bearer {key}", "Connection: close") + body

    reached: list[bytes] = []
    gate, attacker, neighbour = keyed_gate(tmp_path, compile_for_long)
    with serve(gate) as port:
        for number in range(10):
            with connect(port) as connection:
                connection.sendall(post(attacker, ask_for(number, 100)))
                time.sleep(0.05)
        assert len(reached) == 1
        assert status_of(send_raw(port, post(attacker, ask_for(20, 100)))) == 429
        assert status_of(send_raw(port, post(attacker, ask_for(20)))) == 200
        assert status_of(send_raw(port, post(neighbour, ask_for(21)))) == 200


def test_an_answer_frees_its_place(tmp_path: Path) -> None:
    gate, one, _ = keyed_gate(tmp_path, Engine())
    for number in range(2):
        assert ask(gate, key=one, json=ask_for(number, 100)).status_code == 200


@pytest.mark.parametrize("trusting", [{"constraints": "any"}, {"keys_file": None}])
def test_the_trusted_are_not_counted(tmp_path: Path, trusting: dict[str, Any]) -> None:
    gate, one, _ = keyed_gate(tmp_path, Engine())
    gate = make_gate(tmp_path, Engine(), new_schemas_per_minute=1, **trusting)
    for number in range(3):
        assert ask(gate, key=one, json=ask_for(number)).status_code == 200


def test_the_defaults_let_a_client_of_the_shipped_schemas_through() -> None:
    assert GateSettings().new_schemas_per_minute > 24
