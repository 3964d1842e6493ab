"""A run's ledger is watched while it serves: drifts are noted, answered and shown."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from slipstream.hardware import load_host
from slipstream.hardware.host import Accelerator
from slipstream.serving.messages import GateCounts
from slipstream.serving.run import Event, Terms
from slipstream.serving.supervision.event_log import EventLog
from slipstream.serving.supervision.run_socket import RunSocket
from slipstream.serving.supervision.watching import steering_watch
from slipstream.serving.supervision.watching.steering_watch import SteeringWatch
from slipstream.serving.swaps import Swap as SwapResult
from slipstream.steering.guardian import (
    ACTIONS,
    COOL_DOWN_SECONDS,
    GuardianRules,
)
from slipstream.steering.state import SteeringOrder
from tests.unit.serving.kept_runs import AT, keep
from tests.unit.serving.supervision.fake_engine import MakeStage, Stage, until
from tests.unit.steering.lines import write
from tests.unit.vllm_plugin.steering.reports import make_state

CLOCK_MHZ = 2400
SWAPPED = SwapResult(
    order="1", at=AT, outcome="swapped", message="it drafts", drafter="new", serves="new"
)


class Swap:
    """A drafter before this one, as long as it `works`."""

    def __init__(self, works: bool = True) -> None:
        self.works, self.reasons = works, list[str]()

    def swap_back(self, reason: str) -> bool:
        self.reasons.append(reason)
        return self.works


class Watched:
    """A run's folder with a ledger, and the watch over it."""

    def __init__(self, root: Path, *allowed: Any, swap: "Swap | None" = None) -> None:
        terms = Terms(guardian=GuardianRules(allowed=allowed))
        self.folder, run = keep(root, terms=terms, last_swap=SWAPPED if swap else None)
        self.events: list[Event] = []
        self.event_log = EventLog(self.folder, run, self.events.append)
        self.now, self.clock_mhz = 0.0, CLOCK_MHZ
        self.socket, self.core = RunSocket(self.event_log), Mock()
        self.core.transport.get_write_buffer_size.return_value = 0
        self.watch = SteeringWatch(
            *(self.event_log, self.socket, self.read_accelerators, swap or Swap()),
            clock=lambda: self.now,
        )
        self.report()

    def report(self, **changes: Any) -> None:
        """Have the engine's core say how it stands."""
        self.socket._cores[self.core] = make_state(**changes)

    def read_accelerators(self) -> Sequence[Accelerator]:
        (one,) = load_host("gb10").accelerators
        return (one.model_copy(update={"clock_mhz": self.clock_mhz, "clock_limit_mhz": CLOCK_MHZ}),)

    def serve(self, requests: int, accepted: int, **changes: Any) -> str | None:
        """Have requests end and the watch look at them."""
        with self.folder.ledger.open("ab") as file:
            file.writelines(make_lines(requests, accepted, **changes))
        reasons = []
        for _ in range(1 + requests // steering_watch.LINES_PER_LOOK):
            reasons.append(asyncio.run(self.watch.look()))
        return next((reason for reason in reasons if reason is not None), None)

    @property
    def messages(self) -> list[str]:
        return [event.message for event in self.events]

    def read_order(self) -> int | None:
        return self.socket.order.most


def make_lines(requests: int, accepted: int, **changes: Any) -> Iterator[bytes]:
    """Yield lines of requests with 20 drafts, of which about so many had a token accepted."""
    line = {"drafts": 20, "drafted": 140, "first_seconds": None, "prompt_tokens": 99, "key": None}
    for number in range(requests):
        yield write(accepted=[max(0, accepted + number % 2), 0], **(line | changes))


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    made = Watched(tmp_path, "note", "lower")
    with closing(made.watch):
        yield made


def test_a_fall_is_noted_and_the_draft_length_lowered(watched: Watched) -> None:
    assert watched.serve(400, 14) is None
    assert (watched.events, watched.read_order()) == ([], None)
    watched.serve(100, 2)
    note, lower = watched.messages[:2]
    assert note.startswith("guardian: code, ")
    assert " fell from " in note
    assert lower.startswith("guardian: drafts are limited to 3 tokens: code, ")
    assert watched.events[1].figures == {"most": 3}
    assert watched.read_order() == 3
    assert watched.folder.read().drifts == watched.event_log.run.drifts != ()


def test_a_drift_that_is_over_is_noted_and_its_order_lifted(watched: Watched) -> None:
    watched.serve(400, 14)
    watched.serve(100, 2)
    watched.now = COOL_DOWN_SECONDS
    watched.serve(400, 14)
    assert watched.event_log.run.drifts == ()
    assert watched.read_order() is None
    assert any(message.startswith("guardian: no longer active: ") for message in watched.messages)
    assert "guardian: the draft length is unrestricted again: the drift is over" in watched.messages


def test_an_order_of_somebody_else_is_not_touched(watched: Watched) -> None:
    watched.socket.bounds = SteeringOrder(most=5)
    watched.serve(400, 14)
    watched.serve(200, 2)
    assert watched.event_log.run.drifts
    assert watched.read_order() == 5


def test_a_length_that_is_fixed_is_not_lowered(watched: Watched) -> None:
    for state in ({"steers": False}, {"at": 0}, {"longest": None}):
        watched.report(**state)
        watched.serve(200, 14)
    watched.serve(200, 2)
    assert watched.event_log.run.drifts
    assert watched.read_order() is None


def test_the_supervisors_own_requests_do_not_count(watched: Watched) -> None:
    watched.serve(400, 14, key="supervisor")
    watched.serve(400, 2, key="supervisor")
    assert watched.events == []


def test_other_settings_are_no_drift(watched: Watched) -> None:
    watched.serve(400, 14)
    watched.serve(100, 2)
    watched.event_log.update(plan=watched.event_log.run.plan.without_drafts())
    watched.serve(10, 2)
    assert watched.event_log.run.drifts == ()
    assert not any("is over" in message for message in watched.messages)


def test_forbidden_altogether_it_does_not_even_look(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.serve(400, 14)
    watched.serve(400, 2)
    assert (watched.events, watched.event_log.run.drifts) == ([], ())


@pytest.mark.parametrize("works", [True, False])
def test_a_drafter_is_swapped_back_where_that_can_be_done(tmp_path: Path, works: bool) -> None:
    swap = Swap(works)
    watched = Watched(tmp_path, "swap-back", swap=swap)
    with closing(watched.watch):
        watched.serve(400, 14)
        watched.serve(100, 2)
    (message,) = watched.messages
    outcome = "swapping back to the previous drafter" if works else "cannot swap back"
    assert message == f"guardian: {outcome}: {swap.reasons[0]}"


def test_without_a_drafter_before_there_is_no_way_back(tmp_path: Path) -> None:
    watched = Watched(tmp_path, "swap-back")
    with closing(watched.watch):
        watched.serve(400, 14)
        watched.serve(100, 2)
    assert watched.event_log.run.drifts
    assert watched.messages == []


def slow(watched: Watched, seconds: float) -> str | None:
    return watched.serve(400, 14, seconds=seconds, first_seconds=0.5, cached_tokens=99)


@pytest.mark.parametrize(
    ("clock_mhz", "in_flight", "restarts"),
    [(CLOCK_MHZ, 1, True), (CLOCK_MHZ // 3, 0, True), (CLOCK_MHZ // 3, 1, False)],
)
def test_a_slow_engine_is_restarted_unless_its_accelerator_is_slow(
    tmp_path: Path, clock_mhz: int, in_flight: int, restarts: bool
) -> None:
    watched = Watched(tmp_path, *ACTIONS)
    with closing(watched.watch):
        watched.clock_mhz = clock_mhz
        watched.socket.counts = GateCounts(pid=1, in_flight=in_flight)
        assert slow(watched, 2.0) is None
        reason = slow(watched, 4.0)
    (drift,) = watched.event_log.run.drifts
    assert (reason is not None) == restarts == (drift.decay is None)
    assert ("low-power state" in watched.messages[0]) == (not restarts)


def test_a_broken_ledger_is_noted_once_and_what_is_whole_counts(watched: Watched) -> None:
    for _ in range(3):
        with watched.folder.ledger.open("ab") as file:
            file.write(b"not a line\n")
        watched.serve(100, 14)
    assert [message.endswith("not ledger lines") for message in watched.messages] == [True]
    watched.serve(200, 2)
    assert watched.event_log.run.drifts


def test_many_lines_are_read_over_several_looks(watched: Watched) -> None:
    with watched.folder.ledger.open("ab") as file:
        file.writelines(make_lines(steering_watch.LINES_PER_LOOK, 14))
        file.writelines(make_lines(200, 2))
    asyncio.run(watched.watch.look())
    assert watched.events == []
    asyncio.run(watched.watch.look())
    assert watched.event_log.run.drifts


@pytest.fixture
def hurry(hurried: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steering_watch, "LOOK_EVERY_SECONDS", 0.02)


def grow(stage: Stage, requests: int, accepted: int, **changes: Any) -> None:
    with stage.folder.ledger.open("ab") as file:
        file.writelines(make_lines(requests, accepted, **changes))


@pytest.mark.usefixtures("hurry")
def test_a_supervised_engine_is_watched_and_restarted_if_that_is_allowed(
    make_stage: MakeStage,
) -> None:
    terms = Terms(guardian=GuardianRules(allowed=("note", "restart")))
    stage = make_stage(terms=terms)

    async def drift(stage: Stage) -> None:
        await stage.reach("ready")
        grow(stage, 400, 14)
        grow(stage, 200, 2)
        await stage.reach("ready", times=2)
        await until(lambda: stage.count_starts() == 2)

    stage.serve(drift)
    assert "guardian: restarting the engine: code, " in stage.messages()
    assert stage.run.restarts == 1
    assert stage.run.state == "stopped"


@pytest.mark.usefixtures("hurry")
def test_a_ledger_that_cannot_be_read_ends_no_engine(stage: Stage, tmp_path: Path) -> None:

    async def look(stage: Stage) -> None:
        stage.folder.ledger.symlink_to(tmp_path / "nowhere")
        await stage.reach("ready")
        await until(lambda: "the guardian cannot watch: OSError" in stage.messages())
        stage.folder.ledger.unlink()
        grow(stage, 400, 14)
        grow(stage, 200, 2)
        await until(lambda: stage.run.drifts != ())

    stage.serve(look)
    assert stage.count_starts() == 1
    assert stage.messages().count("the guardian cannot watch") == 1
