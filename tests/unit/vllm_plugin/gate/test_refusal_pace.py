"""One who is refused over and over waits, and nobody else does."""

import asyncio
from pathlib import Path

from slipstream.vllm_plugin.gate.answers import Refusal
from slipstream.vllm_plugin.gate.caller_limits import (
    LONGEST_WAIT_SECONDS,
    REFUSED_AT_ONCE,
    RefusalPace,
)
from tests.unit.vllm_plugin.gate.pieces import Engine, ask_async, make_gate


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_hundred_are_refused_at_once_and_then_fifty_a_second() -> None:
    pace = RefusalPace(50, clock=Clock())
    waits = [pace.place("a") for _ in range(REFUSED_AT_ONCE + 50)]
    assert waits[:REFUSED_AT_ONCE] == [0] * REFUSED_AT_ONCE
    assert round(waits[-1], 6) == 1


def test_one_who_stops_is_forgiven() -> None:
    clock = Clock()
    pace = RefusalPace(50, clock=clock)
    for _ in range(REFUSED_AT_ONCE + 50):
        pace.place("a")
    clock.now += 3
    assert [pace.place("a") for _ in range(REFUSED_AT_ONCE)] == [0] * REFUSED_AT_ONCE
    assert pace.place("a") > 0


def test_others_do_not_wait() -> None:
    pace = RefusalPace(50, clock=Clock())
    for _ in range(REFUSED_AT_ONCE * 2):
        pace.place("a")
    assert pace.place("b") == 0


def test_nobody_is_held_for_long() -> None:
    pace = RefusalPace(1, clock=Clock())
    waits = [pace.place("a") for _ in range(REFUSED_AT_ONCE * 10)]
    assert max(waits) == LONGEST_WAIT_SECONDS


def test_the_gate_holds_refusals_and_not_what_it_lets_pass(tmp_path: Path) -> None:
    gate = make_gate(tmp_path, Engine(), refusals_per_second=0.01)

    async def ask_all() -> None:
        for _ in range(REFUSED_AT_ONCE):
            assert (await ask_async(gate, content=b"[]")).status_code == 400
        held = asyncio.create_task(ask_async(gate, content=b"[]"))
        await asyncio.sleep(0)
        assert (await ask_async(gate, content=b"{}")).status_code == 200
        assert not held.done()
        held.cancel()

    asyncio.run(ask_all())


def test_a_refusal_that_waits_holds_no_frame_of_its_request() -> None:
    try:
        try:
            raise ValueError("the body")
        except ValueError as fault:
            raise Refusal(400, "no") from fault
    except Refusal as fault:
        refusal = fault.forget()
    assert (refusal.__traceback__, refusal.__cause__, refusal.__context__) == (None, None, None)
