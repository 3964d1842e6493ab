"""What `slipstream status` shows, word for word."""

from datetime import timedelta
from pathlib import Path

import pytest

from slipstream.reporting.serving.run import render_status, render_statuses, show_age
from slipstream.serving.run_status import RunStatus, StatusList, read_status
from slipstream.serving.supervision.causes.ladder import step_down
from tests.snapshots import read_snapshot
from tests.unit.serving.kept_runs import (
    AT,
    PLAN,
    SUPERVISOR,
    FakeProc,
    answering,
    happen,
    keep,
    make_counts,
)

NOW = AT + timedelta(hours=2, minutes=3, seconds=44)


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path / "proc")


@pytest.fixture
def working(tmp_path: Path, proc: FakeProc) -> RunStatus:
    """A run that stepped down once and has work."""
    lower = step_down(PLAN, "illegal-access", ())
    assert lower is not None
    measured = {"tokens_per_second": 41.26, "tokens_per_step": 3.456, "start_seconds": 571.0}
    changes = {"plan": lower[0], "rungs": (lower[1],), "measurements": measured, "restarts": 4}
    folder, run = keep(tmp_path / "runs", "Qwen3-8B-20261115-061712-4711", **changes)
    happen(folder, "ready", "ready at http://127.0.0.1:8000: 41.3 tokens/s alone")
    proc.add(SUPERVISOR)
    proc.add_engine(4730)
    (proc.path / "4730" / "smaps_rollup").write_text("[rollup]\nPss: 5033164 kB\n")
    with answering(folder, run, counts=make_counts(99.6, ann=2)):
        status = read_status(folder, run, 100.0, proc.path)
    return status.model_copy(update={"folder": "runs/one"})


def test_a_run_is_shown_as_reviewed(working: RunStatus) -> None:
    shown = render_status(working, NOW) + "\n"
    assert shown == read_snapshot("run-status.txt", shown)


def test_runs_are_listed_as_reviewed(tmp_path: Path, proc: FakeProc, working: RunStatus) -> None:
    proc.remove(SUPERVISOR.pid)
    killed = read_status(*keep(tmp_path / "runs", "killed", engine=None), 0, proc.path)
    plain = PLAN.without_drafts()
    failed = keep(tmp_path / "runs", "failed", state="failed", plan=plain, engine=None)
    listed = StatusList(root="runs", runs=(working, killed, read_status(*failed, 0, proc.path)))
    shown = render_statuses(listed, NOW) + "\n"
    assert shown == read_snapshot("run-list.txt", shown)


def test_a_killed_run_is_never_called_ready(tmp_path: Path, proc: FakeProc) -> None:
    proc.add_engine()
    status = read_status(*keep(tmp_path), 0, proc.path)
    lines = dict(line.split(maxsplit=1) for line in render_status(status, NOW).splitlines() if line)
    assert lines["state"].startswith("supervisor gone for 2 h 3 min")
    assert lines["processes"] == "supervisor 4711 (gone), engine 4720 with unknown"
    assert lines["requests"] == "unknown"
    assert lines["measured"] == "nothing yet"
    assert lines["next:"] == "slipstream stop one"


def test_without_runs_the_list_says_so() -> None:
    shown = render_statuses(StatusList(root="runs", runs=()), NOW)
    assert shown == "no runs in runs\n\nnext: slipstream serve TARGET"


def test_an_age_has_its_two_largest_units() -> None:
    shown = list(map(show_age, (-1, 59.9, 60, 3599, 3600, 90000)))
    assert shown == ["0 s", "59 s", "1 min 0 s", "59 min 59 s", "1 h 0 min", "1 d 1 h"]
