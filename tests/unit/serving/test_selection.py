"""A command finds the run it means, and stops none that was not meant."""

from datetime import timedelta
from pathlib import Path

import pytest

from slipstream.errors import InvalidInputError, UsageError
from slipstream.serving.run import Process
from slipstream.serving.selection import choose_run, choose_running, is_over
from tests.unit.serving.kept_runs import AT, ENGINE, RUN, SUPERVISOR, FakeProc, keep

OTHER = Process(pid=5000, start_ticks=3)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two runs of one target, each with its supervisor, and one of another that is over."""
    root = tmp_path / "runs"
    keep(root, "qwen-1")
    keep(root, "qwen-12", began_at=AT + timedelta(hours=2), supervisor=OTHER, engine=None)
    gone = {"supervisor": Process(pid=9, start_ticks=9), "engine": None, "state": "stopped"}
    keep(root, "gemma-7", began_at=AT + timedelta(hours=1), **gone)
    return root


@pytest.mark.parametrize(
    ("name", "chosen"),
    [
        pytest.param(None, "qwen-12", id="the newest"),
        pytest.param("gemma", "gemma-7", id="by its beginning"),
        pytest.param("qwen", "qwen-12", id="the newest that begins so"),
        pytest.param("qwen-1", "qwen-1", id="exactly"),
    ],
)
def test_a_run_is_chosen_by_name(root: Path, name: str | None, chosen: str) -> None:
    assert choose_run(root, name)[1].id == chosen


def test_a_run_that_is_not_there_is_refused(root: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="unknown run llama") as caught:
        choose_run(root, "llama")
    assert caught.value.hint == "slipstream status"
    with pytest.raises(InvalidInputError, match="no runs in"):
        choose_run(tmp_path / "none", None)


def test_the_only_live_run_needs_no_name(root: Path, proc: FakeProc) -> None:
    proc.add(SUPERVISOR)
    assert choose_running(root, None, proc.path)[1].id == "qwen-1"
    assert choose_running(root, "qwen", proc.path)[1].id == "qwen-1"


def test_an_engine_without_its_supervisor_is_live(root: Path, proc: FakeProc) -> None:
    proc.add_engine()
    assert choose_running(root, None, proc.path)[1].id == "qwen-1"


def test_of_several_live_runs_one_must_be_named(root: Path, proc: FakeProc) -> None:
    proc.add(SUPERVISOR)
    proc.add(OTHER)
    with pytest.raises(UsageError, match=r"^2 runs are live$") as caught:
        choose_running(root, None, proc.path)
    assert caught.value.details == ("qwen-12", "qwen-1")
    with pytest.raises(UsageError, match=r"^2 runs are live that start with qwen$"):
        choose_running(root, "qwen", proc.path)
    assert choose_running(root, "qwen-1", proc.path)[1].id == "qwen-1"


def test_without_a_live_run_there_is_nothing_to_choose(root: Path, proc: FakeProc) -> None:
    with pytest.raises(InvalidInputError, match=r"^no run is live$"):
        choose_running(root, None, proc.path)
    with pytest.raises(InvalidInputError, match=r"^gemma-7 has already ended$"):
        choose_running(root, "gemma", proc.path)


def test_a_run_is_over_when_supervisor_and_engine_are(proc: FakeProc) -> None:
    assert is_over(RUN, proc.path)
    proc.add_engine()
    assert not is_over(RUN, proc.path)
    proc.remove(ENGINE.pid)
    proc.add(SUPERVISOR)
    assert not is_over(RUN.model_copy(update={"engine": None}), proc.path)
