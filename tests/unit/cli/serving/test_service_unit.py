"""`serve --unit` as a user types it: the unit runs the same command and sees what it must read."""

import json
import os
import shlex
from pathlib import Path

import pytest

from slipstream.cli.main import run
from slipstream.serving.supervision.engine_process import GRACE_SECONDS
from tests.unit.cli.serving.test_serve import pair

__all__ = ["pair"]


@pytest.fixture
def saved(pair: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """Return the file of a saved plan."""
    run(["plan", *pair, "--json"], os.environ)
    file = tmp_path / "plan.json"
    file.write_text(capsys.readouterr().out)
    return file


def test_a_unit_runs_the_same_command(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["serve", str(saved), "--unit", "--port", "9000", "--drain", "60"], os.environ) == 0
    unit = capsys.readouterr().out
    (line,) = [line for line in unit.splitlines() if line.startswith("ExecStart=")]
    assert shlex.split(line)[1:] == ["serve", str(saved), "--port", "9000", "--drain", "60"]
    assert "KillMode=mixed" in unit
    (stop,) = [line for line in unit.splitlines() if line.startswith("TimeoutStopSec=")]
    assert int(stop.partition("=")[2]) > 60 + GRACE_SECONDS


def test_a_unit_keeps_the_recording(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--unit", "--drain", "0", "--record", "kept", "--fixed-length", "--redact", "a b")
    assert run(["serve", str(saved), *words], os.environ) == 0
    lines = capsys.readouterr().out.splitlines()
    (start,) = [line for line in lines if line.startswith("ExecStart=")]
    kept = str(tmp_path / "kept")
    expected = ["--drain", "0", "--record", kept, "--redact", "a b", "--fixed-length"]
    assert sorted(shlex.split(start)[3:]) == sorted(expected)
    shown = [line for line in lines if line.startswith(("ReadWritePaths=", "BindPaths="))]
    assert any(kept in line for line in shown)
    assert run(["serve", str(saved), "--unit", "--detach"], os.environ) == 2


def test_a_unit_keeps_what_the_guardian_may_do(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in ("off", "note,restart"):
        assert run(["serve", str(saved), "--unit", "--guardian", words], os.environ) == 0
        assert f" --guardian {words} " in capsys.readouterr().out.replace("\n", " ")
    assert run(["serve", str(saved), "--guardian", "note,panic"], os.environ) == 2
    assert "'panic' is not one of note, lower, swap-back, plain, restart" in capsys.readouterr().err


def test_a_unit_needs_a_saved_plan(pair: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", *pair, "--unit"], os.environ) == 2
    assert "a unit needs a saved plan" in capsys.readouterr().err


@pytest.mark.parametrize("secret", ["/home/ann/group.key", "~/.config/group.key"])
def test_a_unit_of_a_group_reads_the_groups_secret(
    secret: str, saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = json.loads(saved.read_text())
    members = [{"name": f"n{rank}", "address": f"10.0.0.{rank}"} for rank in (1, 2)]
    group = {"name": "g", "rank": 0, "members": members, "watch_port": 9001}
    plan["group"] = {**group, "secret_file": secret}
    saved.write_text(json.dumps(plan))
    assert run(["serve", str(saved), "--unit"], os.environ) == 0
    # One below ~ is in the home of the service's own user, which it sees anyway.
    assert (secret in capsys.readouterr().out) == secret.startswith("/")
