"""What two series of takes say about each other, and how engines are had for them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from slipstream.demo import performance
from slipstream.demo.performance import (
    Demo,
    Part,
    Stage,
    make_workload,
    stay_up,
)
from slipstream.errors import EngineError
from slipstream.hardware.machine_watch import MachineWatch
from tests.unit.demo.pieces import TEXT, decode, make_demo
from tests.unit.demo.test_recording import EVENTS, pace
from tests.unit.measuring.client.stream_server import answer_with, run_stream_server
from tests.unit.reporting.records import make_plans


def test_the_speed_up_is_the_geometric_mean_over_the_prompts() -> None:
    demo = make_demo(step=1.25)
    assert demo.speed_ups == pytest.approx([2 / 1.25, 4 / 1.25])
    assert demo.speed_up == pytest.approx(8**0.5 / 1.25)


def test_tokens_a_step_are_the_engines_own_count() -> None:
    assert make_demo().tokens_per_step == pytest.approx(1 + 50 / 30)
    plain = make_demo().plain
    assert make_demo().model_copy(update={"drafted": plain}).tokens_per_step is None


def test_a_drafted_steps_time_in_plain_steps_is_what_breaks_even() -> None:
    assert make_demo(step=4.1).step_cost == pytest.approx(4.1)
    plain = make_demo().plain
    assert make_demo().model_copy(update={"drafted": plain}).step_cost is None


def test_only_answers_of_the_same_tokens_are_equal() -> None:
    assert make_demo().equal == 2
    assert make_demo(TEXT[:-1] + "s").equal == 1
    assert make_demo(TEXT, TEXT[:-4]).equal == 1


def test_a_demo_loads_back_identically() -> None:
    assert Demo.model_validate_json(make_demo().to_json()) == make_demo()


def test_an_engine_is_warmed_up_then_asked_and_stays_up_in_the_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began: list[dict[str, Any]] = []

    @contextmanager
    def run_engine(plan: object, **how: Any) -> Iterator[str]:
        began.append(how)
        how["on_wait"](7.0)
        with run_stream_server(lambda _: pace(answer_with(*EVENTS))) as server:
            yield server.url
            asked.extend(body["messages"][0]["content"] for body in server.bodies)

    asked: list[str] = []
    ticks: list[tuple[str, float]] = []
    parts: list[Part] = []
    monkeypatch.setattr(performance, "run_engine", run_engine)
    workload = make_workload(8)
    now = iter(range(100))
    stage = Stage(
        workload,
        decode,
        tmp_path,
        {"A": "B"},
        tick=lambda *told: ticks.append(told),
        note=parts.append,
        clock=lambda: float(next(now)),
        watch=MachineWatch(proc=tmp_path / "proc"),
    )
    with stage.perform("plain", make_plans()[0]) as (url, takes):
        assert url.startswith("http://127.0.0.1")
        assert asked == []
    assert [take.prompt for take in takes] == list(workload.prompts)
    assert asked == [one.messages[0]["content"] for one in (*workload.warm_up, *workload.prompts)]
    assert (began[0]["log"], began[0]["environment"]) == (tmp_path / "plain.log", {"A": "B"})
    assert ticks[0] == ("the plain engine starts", 7.0)
    assert [(part.name, part.seconds) for part in parts] == [
        ("the plain engine starts", 1.0),
        ("the plain engine warms up and answers", 6.0),
    ]


def test_it_stays_up_as_long_as_the_engine_does(monkeypatch: pytest.MonkeyPatch) -> None:
    health = iter([True, True, False])
    waits: list[float] = []
    monkeypatch.setattr(performance, "is_healthy", lambda _: next(health))
    with pytest.raises(EngineError):
        stay_up("http://127.0.0.1:1", waits.append)
    assert len(waits) == 2
