"""A run is shown as it is: by its processes where its folder has only its last word."""

import shlex
from datetime import timedelta
from pathlib import Path

import pytest

from slipstream.planning.settings import Choice
from slipstream.reporting.serving.run import render_status
from slipstream.serving.run import ENGINE_NOTE, RunFolder, State
from slipstream.serving.run_status import (
    SHOWN_ENDED,
    RunStatus,
    ShownState,
    StatusList,
    find_shown_state,
    list_statuses,
    read_status,
)
from slipstream.steering.guardian import Drift
from tests.unit.planning.bare_plans import bare_plan
from tests.unit.serving.access.certificates import make_pair
from tests.unit.serving.kept_runs import (
    AT,
    ENGINE,
    PLAN,
    RUN,
    SUPERVISOR,
    FakeProc,
    answering,
    happen,
    keep,
    make_counts,
)
from tests.unit.steering.states import make_state


def look(folder: RunFolder, proc: FakeProc, monotonic: float = 100) -> RunStatus:
    return read_status(folder, folder.read(), monotonic, proc.path)


def test_a_ready_run_is_ready_while_its_supervisor_lives(tmp_path: Path, proc: FakeProc) -> None:
    folder, _ = keep(tmp_path)
    proc.add_engine()
    assert look(folder, proc).state == "supervisor gone"
    proc.add(SUPERVISOR)
    status = look(folder, proc)
    assert (status.state, status.url) == ("ready", "http://127.0.0.1:8000")
    assert (status.supervisor_pid, status.engine_pid) == (SUPERVISOR.pid, ENGINE.pid)
    assert RunStatus.model_validate_json(status.to_json()) == status


def test_a_rank_that_answers_nobody_shows_no_address(tmp_path: Path, proc: FakeProc) -> None:
    folder, _ = keep(tmp_path, url=None)
    proc.add_engine()
    proc.add(SUPERVISOR)
    status = look(folder, proc)
    assert (status.state, status.url) == ("ready", None)
    assert status.next_command == f"slipstream logs -f {status.id}"


@pytest.mark.parametrize(
    ("state", "shown"),
    [("starting", "supervisor gone"), ("failed", "failed"), ("stopped", "stopped")],
)
def test_a_run_that_ended_needs_no_supervisor(
    state: State, shown: ShownState, proc: FakeProc
) -> None:
    assert find_shown_state(RUN.model_copy(update={"state": state}), proc.path) == shown


def test_a_state_lasts_since_the_first_event_that_told_it(tmp_path: Path, proc: FakeProc) -> None:
    folder, _ = keep(tmp_path)
    proc.add(SUPERVISOR)
    assert look(folder, proc).since == AT
    happen(folder, "ready", "ready", after_seconds=10)
    happen(folder, "warming", "not ready", after_seconds=20)
    happen(folder, "ready", "ready again", after_seconds=30)
    happen(folder, "ready", "still", after_seconds=40)
    status = look(folder, proc)
    assert (status.since, status.message) == (AT + timedelta(seconds=30), "still")
    proc.remove(SUPERVISOR.pid)
    assert look(folder, proc).since == AT + timedelta(seconds=40)


def test_what_changes_by_the_second_is_the_supervisors_answer(
    tmp_path: Path, proc: FakeProc
) -> None:
    folder, run = keep(tmp_path)
    proc.add(SUPERVISOR)
    proc.add_engine(4730)
    status = look(folder, proc)
    assert (status.in_flight, status.waiting, status.steering) == (None, 0, ())
    later = run.model_copy(update={"restarts": 3})
    event = happen(folder, "ready", "not written")
    folder.events.unlink()
    reported = {"counts": make_counts(90.0, ann=2, bob=1), "steering": (make_state(),)}
    with answering(folder, later, unwritten=(event,), **reported):
        status = look(folder, proc, monotonic=100)
        assert (status.in_flight, status.last_token_seconds_ago) == (3, 10.0)
        assert (status.restarts, status.message) == (3, "not written")
        assert status.steering == (make_state(),)
        assert RunStatus.model_validate_json(status.to_json()) == status
        proc.remove(ENGINE.pid)
        proc.remove(4730)
        status = look(folder, proc)
        assert (status.in_flight, status.steering) == (None, ())
    with answering(folder, run, counts=make_counts()):
        assert look(folder, proc).last_token_seconds_ago is None


def test_an_engine_that_is_gone_has_no_address(tmp_path: Path, proc: FakeProc) -> None:
    folder, _ = keep(tmp_path, state="stopped")
    status = look(folder, proc)
    assert (status.url, status.engine_pid, status.engine_bytes) == (None, None, None)


@pytest.mark.parametrize(
    ("state", "lives", "command"),
    [
        ("ready", True, "curl http://127.0.0.1:8000/v1/models"),
        ("starting", True, "slipstream logs -f one"),
        ("draining", True, "slipstream logs -f one"),
        ("failed", False, "slipstream doctor one"),
        ("stopped", False, "slipstream serve {folder}"),
    ],
)
def test_every_state_has_its_next_command(
    tmp_path: Path, proc: FakeProc, state: State, lives: bool, command: str
) -> None:
    folder, _ = keep(tmp_path, state=state)
    if lives:
        proc.add(SUPERVISOR)
        proc.add_engine()
    assert look(folder, proc).next_command == command.format(folder=folder.path)


def test_a_killed_supervisors_engine_is_to_be_stopped(tmp_path: Path, proc: FakeProc) -> None:
    folder, _ = keep(tmp_path)
    assert look(folder, proc).next_command == "slipstream doctor one"
    proc.add_engine()
    assert look(folder, proc).next_command == "slipstream stop one"


def test_a_socket_and_a_key_are_part_of_the_question(tmp_path: Path, proc: FakeProc) -> None:
    plan = PLAN.change(uds=Choice("/run/s lip", "user", "requested"))
    keys = tmp_path / "keys.json"
    terms = RUN.terms.model_copy(update={"keys_file": keys})
    folder, _ = keep(tmp_path, plan=plan, terms=terms, url="http://localhost")
    proc.add(SUPERVISOR)
    curl, url = "curl --unix-socket '/run/s lip'", "http://localhost/v1/models"
    assert look(folder, proc).next_command == f"{curl} {url}"
    keys.touch()
    assert look(folder, proc).next_command == f"{curl} -H 'Authorization: Bearer KEY' {url}"


def test_live_runs_come_first_and_old_ones_are_left_out(tmp_path: Path, proc: FakeProc) -> None:
    proc.add(SUPERVISOR)
    keep(tmp_path / "runs", "live")
    gone = SUPERVISOR.model_copy(update={"pid": 9})
    for hour in range(1, 9):
        began = AT + timedelta(hours=hour)
        keep(tmp_path / "runs", f"old-{hour}", began_at=began, supervisor=gone, state="stopped")
    listed = list_statuses(tmp_path / "runs", 0, proc.path)
    assert [one.id for one in listed.runs] == ["live", "old-8", "old-7", "old-6", "old-5", "old-4"]
    assert len(listed.runs) == 1 + SHOWN_ENDED
    assert StatusList.model_validate_json(listed.to_json()) == listed


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("llm.example.org", ["--connect-to", "::127.0.0.1:8000", "https://llm.example.org:8000"]),
        ("127.0.0.1", ["https://127.0.0.1:8000"]),
    ],
)
def test_the_next_command_trusts_the_certificate_under_a_name_of_its_own(
    tmp_path: Path, proc: FakeProc, name: str, words: list[str]
) -> None:
    pair = make_pair(tmp_path / "tls", name)
    rest = bare_plan(*pair.flags).settings.rest
    folder, _ = keep(tmp_path, plan=PLAN.change(rest=rest), url="https://127.0.0.1:8000")
    proc.add_engine()
    proc.add(SUPERVISOR)
    status = look(folder, proc)
    assert status.url == "https://127.0.0.1:8000"
    expected = ["curl", "--cacert", str(pair.file), *words[:-1], f"{words[-1]}/v1/models"]
    assert shlex.split(status.next_command) == expected


def test_what_is_not_as_planned_is_shown_until_the_run_is_over(
    tmp_path: Path, proc: FakeProc
) -> None:
    notes = {ENGINE_NOTE: "the engine keeps ending", "steering": "steering: not applied"}
    folder, run = keep(tmp_path, notes=notes, state="starting")
    proc.add(SUPERVISOR)
    status = look(folder, proc)
    assert status.run_notes == tuple(notes.values())
    shown = [line.split(maxsplit=1) for line in render_status(status, AT).splitlines()]
    assert [words[1] for words in shown if words and words[0] == "note"] == [*notes.values()]
    assert status.next_command == f"slipstream doctor {run.id}"
    over, _ = keep(tmp_path, "over", notes=notes, state="stopped")
    assert look(over, proc).run_notes == ()


def test_drifts_are_shown_as_long_as_there_is_an_engine(tmp_path: Path, proc: FakeProc) -> None:
    drift = Drift(
        family="cached share", where="code", before=0.8, after=0.1, requests=9, times=1, at=0
    )
    folder, _ = keep(tmp_path, drifts=(drift,))
    assert look(folder, proc).drifts == ()
    proc.add(SUPERVISOR)
    proc.add_engine()
    status = look(folder, proc)
    assert status.drifts == (drift,)
    assert "drift " in render_status(status, AT)
    assert "code: the cached share of prompts fell from 80% to 10%" in render_status(status, AT)
