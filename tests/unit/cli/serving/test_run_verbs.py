"""`status`, `logs`, `stop` and `doctor` as a user types them, on runs with real processes."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from slipstream.cli.main import run
from slipstream.serving.following import AccessLine
from slipstream.serving.run import Event, Process, read_process
from slipstream.serving.run_status import RunStatus, StatusList
from slipstream.serving.support.examination import Diagnosis, Examination
from slipstream.steering.ledger import LedgerSummary
from slipstream.vllm_plugin.steering.flight_recorder import FlightRecorder
from tests.unit.serving.kept_runs import AT, access, happen, keep
from tests.unit.serving.support.test_examination import EXCERPTS
from tests.unit.steering.lines import write as write_line

Capture = pytest.CaptureFixture[str]
# A supervisor that says what it was told, as a real one does, and leaves.
SUPERVISOR = """
import signal, sys
from slipstream.serving.run import RunFolder
from tests.unit.serving.kept_runs import happen
from pathlib import Path

folder = RunFolder(Path(sys.argv[1]))
def leave(*_):
    folder.write(folder.read().model_copy(update={"state": "stopped", "engine": None}))
    happen(folder, "stopped", "all of its processes have ended")
    sys.exit()
signal.signal(signal.SIGTERM, leave)
print("up", flush=True)
signal.pause()
"""


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("SLIPSTREAM_KEYS", "SLIPSTREAM_CACHE", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "slipstream" / "runs"


@pytest.fixture
def supervisor(root: Path) -> Iterator[Process]:
    """The supervisor of the run `live`, which is to be kept before the test asks for it."""
    folder, kept = keep(root, "live", engine=None)
    with subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, str(folder.path)],
        cwd=Path(__file__).parents[4],
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        process = read_process(child.pid)
        assert process is not None
        folder.write(kept.model_copy(update={"supervisor": process}))
        yield process
        child.kill()


def test_status_leaves_with_0_only_if_a_run_is_ready(
    root: Path, supervisor: Process, capsys: Capture
) -> None:
    keep(root, "killed", began_at=AT + timedelta(hours=1), engine=None)
    assert run(["status"], {}) == 0
    header, live, killed, *_ = capsys.readouterr().out.splitlines()
    assert (header.split()[0], live.split()[:2]) == ("RUN", ["live", "ready"])
    assert killed.startswith("killed  supervisor gone  ")
    assert run(["status", "live", "--json"], {}) == 0
    status = RunStatus.model_validate_json(capsys.readouterr().out)
    assert (status.id, status.supervisor_pid) == ("live", supervisor.pid)
    assert run(["status", "killed"], {}) == 1
    capsys.readouterr()
    os.kill(supervisor.pid, signal.SIGKILL)
    os.waitpid(supervisor.pid, 0)
    assert run(["status", "--json"], {}) == 1
    listed = StatusList.model_validate_json(capsys.readouterr().out)
    assert {one.state for one in listed.runs} == {"supervisor gone"}


def test_without_runs_every_verb_says_what_to_type(capsys: Capture) -> None:
    assert run(["status"], {}) == 1
    assert capsys.readouterr().out.endswith("next: slipstream serve TARGET\n")
    for verb in ("logs", "stop"):
        assert run([verb], {}) == 1
        assert capsys.readouterr().err.endswith("hint: slipstream serve TARGET\n")


def test_logs_are_those_of_the_newest_run(root: Path, capsys: Capture) -> None:
    older, _ = keep(root, "older")
    newer, _ = keep(root, "newer", began_at=AT + timedelta(hours=1))
    older.engine_log.write_text("old\n")
    newer.engine_log.write_bytes(b"caf\xc3\xa9 \xff\r 50%")
    assert run(["logs"], {}) == 0
    assert capsys.readouterr().out == "café �\r 50%"
    assert run(["logs", "old"], {}) == 0
    assert capsys.readouterr().out == "old\n"


def test_logs_of_a_run_that_has_ended_name_the_live_one(
    root: Path, supervisor: Process, capsys: Capture
) -> None:
    failed, _ = keep(root, "failed", began_at=AT + timedelta(hours=1), state="failed")
    failed.engine_log.write_text("why\n")
    assert run(["logs"], {}) == 0
    told = "failed is the newest, but not live; live: live\n"
    assert capsys.readouterr() == ("why\n", told)
    assert run(["logs", "failed"], {}) == 0
    assert capsys.readouterr() == ("why\n", "")


def test_a_run_is_no_model_but_named_by_its_id_as_by_its_folder(
    root: Path, capsys: Capture
) -> None:
    folder, kept = keep(root)
    for name in ("one", str(folder.path)):
        assert run(["plan", name], {}) == 1
        shown = capsys.readouterr().err
        assert shown.startswith(f"error: {name} is a run\n\nhint: in its place: {kept.plan.target}")
        assert run(["verify", name], {}) == 1
        assert capsys.readouterr().err.startswith("error: one is not serving\n")


def test_following_a_run_that_is_over_ends(root: Path, capsys: Capture) -> None:
    folder, _ = keep(root)
    folder.engine_log.write_text("the end\n")
    assert run(["logs", "-f"], {}) == 0
    assert capsys.readouterr().out == "the end\n"


def test_an_interrupt_ends_following_quietly(
    supervisor: Process, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", interrupt)
    for words in (["-f"], ["-f", "--events"]):
        assert run(["logs", *words], {}) == 130
    assert capsys.readouterr() == ("", "")


def test_events_are_lines_for_people_or_machines(root: Path, capsys: Capture) -> None:
    folder, _ = keep(root)
    events = [happen(folder, "starting", "weights"), happen(folder, "ready", "it answers")]
    assert run(["logs", "--events"], {}) == 0
    assert [line.split()[2] for line in capsys.readouterr().out.splitlines()] == [
        "starting",
        "ready",
    ]
    assert run(["logs", "--events", "--json"], {}) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [Event.model_validate_json(line) for line in lines] == events


def test_requests_are_lines_for_people_or_machines(root: Path, capsys: Capture) -> None:
    folder, _ = keep(root)
    assert run(["logs", "--access"], {}) == 0
    assert capsys.readouterr() == ("", "no requests in one\n")
    lines = [
        access("a1"),
        access("b2", chunks=30, first_seconds=0.211),
        access("c3", chunks=88, prompt_tokens=None, completion_tokens=None, ended="left"),
        access("d4", status=400, refused="bad_request", field="n", client_id="my-id", seconds=0),
        access("e5", status=401, refused="no_valid_key", key=None, seconds=0),
        access("f6", route="GET /v1/models", prompt_tokens=None, completion_tokens=None),
        access("g7", status=None, ended="left", prompt_tokens=None, completion_tokens=None),
        access("h8", chunks=3, completion_tokens=None, ended="failed"),
    ]
    folder.access_log.write_bytes(b"".join(lines) + b'{"cut of')
    assert run(["logs", "--access"], {}) == 0
    chat = "POST /v1/chat/completions"
    assert [line.split("  ")[1:] for line in capsys.readouterr().out.splitlines()] == [
        ["200", "ann", chat, "1.84 s, 412 + 96 tokens", "a1"],
        ["200", "ann", chat, "1.84 s (first token 0.21 s), 412 + 96 tokens", "b2"],
        ["200", "ann", chat, "client left after 1.84 s, 88 chunks", "c3"],
        ["400", "ann", chat, "refused: bad_request (n), 0.00 s", "my-id"],
        ["401", "-", chat, "refused: no_valid_key, 0.00 s", "e5"],
        ["200", "ann", "GET /v1/models", "1.84 s, 2000 bytes", "f6"],
        ["---", "ann", chat, "client left after 1.84 s, 2000 bytes", "g7"],
        ["200", "ann", chat, "cut off after 1.84 s, 3 chunks", "h8"],
    ]
    assert run(["logs", "--access", "--json", "-f"], {}) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [AccessLine.model_validate_json(line) for line in shown] == [
        AccessLine.model_validate_json(line) for line in lines
    ]


def test_a_line_of_another_version_is_no_bug(root: Path, capsys: Capture) -> None:
    folder, _ = keep(root)
    folder.access_log.write_bytes(access("a", schema_version=2))
    assert run(["logs", "--access"], {}) == 1
    assert "does not read" in capsys.readouterr().err
    assert run(["logs", "--access", "--events"], {}) == 2


def test_a_log_is_no_json_and_may_be_missing(root: Path, capsys: Capture) -> None:
    keep(root)
    assert run(["logs", "--json"], {}) == 2
    assert json.loads(capsys.readouterr().err)["error"]["hint"] == "slipstream logs --events --json"
    assert run(["logs"], {}) == 1
    assert capsys.readouterr().err.endswith("hint: slipstream logs --events one\n")


def test_stop_waits_until_the_supervisor_is_gone(supervisor: Process, capsys: Capture) -> None:
    assert run(["stop"], {}) == 0
    shown = capsys.readouterr()
    assert shown.out == "live has ended: stopped\n"
    assert shown.err.endswith("stopped      all of its processes have ended\n")
    assert run(["stop"], {}) == 1
    assert capsys.readouterr().err == "error: no run is live\n\nhint: slipstream status\n"


def test_stop_ends_the_engine_of_a_killed_supervisor(root: Path, capsys: Capture) -> None:
    pause = "import signal; signal.pause()"
    with subprocess.Popen([sys.executable, "-c", pause], start_new_session=True) as engine:
        keep(root, engine=read_process(engine.pid))
        assert run(["stop", "--json"], {}) == 0
        status = RunStatus.model_validate_json(capsys.readouterr().out)
    assert (status.state, status.engine_pid) == ("supervisor gone", None)
    assert engine.returncode == -signal.SIGTERM


def test_of_two_live_runs_one_must_be_named(
    root: Path, supervisor: Process, capsys: Capture
) -> None:
    keep(root, "second", supervisor=supervisor, engine=None)
    assert run(["stop"], {}) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("error: 2 runs are live\n  - ")
    assert {"  - live", "  - second"} < set(shown.splitlines())


def test_doctor_examines_this_machine_and_leaves_with_1_on_a_fault(
    root: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    folder, _ = keep(root, state="failed", engine=None)
    shutil.copy(EXCERPTS / "port-in-use.log", folder.engine_log)
    assert run(["doctor", "--json"], {}) == 1
    examination = Examination.model_validate_json(capsys.readouterr().out)
    assert examination.checks[-1].verdict == "fault"
    folder.write(folder.read().model_copy(update={"state": "stopped"}))
    assert run(["doctor", "--json"], {}) == 0
    examination = Examination.model_validate_json(capsys.readouterr().out)
    assert examination.diagnosis is None
    assert "load" in [check.subject for check in examination.checks]


def test_doctor_looks_at_the_fleet_of_this_folder(
    root: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    authority = tmp_path / "sparks-authority"
    authority.mkdir(mode=0o700)
    for path, mode in ((authority / "authority.key", 0o644), (tmp_path / "fleet.toml", 0o666)):
        path.touch()
        path.chmod(mode)
    assert run(["doctor", "--json"], {}) == 1
    found = Examination.model_validate_json(capsys.readouterr().out).checks
    hints = {check.hint for check in found if check.subject == "files"}
    assert hints >= {f"chmod 600 {authority}/authority.key", f"chmod 600 {tmp_path}/fleet.toml"}


def test_doctor_diagnoses_a_run_or_a_log_alone(root: Path, capsys: Capture) -> None:
    log = EXCERPTS / "port-in-use.log"
    folder, _ = keep(root, "Qwen3-8B-1")
    shutil.copy(log, folder.engine_log)
    for subject in (str(log), "Qwen3"):
        assert run(["doctor", subject, "--json"], {}) == 1
        diagnosis = Diagnosis.model_validate_json(capsys.readouterr().out)
        assert diagnosis.findings[0].signature == "port-in-use"
    assert run(["doctor", str(EXCERPTS / "clean-start.log")], {}) == 0
    assert run(["doctor", str(EXCERPTS / "fp4-emulated.log")], {}) == 0
    (odd := root / "odd.log").write_text("OddError: the moon is full\n")
    assert run(["doctor", str(odd)], {}) == 1
    assert "slipstream doctor --bundle" in capsys.readouterr().out
    assert run(["doctor", "nowhere.log"], {}) == 1
    assert capsys.readouterr().err.startswith("error: unknown run nowhere.log")


def test_doctor_repeats_why_a_run_was_given_up(root: Path, capsys: Capture) -> None:
    folder, _ = keep(root, "refused", state="failed", engine=None)
    shutil.copy(EXCERPTS / "clean-start.log", folder.engine_log)
    happen(folder, "failed", "giving up: a generation of 1 tokens failed with status 404: nothing")
    assert run(["doctor", "refused"], {}) == 1
    shown = capsys.readouterr().out
    assert shown.startswith("giving up: a generation of 1 tokens failed with status 404")
    assert "for a report: slipstream doctor --bundle" in shown


def test_doctor_tells_what_the_core_did_last(root: Path, capsys: Capture) -> None:
    folder, _ = keep(root, "failed", state="failed", engine=None)
    shutil.copy(EXCERPTS / "port-in-use.log", folder.engine_log)
    FlightRecorder(folder.flight).add(
        running=3,
        waiting=1,
        prompt_tokens=512,
        verified=43,
        drafted=4,
        copied=31,
        tokens=9,
        memory_mib=1970,
        seconds=0.061,
        cache=0.12,
    )
    assert run(["doctor", "failed"], {}) == 1
    shown = capsys.readouterr().out
    assert "3 running, 1 waiting" in shown
    assert "draft length  4" in shown
    assert all(part in shown for part in ("512 prompt", "43 draft", "31 of them copied"))
    assert "1,970 MiB" in shown


def test_the_ledger_of_a_run_is_added_up_across_its_files(root: Path, capsys: Capture) -> None:
    folder, _ = keep(root, "over", engine=None)
    assert run(["status", "over", "--by", "kind"], {}) == 1
    assert "has no ledger" in capsys.readouterr().err
    (folder.path / "ledger-1.jsonl").write_bytes(write_line(kind="prose\x1b[2J"))
    copies = {"copies": 2, "copied": 40, "copied_accepted": 16}
    folder.ledger.write_bytes(write_line(**copies) + b"torn")
    assert run(["status", "over", "--by", "kind"], {}) == 0
    header, code, prose, total = capsys.readouterr().out.splitlines()
    assert header.split()[:2] == ["KIND", "REQUESTS"]
    assert code.endswith("86% 31% 7% 0% 0% 0% 0%")
    assert (code.split()[:5], total.split()[1]) == (["code", "1", "0", "64", "50%"], "2")
    assert prose.startswith("prose?[2J")
    assert [line.split()[5:7] for line in (header, code, prose, total)] == [
        *(["TOKENS/STEP", "COPIED"], ["2.13", "25%"]),
        *(["2.13", "0%"], ["2.13", "12%"]),
    ]
    assert run(["status", "--by", "key", "--json"], {}) == 0
    summary = LedgerSummary.model_validate_json(capsys.readouterr().out)
    (group,) = summary.groups
    assert (group.name, group.requests, group.copied_accepted) == ("ann", 2, 16)
