"""The core reports its state once a second and takes orders, and no fault ends that."""

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slipstream.steering.flight import read_flight
from slipstream.steering.state import SteeringOrder, SteeringState
from slipstream.vllm_plugin.steering import steering as module
from slipstream.vllm_plugin.steering.goodput import Cell
from slipstream.vllm_plugin.steering.steering import Steering
from tests.unit.vllm_plugin.gate.pieces import wait_until


@pytest.fixture
def steering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Steering]:
    monkeypatch.setattr(module, "REPORT_EVERY_SECONDS", 0.01)
    made = Steering(tmp_path, range(8), longest=7, planned=None)
    yield made
    made.close()


def step(steering: Steering, sequences: int, length: int, seconds: float = 0.05) -> None:
    names = [f"r{number}" for number in range(sequences)]
    steering.see_step(
        {name: length + 1 for name in names},
        {name: [1] * length for name in names} if length else {},
        length,
        tokens=sequences,
        seconds=seconds,
        waiting=0,
        cache=0.25,
    )


def test_the_state_tells_what_the_core_does(steering: Steering) -> None:
    steering.ledger.begin("one", {"slipstream": "4f - code chat"}, 0.0)
    steering.ledger.see_step(["one"], [3], [7], [2], [False], 1.0)
    for length in (7, 7, 0):
        step(steering, 2, length)
    state = steering.describe()
    assert (state.steers, state.longest, state.running, state.steps) == (True, 7, 2, 3)
    assert (state.kv_usage, state.step_seconds) == (0.25, 0.05)
    assert [(one.draft_length, one.steps) for one in state.lengths] == [(0, 1), (7, 2)]
    assert state.kinds["code"].accepted == (1, 1, 0, 0, 0, 0, 0)
    assert state.is_fresh(time.time())
    steering.rest(waiting=1)
    assert (steering.describe().running, steering.describe().waiting) == (0, 1)


def test_a_step_that_reads_a_prompt_says_nothing_of_a_length(steering: Steering) -> None:
    steering.see_step({"new": 300, "old": 1}, {}, 0, tokens=1, seconds=2.0, waiting=0, cache=0.0)
    steering.see_step(
        {"a": 4, "b": 8}, {"a": [1] * 3, "b": [1] * 7}, 7, tokens=2, seconds=1, waiting=0, cache=0
    )
    assert steering.control.costs.steps == 0
    step(steering, 2, 3)
    assert steering.control.costs.steps == 1


def test_an_order_bounds_the_length_and_another_drafter_begins_anew(steering: Steering) -> None:
    step(steering, 1, 7)
    for _ in range(500):
        steering.control.observe_draft(7, 0)
    steering.control.gains.learn()
    steering._obey(SteeringOrder(least=1, most=2, drafter=3))
    assert steering.control.choose(1) in (1, 2)
    assert (steering.describe().least, steering.describe().most) == (1, 2)
    assert steering.control.gains.expect(7) < 1.1
    steering._obey(SteeringOrder(drafter=4))
    assert (steering.describe().least, steering.describe().most) == (None, None)
    assert steering.control.gains.expect(7) > 2


def test_a_report_that_fails_is_logged_and_the_next_one_comes(
    steering: Steering, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sent: list[SteeringState] = []
    monkeypatch.setattr(steering._link, "send", sent.append)
    wait_until(lambda: len(sent) > 1)

    def fail(_: int) -> None:
        raise RuntimeError("dictionary changed size during iteration")

    with monkeypatch.context() as patched:
        patched.setattr(steering.control, "estimate", fail)
        wait_until(lambda: "dictionary changed size" in caplog.text)
    sent.clear()
    wait_until(lambda: len(sent) > 1)
    assert caplog.text.count("the state was not reported") == 1


def test_states_are_made_while_steps_add_cells(tmp_path: Path) -> None:
    """A step of a new kind adds a cell; the thread that reports must not stumble over it."""
    steering, over = Steering(tmp_path, range(8), longest=7, planned=None), threading.Event()
    faults: list[Exception] = []

    def report() -> None:
        while not over.is_set():
            try:
                steering.control.costs.expect(999, 7)
            except RuntimeError as fault:
                faults.append(fault)
                return

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=report)
    thread.start()
    try:
        for number in range(20_000):
            steering.control.costs.cells[(number, 0)] = Cell(0.05, steps=1)
    finally:
        sys.setswitchinterval(interval)
        over.set()
        thread.join()
        steering.close()
    assert faults == []


def test_where_nothing_is_to_be_chosen_nothing_is(tmp_path: Path) -> None:
    made = Steering(tmp_path, [7], longest=7, planned=None)
    assert not made.steers
    assert {made.control.choose(4) for _ in range(50)} == {7}
    made.close()


def test_several_cores_keep_states_and_steps_of_their_own(tmp_path: Path) -> None:
    cores = [Steering(tmp_path, [7], longest=7, planned=None, rank=rank) for rank in range(2)]
    for core in cores:
        step(core, 1, 7)
        core.close()
    assert [core.describe().rank for core in cores] == [0, 1]
    flights = [read_flight(tmp_path / name) for name in ("flight.bin", "flight-rank-1.bin")]
    assert [one and one.steps for one in flights] == [1, 1]
    assert not (tmp_path / "flight-1.bin").exists()
