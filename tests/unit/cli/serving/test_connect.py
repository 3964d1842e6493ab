"""`connect` as a user types it: what is printed, and how a client is started."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from slipstream.clients.catalogue import CLIENTS
from slipstream.clients.connection import ClientList
from slipstream.planning.settings import Choice
from slipstream.serving.run import Terms
from tests.unit.cli.serving.connected import (
    SECRET,
    Capture,
    connect,
    make_home,
    make_keys,
    read_connection,
    serve,
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return make_home(tmp_path, monkeypatch)


def test_alone_it_lists_the_clients_without_a_run(capsys: Capture) -> None:
    out, _ = connect(capsys=capsys)
    assert [line.split()[0] for line in out.splitlines()[1:9]] == list(CLIENTS)
    listed = ClientList.model_validate_json(connect("--json", capsys=capsys)[0])
    assert [one.name for one in listed.clients] == list(CLIENTS)


def test_without_a_run_it_says_what_to_type(capsys: Capture) -> None:
    _, err = connect("claude", capsys=capsys, code=1)
    assert "hint: slipstream connect claude http://HOST:PORT" in err


@pytest.mark.parametrize("client", CLIENTS)
def test_a_shell_takes_what_is_printed(client: str, home: Path, capsys: Capture) -> None:
    odd = "it's $(touch pwned) `x`"
    serve(home, settings={"served_names": Choice((odd,), "user", "")})
    out, _ = connect(client, capsys=capsys)
    script = f"{out}\nenv -0"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    told = dict(line.partition("=")[::2] for line in done.stdout.split("\0") if line)
    connection = read_connection(client, capsys=capsys)
    assert {name: told[name] for name in connection.variables} == connection.variables
    assert {told[name] for name in connection.key_variables} <= {"none"}
    assert not any(name in told for name in connection.cleared)
    assert not (home / "pwned").exists()
    assert odd in json.dumps(connection.model_dump(mode="json")) or client == "openwebui"


def test_a_key_is_named_and_never_shown(home: Path, capsys: Capture) -> None:
    file = make_keys(home)
    serve(home, terms=Terms(keys_file=home / "keys.json"))
    for client in CLIENTS:
        out, err = connect(client, "--key", str(file), capsys=capsys)
        assert SECRET not in out + err
        out, err = connect(client, "--key", str(file), "--json", capsys=capsys)
        assert SECRET not in out + err
    out, _ = connect("claude", "--key", str(file), capsys=capsys)
    script = f'{out}\nprintf %s "$ANTHROPIC_AUTH_TOKEN"'
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == SECRET


def test_without_a_key_where_one_is_needed_it_says_how_to_make_one(
    home: Path, capsys: Capture
) -> None:
    make_keys(home)
    serve(home, terms=Terms(keys_file=home / "keys.json"))
    out, err = connect("llm", capsys=capsys)
    assert "slipstream keys new --name llm > llm.key; slipstream connect llm --key llm.key" in err
    assert "llm keys set slipstream" in out


def test_the_plan_tells_what_will_not_work(home: Path, capsys: Capture) -> None:
    names, context = Choice(("org/name",), "user", ""), Choice(1024, "user", "")
    serve(home, settings={"served_names": names, "context": context})
    found = {one.what: one for one in read_connection("claude", capsys=capsys).checks}
    assert found.keys() == {"model name", "context", "tool calls"}
    assert found["model name"].hint is not None
    assert found["model name"].hint.endswith("-- --served-model-name name org/name")
    assert "--tool-call-parser" in (found["tool calls"].hint or "")
    assert read_connection("openai-python", capsys=capsys).checks == ()


def test_a_closed_route_is_told(home: Path, capsys: Capture) -> None:
    gate = {"routes": ["chat", "models"]}
    rules = Terms.model_validate({"gate_rules": gate})
    serve(home, terms=rules)
    (check,) = read_connection("anthropic-python", capsys=capsys).checks
    assert (check.what, check.works) == ("route", False)
    assert '"POST /v1/messages"' in (check.hint or "")


PROGRAM = """#!/bin/sh
printf '%s\\n' "$ANTHROPIC_BASE_URL" "$ANTHROPIC_AUTH_TOKEN" "${ANTHROPIC_API_KEY-cleared}" "$@"
exit 7
"""


def test_launch_becomes_the_client(home: Path) -> None:
    file = make_keys(home)
    serve(home, terms=Terms(keys_file=home / "keys.json"))
    program = home / "bin" / "claude"
    program.parent.mkdir()
    program.write_text(PROGRAM)
    program.chmod(0o755)
    words = ("connect", "claude", "--key", str(file), "--launch", "--", "-p", "two words")
    done = subprocess.run(
        [sys.executable, "-m", "slipstream", *words],
        env={
            **os.environ,
            "PATH": f"{program.parent}:{os.environ['PATH']}",
            "ANTHROPIC_API_KEY": "x",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 7, done.stderr
    assert done.stdout.splitlines() == [
        "http://127.0.0.1:8000",
        SECRET,
        "cleared",
        "-p",
        "two words",
    ]


def test_without_its_key_a_client_is_not_started(home: Path, capsys: Capture) -> None:
    make_keys(home)
    serve(home, terms=Terms(keys_file=home / "keys.json"))
    _, err = connect("claude", "--launch", capsys=capsys, code=1)
    assert "hint: slipstream keys new --name claude" in err


def test_a_client_that_is_not_here_is_told(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    serve(home)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    _, err = connect("codex", "--launch", capsys=capsys, code=1)
    assert err.endswith("hint: npm install -g @openai/codex\n")
    _, err = connect("llm", "--launch", capsys=capsys, code=2)
    assert "hint: slipstream connect llm\n" in err


@pytest.mark.parametrize(
    "words",
    [
        ("claude", "--", "x"),
        ("--launch",),
        ("--write",),
        ("claude", "--launch", "--json"),
        ("claude", "--launch", "--test"),
        ("claude", "--launch", "--write"),
        ("emacs",),
    ],
)
def test_what_does_not_fit_is_refused(words: tuple[str, ...], capsys: Capture) -> None:
    _, err = connect(*words, capsys=capsys, code=2)
    assert "hint" in err
