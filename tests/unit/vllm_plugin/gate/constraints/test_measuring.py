"""A constraint reaches the engine once it was measured: what is known is free, keys take turns."""

import asyncio
import json
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from slipstream.serving.access.gate_file import GateSettings
from slipstream.serving.access.keys import make_key
from slipstream.serving.plugin_settings import GRAMMAR_CACHE_MIB
from slipstream.serving.supervision.generation import SCHEMA as PROBE_SCHEMA
from slipstream.vllm_plugin.gate.answers import App
from slipstream.vllm_plugin.gate.callers import key_ring
from slipstream.vllm_plugin.gate.constraints import measuring
from slipstream.vllm_plugin.gate.constraints.forms import ConstraintForm
from slipstream.vllm_plugin.gate.constraints.measuring import (
    CHILDREN,
    MINUTE,
    MOST_WAITING,
    ConstraintVerdict,
    Unmeasured,
)
from slipstream.vllm_plugin.gate.middleware import Gate
from tests.unit.vllm_plugin.gate.pieces import (
    CHAT,
    HELLO,
    Engine,
    Measured,
    ask,
    ask_async,
    ask_chat,
    call,
    make_gate,
    make_scope,
    read_error,
)
from tests.unit.vllm_plugin.gate.virtual_time import Clock, virtually

FITS = ConstraintVerdict("fits", 20)
COSTLY = ConstraintVerdict("costly", 3000, why="it takes too long")
FAULTY = ConstraintVerdict("faulty", 9, why="maxLength must be an integer")
NAMES = ("a", "b", "c", "d")


class Slow(Measured):
    """A worker that takes its time until it is let on."""

    def __init__(self) -> None:
        super().__init__(FITS)
        self.go_on = asyncio.Event()
        self.running = self.most_running = self.ended_early = 0

    async def measure(
        self, forms: list[ConstraintForm], most_milliseconds: int
    ) -> ConstraintVerdict:
        self.running += 1
        self.most_running = max(self.running, self.most_running)
        try:
            await self.go_on.wait()
            return await super().measure(forms, most_milliseconds)
        except asyncio.CancelledError:
            self.ended_early += 1
            raise
        finally:
            self.running -= 1


def hold_to(number: int) -> dict[str, Any]:
    schema = {"type": "object", "properties": {f"p{number}": {"type": "string"}}}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    return {"response_format": form}


def keyed_gate(folder: Path, engine: App, **own: Any) -> tuple[Gate, list[str], Clock]:
    keys = folder / "keys.json"
    made = [make_key(keys, name, now=datetime.now(UTC), expires=None) for name in NAMES]
    gate = make_gate(folder, engine, keys_file=keys, **own)
    gate._constraints._clock = clock = Clock()
    return gate, [one.secret for one in made], clock


def ask_each(gate: Gate, wanted: Iterable[tuple[str, int]]) -> list[asyncio.Task[httpx.Response]]:
    """Ask for a schema by its number with each key, at the same time."""
    return [
        asyncio.create_task(ask_async(gate, key=key, json=HELLO | hold_to(number)))
        for key, number in wanted
    ]


def reason_of(answer: httpx.Response, gate_log: Path) -> Any:
    identity = answer.headers["x-request-id"]
    lines = map(json.loads, gate_log.read_text().splitlines())
    return next(line["refused"] for line in lines if line["id"] == identity)


@pytest.mark.parametrize(
    ("found", "status", "reason"),
    [
        (COSTLY, 400, "costly_schema"),
        (FAULTY, 400, "faulty_schema"),
        (Unmeasured("no vocabulary"), 503, "unmeasured"),
    ],
)
def test_what_does_not_fit_never_reaches_the_engine(
    tmp_path: Path, found: Any, status: int, reason: str
) -> None:
    engine, log = Engine(), tmp_path / "access.jsonl"
    gate = make_gate(tmp_path, engine, worker=Measured(found), access_log=log)
    answer = ask_chat(gate, **hold_to(0))
    assert answer.status_code == status
    assert read_error(answer).startswith("response_format: ")
    assert ("retry-after" in answer.headers) is (status == 503)
    if status == 400:
        assert answer.json()["error"]["param"] == "response_format"
    gate._visits.close()
    assert reason_of(answer, log) == reason
    assert engine.scopes == []


@pytest.mark.parametrize("found", [FITS, COSTLY, FAULTY])
def test_what_was_measured_is_not_measured_again(tmp_path: Path, found: ConstraintVerdict) -> None:
    worker = Measured(found)
    gate, keys, _ = keyed_gate(tmp_path, Engine(), worker=worker)
    statuses = [ask(gate, key=key, json=HELLO | hold_to(0)).status_code for key in keys * 2]
    assert statuses == [200 if found is FITS else 400] * 8
    assert len(worker.asked) == 1


def test_the_same_schema_is_known_by_any_field(tmp_path: Path) -> None:
    worker, schema = Measured(), {"type": "integer"}
    gate = make_gate(tmp_path, Engine(), worker=worker)
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    for fields in ({"response_format": form}, {"structured_outputs": {"json": schema}}):
        assert ask_chat(gate, **fields).status_code == 200
    assert len(worker.asked) == 1


def test_an_unmeasured_one_is_tried_again(tmp_path: Path) -> None:
    worker = Measured(Unmeasured("it has ended"), FITS)
    gate = make_gate(tmp_path, Engine(), worker=worker)
    assert [ask_chat(gate, **hold_to(0)).status_code for _ in range(3)] == [503, 200, 200]
    assert len(worker.asked) == 2


def test_what_the_engine_may_have_forgotten_is_measured_again(tmp_path: Path) -> None:
    large = ConstraintVerdict("fits", 9, size=measuring.REMEMBERED_BYTES // 3)
    worker = Measured(large)
    gate = make_gate(tmp_path, Engine(), worker=worker)
    for number in (0, 1, 2, 0, 1, 2, 3, 0):
        assert ask_chat(gate, **hold_to(number)).status_code == 200
    assert [form.text for (form,) in worker.asked].count(worker.asked[0][0].text) == 2
    assert len(worker.asked) == 5


def test_no_more_is_remembered_than_a_plan_lets_the_engine_keep(tmp_path: Path) -> None:
    assert int(GRAMMAR_CACHE_MIB) * 2**20 // 2 >= measuring.REMEMBERED_BYTES
    worker = Measured(ConstraintVerdict("fits", 9, size=measuring.REMEMBERED_BYTES + 1))
    gate = make_gate(tmp_path, Engine(), worker=worker)
    for number in (0, 1):
        assert ask_chat(gate, **hold_to(number)).status_code == 200
    assert len(worker.asked) == 2


def test_a_new_limit_measures_anew(tmp_path: Path) -> None:
    worker = Measured(COSTLY, FITS)
    gate = make_gate(tmp_path, Engine(), worker=worker)
    assert ask_chat(gate, **hold_to(0)).status_code == 400
    GateSettings.model_validate({"limits": {"schema_units": 9000}}).write(tmp_path / "gate.json")
    gate._newer._next_look = 0.0
    assert ask_chat(gate, **hold_to(0)).status_code == 200


CALL = {"name": "a", "parameters": {"type": "string", "maxLength": 900}}
TOOLS: dict[str, Any] = {
    "tools": [{"type": "function", "function": CALL}],
    "tool_choice": "required",
}


def test_tools_that_cost_too_much_lose_their_lengths_and_may_then_be_refused(
    tmp_path: Path, engine: Engine
) -> None:
    worker = Measured(COSTLY, COSTLY)
    answer = ask_chat(make_gate(tmp_path, engine, worker=worker), **TOOLS)
    assert (answer.status_code, len(worker.asked), engine.scopes) == (400, 2, [])
    assert answer.json()["error"]["param"] == "tools"
    worker = Measured(COSTLY, FITS)
    answer = ask_chat(make_gate(tmp_path, engine, worker=worker), **TOOLS)
    assert "x-slipstream-warning" in answer.headers
    assert engine.document["tools"][0]["function"]["parameters"] == {"type": "string"}
    assert ["maxLength" in form.text for (form,) in worker.asked] == [True, False]


def test_a_key_past_its_count_waits_and_others_do_not(tmp_path: Path, engine: Engine) -> None:
    gate, (one, other, *_), clock = keyed_gate(tmp_path, engine, new_schemas_per_minute=3)
    for number in (0, 1, 2, 0, 1, 2):
        assert ask(gate, key=one, json=HELLO | hold_to(number)).status_code == 200
        clock.now += 1
    answer = ask(gate, key=one, json=HELLO | hold_to(3))
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "54")
    assert answer.json()["error"]["param"] == "response_format"
    assert ask(gate, key=one, json=HELLO).status_code == 200
    assert ask(gate, key=one, json=HELLO | hold_to(0)).status_code == 200
    assert ask(gate, key=other, json=HELLO | hold_to(3)).status_code == 200
    clock.now += 54
    assert ask(gate, key=one, json=HELLO | hold_to(4)).status_code == 200


@pytest.mark.parametrize("found", [COSTLY, ConstraintVerdict("fits", 3000)])
def test_costly_ones_are_few_in_a_minute_refused_or_not(
    tmp_path: Path, found: ConstraintVerdict
) -> None:
    class Patient(Measured):
        async def measure(
            self, forms: list[ConstraintForm], most_milliseconds: int
        ) -> ConstraintVerdict:
            clock.now += 4
            return await super().measure(forms, most_milliseconds)

    worker = Patient(found)
    gate, (one, *_), clock = keyed_gate(tmp_path, Engine(), worker=worker)
    statuses = [ask(gate, key=one, json=HELLO | hold_to(n)).status_code for n in range(4)]
    assert statuses[2:] == [429, 429]
    assert len(worker.asked) == 2
    clock.now += MINUTE
    assert ask(gate, key=one, json=HELLO | hold_to(9)).status_code != 429


@pytest.mark.parametrize("trusting", [{"constraints": "any"}, {"keys_file": None}])
def test_the_trusted_are_not_counted(tmp_path: Path, trusting: dict[str, Any]) -> None:
    keyed_gate(tmp_path, Engine())
    worker = Measured()
    gate = make_gate(tmp_path, Engine(), new_schemas_per_minute=1, worker=worker, **trusting)
    for number in range(3):
        assert ask_chat(gate, **hold_to(number)).status_code == 200
    assert len(worker.asked) == (0 if "constraints" in trusting else 3)


def test_nothing_is_measured_for_a_count_of_tokens(tmp_path: Path) -> None:
    worker = Measured(COSTLY)
    gate = make_gate(tmp_path, Engine(), worker=worker)
    asked = HELLO | {"tools": [{"name": "a", "input_schema": {}}], "tool_choice": {"type": "any"}}
    assert ask(gate, "/v1/messages/count_tokens", json=asked).status_code == 200
    assert worker.asked == []


def test_the_probes_form_is_the_supervisors() -> None:
    assert key_ring.PROBE_SCHEMA == PROBE_SCHEMA


@virtually
async def test_keys_take_turns_one_constraint_each(tmp_path: Path) -> None:
    gate, keys, _ = keyed_gate(tmp_path, Engine())
    gate._constraints.worker = worker = Slow()
    several = [(keys[0], n) for n in range(5)] + [(keys[1], 10), (keys[2], 11)]
    asking = ask_each(gate, several)
    await asyncio.sleep(0.05)
    assert worker.running == CHILDREN
    worker.go_on.set()
    assert {answer.status_code for answer in await asyncio.gather(*asking)} == {200}
    asked = [int(forms[0].text.split('"p')[2].split('"')[0]) for forms in worker.asked]
    assert asked.index(11) < asked.index(2)
    assert worker.most_running == CHILDREN


@virtually
async def test_the_same_new_one_from_several_is_measured_once(tmp_path: Path) -> None:
    gate, keys, _ = keyed_gate(tmp_path, Engine())
    gate._constraints.worker = worker = Slow()
    asking = ask_each(gate, [(keys[0], 0)] * 5)
    await asyncio.sleep(0.05)
    worker.go_on.set()
    assert {one.status_code for one in await asyncio.gather(*asking)} == {200}
    assert len(worker.asked) == 1


@virtually
async def test_a_queue_has_an_end(tmp_path: Path) -> None:
    own = {"keys": {"concurrent_requests": 1000}, "new_schemas_per_minute": 1000}
    gate, keys, _ = keyed_gate(tmp_path, Engine(), **own)
    gate._constraints.worker = worker = Slow()
    asking = ask_each(gate, [(keys[0], number) for number in range(MOST_WAITING + 1)])
    early, _ = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
    worker.go_on.set()
    await asyncio.gather(*asking)
    assert [task.result().status_code for task in early] == [429]


def test_a_client_that_leaves_ends_its_measurement_and_has_had_the_time(tmp_path: Path) -> None:
    async def run() -> Slow:
        gate._constraints.worker = worker = Slow()
        for number in range(3):
            body = json.dumps(HELLO | hold_to(number)).encode()
            scope = make_scope(CHAT.encode(), method="POST", headers=headers)
            message = {"type": "http.request", "body": body, "more_body": False}
            assert await call(gate, scope, message) == []
            await asyncio.sleep(0)
            clock.now += 5
        return worker

    engine = Engine()
    gate, (one, *_), clock = keyed_gate(tmp_path, engine, new_schemas_per_minute=3)
    headers = [(b"authorization", f"Bearer {one}".encode())]
    worker = asyncio.run(run())
    assert (worker.running, worker.ended_early, engine.scopes) == (0, 3, [])
    assert ask(gate, key=one, json=HELLO | hold_to(9)).status_code == 429


@virtually
async def test_whoever_leaves_the_queue_holds_up_nobody(tmp_path: Path) -> None:
    gate, keys, _ = keyed_gate(tmp_path, Engine())
    gate._constraints.worker = worker = Slow()
    asking = ask_each(gate, [(keys[number % 3], number) for number in range(9)])
    await asyncio.sleep(0.05)
    worker.go_on.set()
    for task in asking[3:6]:
        task.cancel()
    done = await asyncio.wait_for(asyncio.gather(*asking, return_exceptions=True), 30)
    assert [one.status_code for one in done if isinstance(one, httpx.Response)] == [200] * 6
