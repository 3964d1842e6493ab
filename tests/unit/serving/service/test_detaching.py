"""A run is stopped once and patiently, or twice and at once, and leaves nothing behind."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals

import pytest

from slipstream.serving.run import RunFolder, State
from slipstream.serving.service.detaching import stop_run
from tests.unit.serving.kept_runs import ENGINE, SUPERVISOR, FakeProc, happen, keep

Steps = dict[int, Callable[[], object]]


class Stage:
    """A run in a state, a supervisor that lives, and what happens at each look."""

    def __init__(self, root: Path, state: State) -> None:
        self.proc = FakeProc(root / "proc")
        self.proc.add(SUPERVISOR)
        self.folder, _ = keep(root / "runs", state=state, engine=None)
        happen(self.folder, state, "before")

    def move(self, state: State) -> None:
        self.folder.write(self.folder.read().model_copy(update={"state": state}))
        happen(self.folder, state, f"it is {state}")

    def stop(self, steps: Steps, *, immediately: bool = False) -> list[str]:
        """Stop it while the steps happen, each at its look, and return what was told."""
        told, looks = list[str](), 0

        def wait(seconds: float) -> None:
            nonlocal looks
            self.proc.wait(seconds)
            looks += 1
            steps.get(looks, lambda: None)()
            assert looks < 200, "it never ends"

        tools = replace(self.proc.tools(SIGKILL), wait=wait)
        stop_run(
            self.folder,
            immediately=immediately,
            on_event=lambda event: told.append(event.message),
            tools=tools,
        )
        return told

    def end(self) -> None:
        self.move("stopped")
        self.proc.remove(SUPERVISOR.pid)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path, "ready")


def test_one_signal_is_enough_and_what_happens_is_told(stage: Stage) -> None:
    steps: Steps = {2: lambda: stage.move("draining"), 5: stage.end}
    assert stage.stop(steps) == ["it is draining", "it is stopped"]
    assert stage.proc.sent == [(SUPERVISOR.pid, SIGTERM)]


def test_haste_is_a_second_signal_after_the_first_was_seen(stage: Stage) -> None:
    sent_before = list[list[tuple[int, Signals]]]()

    def drain() -> None:
        sent_before.append(list(stage.proc.sent))
        stage.move("draining")

    stage.stop({3: drain, 6: stage.end}, immediately=True)
    assert sent_before == [[(SUPERVISOR.pid, SIGTERM)]]
    assert stage.proc.sent == [(SUPERVISOR.pid, SIGTERM)] * 2


@pytest.mark.parametrize(("immediately", "signals"), [(False, 0), (True, 1)])
def test_a_run_that_drains_already_is_only_hurried(
    tmp_path: Path, immediately: bool, signals: int
) -> None:
    stage = Stage(tmp_path, "draining")
    stage.stop({4: stage.end}, immediately=immediately)
    assert stage.proc.sent == [(SUPERVISOR.pid, SIGTERM)] * signals


def test_a_supervisor_that_is_about_to_leave_is_left_alone(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "failed")
    stage.stop({1: lambda: stage.proc.remove(SUPERVISOR.pid)}, immediately=True)
    assert stage.proc.sent == []


def test_an_id_that_was_given_out_again_gets_no_signal(stage: Stage) -> None:
    stage.proc.add(SUPERVISOR.model_copy(update={"start_ticks": 999_999}))
    assert stage.stop({}) == []
    assert stage.proc.sent == []


def leave_engine(folder: RunFolder, proc: FakeProc) -> None:
    folder.write(folder.read().model_copy(update={"engine": ENGINE}))
    proc.add_engine(4730)


def test_an_engine_without_a_supervisor_is_ended(stage: Stage) -> None:
    leave_engine(stage.folder, stage.proc)
    stage.proc.remove(SUPERVISOR.pid)
    stage.stop({})
    both = (ENGINE.pid, 4730)
    assert stage.proc.sent == [(pid, number) for number in (SIGTERM, SIGKILL) for pid in both]
