"""The core's files: its state once a second, and an order that it follows."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slipstream.serving.swaps import GateResult
from slipstream.steering.flight import read_flight
from slipstream.steering.order import SteeringOrder
from slipstream.vllm_plugin.steering import steering as module
from slipstream.vllm_plugin.steering.steering import ORDER, STATE, SWAPPED, Steering


@pytest.fixture
def steering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Steering]:
    monkeypatch.setattr(module, "WRITE_EVERY_SECONDS", 0.01)
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


def wait_for(file: Path, **facts: object) -> dict[str, object]:
    """Wait until a state says so; a test that waits in vain is ended by its time limit."""
    while True:
        try:
            state: dict[str, object] = json.loads(file.read_bytes())
        except (OSError, ValueError):
            state = {}
        if facts.items() <= state.items():
            return state
        time.sleep(0.01)


def test_the_state_tells_what_the_core_does(steering: Steering, tmp_path: Path) -> None:
    for length in (7, 7, 0):
        step(steering, 2, length)
    state = wait_for(tmp_path / STATE, steps=3)
    assert (state["steers"], state["longest"], state["running"]) == (True, 7, 2)
    assert (state["kv_usage"], state["step_seconds"]) == (0.25, 0.05)
    lengths = state["lengths"]
    assert isinstance(lengths, list)
    assert [(one["draft_length"], one["steps"]) for one in lengths] == [(0, 1), (7, 2)]
    steering.rest(waiting=1)
    assert wait_for(tmp_path / STATE, running=0)["waiting"] == 1


def test_a_step_that_reads_a_prompt_says_nothing_of_a_length(steering: Steering) -> None:
    steering.see_step({"new": 300, "old": 1}, {}, 0, tokens=1, seconds=2.0, waiting=0, cache=0.0)
    steering.see_step(
        {"a": 4, "b": 8}, {"a": [1] * 3, "b": [1] * 7}, 7, tokens=2, seconds=1, waiting=0, cache=0
    )
    assert steering.control.costs.steps == 0
    step(steering, 2, 3)
    assert steering.control.costs.steps == 1


def test_an_order_is_followed_and_a_broken_one_is_none(steering: Steering, tmp_path: Path) -> None:
    step(steering, 1, 7)
    SteeringOrder(least=1, most=2).write(tmp_path / ORDER)
    wait_for(tmp_path / STATE, least=1, most=2)
    assert steering.control.choose(1) in (1, 2)
    for broken in (b"{", b"[]", b'{"most": "2"}', b'{"most": true}', b'{"most": -1}', b"[" * 9999):
        (tmp_path / ORDER).write_bytes(broken)
        wait_for(tmp_path / STATE, least=None, most=None)
    SteeringOrder(most=0).write(tmp_path / ORDER)
    wait_for(tmp_path / STATE, most=0)
    assert steering.control.choose(1) == 0


def test_another_drafter_begins_anew(steering: Steering, tmp_path: Path) -> None:
    for _ in range(500):
        steering.control.observe_draft(7, 0)
    steering.control.gains.learn()
    assert steering.control.gains.expect(7) < 1.1
    SteeringOrder(most=5).write(tmp_path / ORDER)
    (tmp_path / SWAPPED).write_text(GateResult(order="1", outcome="refused").to_json())
    wait_for(tmp_path / STATE, most=5)
    assert steering.control.gains.expect(7) < 1.1
    (tmp_path / SWAPPED).write_text(GateResult(order="2", outcome="swapped").to_json())
    SteeringOrder(most=4).write(tmp_path / ORDER)
    wait_for(tmp_path / STATE, most=4)
    assert steering.control.gains.expect(7) > 2


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
    flights = [read_flight(tmp_path / name) for name in ("flight.bin", "flight-rank-1.bin")]
    assert [one and one.steps for one in flights] == [1, 1]
    assert not (tmp_path / "flight-1.bin").exists()
