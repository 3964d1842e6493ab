"""Two starts of one arm each, their answers token by token, and what they say of each other."""

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from slipstream.demo import performance
from slipstream.demo.performance import (
    ATTEMPTS,
    WARM_UP_TOKENS,
    Demo,
    RecordedAnswer,
    Stage,
    TimedPart,
    make_workload,
    mark_tokens,
    stay_up,
)
from slipstream.errors import EngineError
from slipstream.measuring import engine_start
from slipstream.measuring.bench import Bench
from slipstream.measuring.comparing.comparison import ComparedArm, Start
from slipstream.measuring.machine_watch import MachineWatch
from tests.unit.demo.pieces import TEXT, decode, make_demo
from tests.unit.measuring.client.stream_server import (
    ROLE,
    answer_with,
    count,
    refuse,
    run_stream_server,
    say,
)
from tests.unit.reporting.records import make_plans

DRAFTS = {
    "metrics": {
        "speculative_decoding": {
            "num_spec_steps": 2,
            "num_draft_tokens": 14,
            "num_accepted_draft_tokens": 3,
            "acceptance_histogram": [0, 1, 1],
        }
    }
}


def give(text: str, finish_reason: str | None = None) -> dict[str, Any]:
    return say(text, token_ids=list(map(ord, text)), finish_reason=finish_reason)


EVENTS = (ROLE, give("a"), give("bcd"), give("ef", "stop"), count(9, 6, **DRAFTS))
WHOLE = list(answer_with(ROLE, give("abc", "stop"), count(9, 3)))


def pace(pieces: Iterable[bytes | None]) -> Iterator[bytes | None]:
    """Send pieces one after the other."""
    for piece in pieces:
        yield piece
        time.sleep(0.002)


class Bed:
    """A stage whose engine is a server that answers as it is told; what it saw and noted."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ticks: list[tuple[str, float]] = []
        self.parts: list[TimedPart] = []
        self.bodies: list[dict[str, Any]] = []
        self.answer: Any = lambda body: pace(answer_with(*EVENTS))
        self.now = 0.0
        monkeypatch.setattr(engine_start, "run_engine", self.run_engine)
        self.stage = Stage(
            bench=Bench(make_workload(8), (1,), prefix_cache="shared"),
            decode=decode,
            logs=tmp_path,
            environment={"A": "B"},
            tick=lambda *told: self.ticks.append(told),
            note=self.parts.append,
            clock=self.pass_second,
            watch=MachineWatch(proc=tmp_path / "proc"),
        )

    def pass_second(self) -> float:
        self.now += 1
        return self.now

    @contextmanager
    def run_engine(self, plan: object, **how: Any) -> Iterator[str]:
        assert (how["log"].name, how["environment"]) == ("plain.log", {"A": "B"})
        how["on_start"](os.getpid())
        how["on_wait"](7.0)
        with run_stream_server(lambda body: self.answer(body)) as server:
            yield server.url
            self.bodies += server.bodies

    def perform(self) -> tuple[Start, list[RecordedAnswer]]:
        arm = ComparedArm(name="plain", plan=make_plans()[0])
        with self.stage.perform("A", arm) as (url, start, answers):
            assert url.startswith("http://127.0.0.1")
            assert self.bodies == []
        return start, answers


@pytest.fixture
def bed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bed:
    return Bed(tmp_path, monkeypatch)


def test_an_engine_is_warmed_up_then_asked_and_stays_up_in_the_block(bed: Bed) -> None:
    start, answers = bed.perform()
    workload = make_workload(8)
    assert [answer.prompt for answer in answers] == list(workload.prompts)
    asked = [(body["messages"][0]["content"], body["max_tokens"]) for body in bed.bodies]
    assert asked[-4:] == [(one.messages[0]["content"], 8) for one in workload.prompts]
    warm = {(one.messages[0]["content"], WARM_UP_TOKENS) for one in workload.warm_up}
    assert set(asked[:-4]) == warm
    assert len(asked) - 4 == 2 * start.warm_up.rounds
    assert (start.arm, start.start_seconds, len(start.loads)) == ("A", 7.0, 4)
    assert bed.ticks[0] == ("the plain engine starts", 7.0)
    assert [part.name for part in bed.parts] == [
        "the plain engine starts",
        "the plain engine warms up and answers",
    ]
    assert bed.parts[0].seconds == 1.0


def test_all_tokens_of_a_chunk_but_the_last_were_drafted(bed: Bed) -> None:
    start, (taken, *_) = bed.perform()
    assert [token.text for token in taken.tokens if token.drafted] == ["b", "c", "e"]
    assert "".join(token.text for token in taken.tokens) == "abcdef"
    assert (start.samples[0].drafts, start.samples[0].accepted) == (2, 3)
    seconds = [token.seconds for token in taken.tokens]
    assert 0 < seconds[0] <= seconds[1] == seconds[3] <= seconds[5] == taken.seconds


def test_tokens_that_waited_for_each_other_were_not_drafted_by_a_plain_engine(bed: Bed) -> None:
    events = (ROLE, give("abc"), give("de", "stop"), count(9, 5))
    bed.answer = lambda _: pace(answer_with(*events))
    _, (taken, *_) = bed.perform()
    assert [token.drafted for token in taken.tokens] == [False] * 5


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (refuse("400 Bad Request", b"too long"), "code could not be timed: answered 400: too long"),
        (answer_with(ROLE, give("ab")), "finish reason None"),
        (answer_with(ROLE, give("", "stop"), count(9, 0)), "in one chunk"),
        (WHOLE, "in one chunk"),
    ],
)
def test_an_answer_that_cannot_be_timed_is_asked_for_again_and_then_an_error(
    bed: Bed, answer: Any, told: str
) -> None:
    pieces, asked = list(answer), list[str]()

    def spoil(body: dict[str, Any]) -> Iterator[bytes | None]:
        text = body["messages"][0]["content"]
        if not text.startswith("Write a Python"):
            return pace(answer_with(*EVENTS))
        asked.append(text)
        return pace(pieces)

    bed.answer = spoil
    with pytest.raises(EngineError, match=told):
        bed.perform()
    assert len(asked) == ATTEMPTS


def test_a_second_try_counts_alone(bed: Bed) -> None:
    first = iter([WHOLE])

    def stumble(body: dict[str, Any]) -> Iterator[bytes | None]:
        is_first = body["messages"][0]["content"].startswith("Write a Python")
        sound = list(answer_with(*EVENTS))
        return pace(next(first, sound) if is_first else sound)

    bed.answer = stumble
    _, answers = bed.perform()
    assert ["".join(token.text for token in answer.tokens) for answer in answers] == ["abcdef"] * 4


def test_a_sign_of_several_tokens_comes_with_its_last() -> None:
    heart = "I \N{BLACK HEART SUIT}!".encode()
    chunks = [(float(at), (byte,)) for at, byte in enumerate(heart)]
    tokens = mark_tokens(chunks, lambda ids: bytes(ids).decode(errors="replace"), drafted=False)
    assert [token.text for token in tokens] == [
        *("I", " ", "", "", "\N{BLACK HEART SUIT}", "!"),
    ]


def test_the_speed_up_is_the_geometric_mean_over_the_prompts() -> None:
    demo = make_demo(step=1.25)
    assert demo.speed_ups == pytest.approx([2 / 1.25, 4 / 1.25])
    assert demo.speed_up == pytest.approx(8**0.5 / 1.25)


def test_steps_and_their_tokens_are_the_engines_own_count() -> None:
    demo = make_demo(step=4.1)
    assert demo.tokens_per_step == pytest.approx(1 + 50 / 30)
    assert demo.step_seconds == pytest.approx((0.1, 0.41))
    plain = demo.model_copy(update={"starts": (demo.starts[0], demo.starts[0])})
    assert plain.tokens_per_step is None


def test_only_answers_of_the_same_tokens_are_equal() -> None:
    assert make_demo().equal == 2
    assert make_demo(TEXT[:-1] + "s").equal == 1
    assert make_demo(TEXT, TEXT[:-4]).equal == 1
    assert Demo.model_validate_json(make_demo().to_json()) == make_demo()


def test_it_stays_up_as_long_as_the_engine_does(monkeypatch: pytest.MonkeyPatch) -> None:
    health = iter([True, True, False])
    waits: list[float] = []
    monkeypatch.setattr(performance, "is_healthy", lambda _: next(health))
    with pytest.raises(EngineError):
        stay_up("http://127.0.0.1:1", waits.append)
    assert len(waits) == 2
