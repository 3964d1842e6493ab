"""A user without clients, a live run whose engine is a stand-in, and `connect` for it."""

import os
from pathlib import Path
from typing import Any

import pytest

from slipstream.cli.main import run
from slipstream.clients.connection import Connection
from slipstream.planning.settings import Choice
from slipstream.serving.run import read_process
from tests.unit.clients.api_server import CONTEXT, MODEL
from tests.unit.clients.stand_in import StandIn
from tests.unit.serving.kept_runs import PLAN, keep

Capture = pytest.CaptureFixture[str]
SECRET = "the-secret-of-alice"
TOOLS = {"tool_parser": Choice("hermes", "user", "given after --")}


def make_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the home of a user without runs, keys and clients."""
    for name in ("CODEX_HOME", "CLAUDE_CONFIG_DIR", "LLM_USER_PATH", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("SLIPSTREAM_API_KEY", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def serve(home: Path, stand_in: StandIn | None = None, **changes: Any) -> None:
    """Keep a live run whose engine is the stand-in."""
    me = read_process(os.getpid())
    port = stand_in.port if stand_in else 8000
    settings = {
        "port": Choice(port, "user", ""),
        "host": Choice("127.0.0.1", "user", ""),
        "served_names": Choice((f"org/{MODEL}", MODEL), "user", ""),
        "context": Choice(CONTEXT, "user", ""),
        "tool_parser": None,
        **changes.pop("settings", {}),
    }
    plan = PLAN.change(**settings)
    keep(
        home / "state" / "slipstream" / "runs",
        "live",
        **{
            "plan": plan,
            "supervisor": me,
            "engine": stand_in.process if stand_in else me,
            "url": f"http://127.0.0.1:{port}",
            **changes,
        },
    )


def make_keys(home: Path) -> Path:
    """Have the run ask for keys; return a file with one."""
    (home / "keys.json").write_text("")
    file = home / "alice.key"
    file.write_text(f"{SECRET}\n")
    return file


def connect(*words: str, capsys: Capture, code: int = 0) -> tuple[str, str]:
    assert run(["connect", *words], {}) == code
    shown = capsys.readouterr()
    return shown.out, shown.err


def read_connection(*words: str, capsys: Capture, code: int = 0) -> Connection:
    return Connection.model_validate_json(connect(*words, "--json", capsys=capsys, code=code)[0])
