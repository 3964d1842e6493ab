"""The supervisor is told what is under way, whatever ends it, and soon enough."""

import asyncio
import os
import time
from pathlib import Path

import pytest

from slipstream.serving.access.keys import make_key
from slipstream.serving.messages import MOST_BYTES, GateCounts, encode
from slipstream.vllm_plugin.gate.answers import Receive, Scope, Send, accounting
from slipstream.vllm_plugin.gate.answers.accounting import Accounting
from slipstream.vllm_plugin.gate.callers.key_ring import SUPERVISOR
from tests.unit.vllm_plugin.gate.callers.test_key_ring import NOW
from tests.unit.vllm_plugin.gate.pieces import (
    HELLO,
    Engine,
    ask,
    ask_async,
    ask_chat,
    call,
    make_gate,
)
from tests.unit.vllm_plugin.gate.test_middleware import post


def test_requests_are_counted_by_key_until_they_end(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    one, other = (make_key(file, "", now=NOW, expires=None) for _ in range(2))

    async def watch() -> list[GateCounts]:
        held = asyncio.Event()
        gate = make_gate(tmp_path, Engine(before_each=held.wait), keys_file=file)
        asked = [
            asyncio.create_task(ask_async(gate, key=key.secret, json=HELLO))
            for key in (one, one, other)
        ]
        await asyncio.sleep(0.2)
        during = gate.run.accounting.describe()
        held.set()
        await asyncio.gather(*asked)
        return [during, gate.run.accounting.describe()]

    began = time.monotonic()
    during, after = asyncio.run(watch())
    assert during.pid == os.getpid()
    assert (during.in_flight, during.total, during.last_token) == (3, 3, None)
    counted = {key: (counts.in_flight, counts.total) for key, counts in during.by_key.items()}
    assert counted == {one.key.id: (2, 2), other.key.id: (1, 1)}
    assert (after.in_flight, after.total) == (0, 3)
    assert after.last_token is not None
    assert began < after.last_token <= time.monotonic()


def test_a_change_is_reported_soon_though_nothing_follows_it() -> None:
    reported: list[GateCounts] = []

    async def watch() -> None:
        counting = Accounting(reported.append)
        with counting.count("anyone", 7):
            for _ in range(1000):
                counting.see_token()
            assert reported == []
            await asyncio.sleep(2 * accounting.REPORT_WITHIN_SECONDS)
            assert [one.in_flight for one in reported] == [1]
        with counting.wait("another"):
            await asyncio.sleep(2 * accounting.REPORT_WITHIN_SECONDS)
        await asyncio.sleep(2 * accounting.REPORT_WITHIN_SECONDS)

    asyncio.run(watch())
    assert [(one.in_flight, one.waiting, one.total) for one in reported] == [
        *((1, 0, 1), (0, 1, 1), (0, 0, 1)),
    ]


@pytest.mark.parametrize("starts", [False, True])
def test_an_engine_that_breaks_off_is_counted_once(tmp_path: Path, starts: bool) -> None:
    async def break_off(scope: Scope, receive: Receive, send: Send) -> None:
        if starts:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        raise ZeroDivisionError

    gate = make_gate(tmp_path, break_off)

    async def ask_twice() -> None:
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                await ask_async(gate, json=HELLO)

    asyncio.run(ask_twice())
    counts = gate.run.accounting.describe()
    assert (counts.in_flight, counts.total) == (0, 2)


def test_a_cancelled_request_is_counted_once(tmp_path: Path) -> None:
    gate = make_gate(tmp_path, Engine())

    async def give_up() -> None:
        gate.app = Engine(before_each=asyncio.Event().wait)
        asked = asyncio.create_task(ask_async(gate, json=HELLO))
        await asyncio.sleep(0.2)
        assert gate.run.accounting.describe().in_flight == 1
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)

    asyncio.run(give_up())
    counts = gate.run.accounting.describe()
    assert (counts.in_flight, counts.total) == (0, 1)


def test_refusals_are_not_counted_and_an_error_is_no_token(tmp_path: Path) -> None:
    gate = make_gate(tmp_path, Engine(status=500))
    ask_chat(gate, n=1000)
    ask(gate, "/v1/models")
    ask(gate, "/health")
    assert gate.run.accounting.describe().total == 0
    ask_chat(gate)
    counts = gate.run.accounting.describe()
    assert (counts.total, counts.last_token) == (1, None)


def test_an_answer_to_a_client_that_left_is_no_sign_of_life(tmp_path: Path) -> None:
    async def leave(scope: Scope, receive: Receive, send: Send) -> None:
        """Do as vLLM does: answer with 200 what was cancelled."""
        while (await receive())["type"] != "http.disconnect":
            pass
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"null", "more_body": False})

    gate = make_gate(tmp_path, leave)
    scope, messages = post(b"{}")
    asyncio.run(call(gate, scope, *messages))
    assert gate.run.accounting.describe().last_token is None


def test_however_many_keys_ask_a_report_fits_into_a_message() -> None:
    async def ask_with_many() -> GateCounts:
        counting = Accounting(lambda _: None)
        for number in range(5000):
            with counting.count(f"{number:032}", 1):
                pass
        assert counting.describe().longest_body_bytes == 0
        with counting.count("busy", 5000), counting.count(SUPERVISOR.id, 1):
            return counting.describe()

    counts = asyncio.run(ask_with_many())
    assert (counts.in_flight, counts.total, counts.longest_body_bytes) == (1, 5001, 5000)
    assert counts.by_key["busy"].in_flight == 1
    assert SUPERVISOR.id not in counts.by_key
    assert len(counts.by_key) == accounting.MOST_KEYS
    assert len(encode(counts)) < MOST_BYTES / 4
