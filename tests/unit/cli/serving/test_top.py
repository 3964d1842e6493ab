"""`top` as a user types it: one snapshot, one document, or a screen that is given back."""

import json
import os
import signal
import subprocess
import sys
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path

import pytest

from slipstream.cli.main import run
from slipstream.serving.live_view import LiveView
from slipstream.serving.run import Process, read_process
from tests.unit.cli.serving.typist import PATIENCE_SECONDS, Typist, open_terminal
from tests.unit.serving.kept_runs import AT, answering, happen, keep
from tests.unit.vllm_plugin.steering.reports import make_state

Capture = pytest.CaptureFixture[str]
ENTERED, LEFT = b"\x1b[?1049h", b"\x1b[?1049l"
QUIT, INTERRUPT, SUSPEND = b"q", b"\x03", b"\x1a"


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("SLIPSTREAM_API_KEY", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "slipstream" / "runs"


def find_this_process() -> Process:
    process = read_process(os.getpid())
    assert process is not None
    return process


def test_without_a_terminal_one_snapshot_is_printed(root: Path, capsys: Capture) -> None:
    folder, _ = keep(root, engine=None)
    happen(folder, "ready", "it answers")
    assert run(["top"], {}) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("one  supervisor gone for ")
    assert "\x1b" not in shown
    assert "it answers" in shown.splitlines()[-1]


def test_a_live_run_comes_before_a_newer_one_that_is_over(root: Path, capsys: Capture) -> None:
    this = find_this_process()
    keep(root, "newer", began_at=AT + timedelta(hours=1), engine=None)
    command = [sys.executable, "-c", "input()"]
    with subprocess.Popen(command, start_new_session=True, stdin=subprocess.PIPE) as engine:
        leader = read_process(engine.pid)
        older = keep(root, "older", supervisor=this, engine=leader, url=None)
        with answering(*older, steering=(make_state(),)):
            assert run(["top", "--json"], {}) == 0
        engine.communicate(b"\n")
    view = LiveView.model_validate_json(capsys.readouterr().out)
    assert (view.status.id, view.status.state) == ("older", "ready")
    assert view.steering is not None
    assert run(["top", "newer", "--once"], {}) == 0
    assert capsys.readouterr().out.startswith("newer  ")


def test_without_a_run_it_says_what_to_type(capsys: Capture) -> None:
    assert run(["top"], {}) == 1
    assert capsys.readouterr().err.endswith("hint: slipstream serve TARGET\n")


def test_a_run_with_keys_is_not_asked_without_one(
    root: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str | None] = []
    monkeypatch.setattr(
        "slipstream.cli.serving.top.read_engine_figures", lambda _, key: asked.append(key)
    )
    folder, kept = keep(root, engine=None)
    folder.write(
        kept.model_copy(update={"terms": kept.terms.model_copy(update={"keys_required": True})})
    )
    assert run(["top"], {}) == 0
    assert asked == []
    monkeypatch.setenv("SLIPSTREAM_API_KEY", "secret")
    assert run(["top"], {}) == 0
    assert asked == ["secret"]
    assert "secret" not in capsys.readouterr().out


def open_top(**environment: str) -> AbstractContextManager[Typist]:
    return open_terminal("top", **environment)


@pytest.fixture
def live(root: Path) -> None:
    this = find_this_process()
    folder, _ = keep(root, supervisor=this, engine=None)
    happen(folder, "ready", "it \x1b[2J answers")


@pytest.mark.usefixtures("live")
@pytest.mark.parametrize(("key", "code"), [(QUIT, 0), (INTERRUPT, 130)])
def test_the_screen_is_redrawn_until_a_key_ends_it_and_given_back(key: bytes, code: int) -> None:
    with open_top() as typist:
        typist.read_until(lambda shown: shown.count(b"q quits") >= 2)
        typist.type(key)
        assert typist.child.wait(PATIENCE_SECONDS) == code
        typist.read_until(lambda shown: LEFT in shown)
    assert typist.shown.startswith(ENTERED)
    assert b"it \xef\xbf\xbd[2J answers" in typist.shown
    assert typist.shown.count(b"\x1b[?25h") == typist.shown.count(b"\x1b[?25l") == 1


@pytest.mark.usefixtures("live")
def test_a_signal_gives_the_screen_back() -> None:
    with open_top() as typist:
        typist.read_until(lambda shown: b"q quits" in shown)
        typist.child.send_signal(signal.SIGTERM)
        assert typist.child.wait(PATIENCE_SECONDS) == 128 + signal.SIGTERM
        typist.read_until(lambda shown: LEFT in shown)


@pytest.mark.usefixtures("live")
def test_while_it_is_suspended_the_screen_is_the_shells() -> None:
    with open_top() as typist:
        typist.read_until(lambda shown: b"q quits" in shown)
        typist.type(SUSPEND)
        typist.read_until(lambda shown: LEFT in shown)
        os.waitid(os.P_PID, typist.child.pid, os.WSTOPPED)
        typist.child.send_signal(signal.SIGCONT)
        typist.read_until(lambda shown: b"q quits" in shown.partition(LEFT)[2])
        typist.type(QUIT)
        assert typist.child.wait(PATIENCE_SECONDS) == 0
    assert typist.shown.count(ENTERED) == 2


@pytest.mark.usefixtures("live")
def test_a_dumb_terminal_gets_one_snapshot() -> None:
    with open_top(TERM="dumb") as typist:
        assert typist.child.wait(PATIENCE_SECONDS) == 0
        typist.read_until(lambda shown: b"answers" in shown)
    assert b"\x1b" not in typist.shown


def test_a_run_that_ends_leaves_its_last_frame(root: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as supervisor:
        process = read_process(supervisor.pid)
        assert process is not None
        folder, _ = keep(root, supervisor=process, engine=None)
        with open_top() as typist:
            typist.read_until(lambda shown: b"q quits" in shown)
            folder.write(folder.read().model_copy(update={"state": "stopped"}))
            supervisor.communicate(b"\n")
            assert typist.child.wait(PATIENCE_SECONDS) == 0
            typist.read_until(lambda shown: b"stopped for" in shown.rpartition(LEFT)[2])
    assert json.loads(folder.record.read_text())["state"] == "stopped"
