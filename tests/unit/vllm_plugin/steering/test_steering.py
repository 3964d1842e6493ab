"""The core reports its state once a second and takes orders, and no fault ends that."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slipstream.steering.flight import read_flight
from slipstream.steering.state import SteeringOrder, SteeringState
from slipstream.vllm_plugin.steering import steering as module
from slipstream.vllm_plugin.steering.choosing import Generating
from slipstream.vllm_plugin.steering.steering import Steering
from slipstream.vllm_plugin.steering.step_costs import StepWork
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
        dict.fromkeys(names, length + 1),
        dict.fromkeys(names, 1),
        dict.fromkeys(names, (length, 0)) if length else {},
        length,
        seconds=seconds,
        waiting=0,
        cache=0.25,
    )


def test_the_state_tells_what_the_core_does(steering: Steering) -> None:
    steering.begin("one", {"slipstream": "4f - code chat -"}, 0.0)
    steering.ledger.see_step(["one"], [3], [7], [2], [False], 1.0)
    for length in (*[7] * 9, 0):
        step(steering, 2, length)
    state = steering.describe()
    assert (state.steers, state.longest, state.running, state.steps) == (True, 7, 2, 10)
    assert (state.kv_usage, state.step_seconds) == (0.25, 0.05)
    assert {one.draft_length: one.steps for one in state.lengths}.items() >= {7: 9}.items()
    assert state.kinds["code"].accepted == (1, 1, 0, 0, 0, 0, 0)
    assert state.is_fresh(time.time())
    steering.rest(waiting=1)
    assert (steering.describe().running, steering.describe().waiting) == (0, 1)


def test_an_order_bounds_the_length_and_another_drafter_begins_anew(steering: Steering) -> None:
    steering.begin("r0", {}, 0.0)
    for _ in range(200):
        step(steering, 1, 7)
    steering.control.survival.settle()
    steering._follow_order(SteeringOrder(least=1, most=2, drafter=3))
    assert steering.control.choose(1) in (1, 2)
    assert (steering.describe().least, steering.describe().most) == (1, 2)
    assert steering.control.survival.weigh(0.0)[1][7] < 0.2
    steering._follow_order(SteeringOrder(drafter=4))
    assert (steering.describe().least, steering.describe().most) == (None, None)
    assert steering.control.survival.weigh(0.0)[1][7] > 1


def test_what_was_learnt_is_kept_for_the_next_engine(tmp_path: Path) -> None:
    first = Steering(tmp_path, range(8), longest=7, planned=None)
    for length in [0, 7] * 100:
        step(first, 2, length, seconds=0.1 + 0.03 * (length > 0))
    first.close()
    kept = (tmp_path / "learnt.json").read_bytes()
    assert (tmp_path / "learnt.json").stat().st_mode & 0o077 == 0
    second = Steering(tmp_path, range(8), longest=7, planned=None)
    second.close()
    plain, drafting = (StepWork(2, verified=2 * width, width=width) for width in (0, 7))
    for work, seconds in ((plain, 0.1), (drafting, 0.13)):
        assert second.control.costs.expect(work) == pytest.approx(seconds, rel=0.05)
    assert json.loads(kept)["costs"] == first.control.costs.dump()


HOSTILE = {
    "empty": b"",
    "not JSON": b"{",
    "a list": b"[]",
    "deep": b"[" * 100_000,
    "large": b" " * (300 << 10),
    "wrong shape": b'{"costs": {"weights": [1], "covariance": [[1]]}, "survival": {}}',
    "not finite": b'{"costs": {"weights": [NaN, 1, 1, 1], "covariance": []}, "survival": {}}',
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_what_is_not_sound_is_not_learnt(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "learnt.json").write_bytes(content)
    made = Steering(tmp_path, range(8), longest=7, planned=None)
    made.close()
    assert made.control.costs.steps == 0
    assert not made.control.costs.weights.any()


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


def test_no_fault_of_ours_ends_a_step_and_the_report_says_so(
    steering: Steering, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise KeyError("planted")

    rows = [[1, 2, 3], []]
    with monkeypatch.context() as planted:
        for owner, names in (
            (steering.ledger, ("begin", "end", "see_step")),
            (steering.control, ("choose",)),
            (steering._chooser, ("begin", "end", "choose", "see_step")),
            (module, ("find_most_constrained",)),
        ):
            for name in names:
                planted.setattr(owner, name, fail)
        steering.begin("one", {}, 0.0)
        assert steering.choose_width(4) == 7
        assert steering.choose_drafts([Generating("one", [], 0)] * 2, rows, None) == rows
        assert steering.find_most_constrained(8, 1) == 0
        step(steering, 2, 7)
        steering.end("one", "stop", prompt=1, tokens=1)
    assert steering.describe().fault == "begin: KeyError: 'planted'"
    assert caplog.text.count("this step is not steered") == 1
    step(steering, 2, 7)
    assert steering.describe().steps == 1
    monkeypatch.setattr(module, "FAULT_SECONDS", 0.0)
    assert steering.describe().fault is None


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
