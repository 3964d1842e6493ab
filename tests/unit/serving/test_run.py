"""A run is its folder: written whole, read by others, and live as long as its supervisor."""

import errno
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import NoReturn, get_args

import pytest

from slipstream.engines.vllm_log import Phase
from slipstream.errors import InvalidInputError
from slipstream.planning.planner import make_plan
from slipstream.planning.settings.options import make_options
from slipstream.serving import run as run_module
from slipstream.serving.run import (
    TRANSITIONS,
    Event,
    Process,
    Run,
    RunFolder,
    State,
    expected_phases,
    find_live,
    find_runs_root,
    is_alive,
    list_runs,
    name_run,
    read_process,
)
from tests.unit.planning.pieces import DRAFTER, TARGET
from tests.unit.serving.kept_runs import AT, HOST, PLAN, keep
from tests.unit.serving.kept_runs import RUN as READY_RUN

STATES: tuple[State, ...] = get_args(State)
OTHER_PLAN = make_plan(HOST, TARGET, DRAFTER, None, make_options(context=8192))
RUN = READY_RUN.model_copy(update={"engine": None, "url": None, "state": "planned"})
READY = Event(at=AT, state="ready", message="12 tokens/s", figures={"tokens_per_s": 12})
LOADING = Event(at=AT, state="starting", phase="weights", message="half of the weights")


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "state" / "runs" / "one")


def test_a_run_and_an_event_load_back_identically() -> None:
    assert Run.model_validate_json(RUN.to_json()) == RUN
    assert Event.model_validate_json(LOADING.to_json()) == LOADING
    assert (RUN.state, RUN.restarts, RUN.rungs) == ("planned", 0, ())


def test_every_state_has_its_steps_and_leads_to_an_end() -> None:
    assert set(TRANSITIONS) == set(STATES)
    ended: set[State] = {state for state, steps in TRANSITIONS.items() if not steps}
    assert ended == {"stopped", "failed"}
    for _ in STATES:
        ended |= {state for state, steps in TRANSITIONS.items() if ended & set(steps)}
    assert ended == set(STATES)


def test_a_run_goes_through_its_life_and_back_after_a_crash() -> None:
    life: tuple[State, ...] = (
        *("downloading", "starting", "warming", "ready", "starting", "starting", "warming"),
        *("ready", "warming", "ready", "draining", "stopping", "stopped"),
    )
    run = RUN
    for state in life:
        run = run.move(state)
    assert run.state == "stopped"


@pytest.mark.parametrize("old", STATES)
@pytest.mark.parametrize("new", STATES)
def test_a_step_that_the_table_does_not_have_is_a_bug(old: State, new: State) -> None:
    run = RUN.model_copy(update={"state": old})
    if new in TRANSITIONS[old]:
        assert run.move(new).state == new
    else:
        with pytest.raises(ValueError, match=f"a run cannot change from {old} to {new}"):
            run.move(new)


def test_a_run_is_begun_in_a_folder_that_only_its_owner_sees(folder: RunFolder) -> None:
    before = os.umask(0)
    try:
        folder.begin(RUN)
    finally:
        os.umask(before)
    assert folder.read() == RUN
    assert folder.path.stat().st_mode & 0o777 == 0o700
    assert folder.path.parent.stat().st_mode & 0o777 == 0o700


def test_a_folder_is_begun_once(folder: RunFolder) -> None:
    folder.begin(RUN)
    with pytest.raises(InvalidInputError, match=r"cannot write .*one: File exists"):
        folder.begin(RUN.move("starting"))
    assert folder.read() == RUN


def test_events_are_read_in_the_order_in_which_they_came(folder: RunFolder) -> None:
    folder.begin(RUN)
    assert folder.read_events() == ()
    for event in (LOADING, READY):
        folder.append(event)
    assert folder.read_events() == (LOADING, READY)


def test_an_event_that_was_cut_off_costs_no_other(folder: RunFolder) -> None:
    folder.begin(RUN)
    folder.append(LOADING)
    whole = folder.events.read_bytes()
    folder.events.write_bytes(whole + whole[:40])
    assert folder.read_events() == (LOADING,)
    folder.append(READY)
    assert folder.read_events() == (LOADING, READY)


def test_an_event_of_another_version_is_refused(folder: RunFolder) -> None:
    folder.begin(RUN)
    folder.append(LOADING)
    folder.events.write_text(folder.events.read_text().replace('"schema_version":1', '"version":2'))
    with pytest.raises(InvalidInputError) as caught:
        folder.read_events()
    assert caught.value.details == ("version: Extra inputs are not permitted",)


def test_a_full_disk_is_called_by_its_name(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.begin(RUN)
    folder.events.symlink_to("/dev/full")
    with pytest.raises(InvalidInputError, match=r"^disk_full: .*events\.jsonl") as caught:
        folder.append(READY)
    assert caught.value.hint == f"df -h {folder.path}"

    def refuse(path: Path, content: bytes) -> NoReturn:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr(run_module, "write_even_if_full", refuse)
    with pytest.raises(InvalidInputError, match=r"^disk_full: .*run\.json"):
        folder.write(RUN)
    assert folder.read() == RUN


def test_a_record_that_is_being_written_is_read_again(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.begin(RUN)
    whole = folder.record.read_bytes()
    folder.record.write_bytes(whole[:100])
    monkeypatch.setattr("time.sleep", lambda _: folder.record.write_bytes(whole))
    assert folder.read() == RUN


@pytest.mark.parametrize(
    ("environment", "root"),
    [
        ({"XDG_STATE_HOME": "/s", "HOME": "/h"}, "/s/slipstream/runs"),
        ({"HOME": "/h"}, "/h/.local/state/slipstream/runs"),
    ],
)
def test_runs_are_kept_with_the_users_state(environment: dict[str, str], root: str) -> None:
    assert find_runs_root(environment) == Path(root)


def test_a_run_is_named_after_target_hour_and_supervisor() -> None:
    assert name_run(PLAN, AT, 4711) == "Qwen3-8B-20261115-061712-4711"


def test_runs_are_listed_from_the_newest_and_broken_ones_left_out(tmp_path: Path) -> None:
    assert list_runs(tmp_path / "none") == []
    keep(tmp_path, "old")
    keep(tmp_path, "new", began_at=AT + timedelta(hours=1))
    keep(tmp_path, "broken")[0].record.write_text("{}")
    assert [run.id for _, run in list_runs(tmp_path)] == ["new", "old"]


def test_a_run_is_live_while_its_own_supervisor_is(tmp_path: Path) -> None:
    us = read_process(os.getpid())
    assert us is not None
    keep(tmp_path, "ours", supervisor=us)
    keep(tmp_path, "dead")
    keep(tmp_path, "recycled", supervisor=us.model_copy(update={"start_ticks": 1}))
    assert [run.id for _, run in find_live(tmp_path)] == ["ours"]


def test_a_process_that_ended_does_not_live(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        seen = read_process(child.pid)
        assert seen is not None
        assert is_alive(seen)
        child.communicate(b"\n")
        assert not is_alive(seen)
    (tmp_path / "7").mkdir()
    stat = "7 (a) S (b) {state} 1 7 7 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 8101 0 0\n"
    for state, living in (("S", Process(pid=7, start_ticks=8101)), ("Z", None)):
        (tmp_path / "7" / "stat").write_text(stat.format(state=state))
        assert read_process(7, tmp_path) == living


def test_a_start_is_expected_to_take_what_earlier_ones_took(tmp_path: Path) -> None:
    took: list[dict[Phase, float]] = [{"weights": 10, "cache": 1}, {"weights": 90}, {"weights": 12}]
    for number, seconds in enumerate(took):
        keep(tmp_path, f"same-{number}", phase_seconds=seconds)
    keep(tmp_path, "other", plan=OTHER_PLAN, phase_seconds={"weights": 900})
    assert expected_phases(tmp_path, PLAN) == {"weights": 12, "cache": 1}
    assert expected_phases(tmp_path, OTHER_PLAN) == {"weights": 900}
    assert expected_phases(tmp_path / "none", PLAN) == {}
