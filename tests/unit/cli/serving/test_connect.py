"""`connect` as a user types it: what is printed and written, and how a client is started."""

import json
import os
import shlex
import shutil
import stat
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from slipstream.cli.main import run
from slipstream.clients.catalogue import CLIENTS
from slipstream.clients.connection import ClientList, Connection
from slipstream.planning.settings import Choice, EngineOptions, SpeculationOptions
from slipstream.planning.settings.conversation import SHOWS_NO_TOOLS
from slipstream.planning.settings.options import PlanOptions
from slipstream.serving.run import Terms, read_process
from tests.unit.checkpoints.folders import LLAMA, write_checkpoint
from tests.unit.clients.api_server import CONTEXT, MODEL
from tests.unit.clients.stand_in import StandIn
from tests.unit.serving.kept_runs import PLAN, keep

Capture = pytest.CaptureFixture[str]
SECRET = "the-secret-of-alice"
TOOLS = {"tool_parser": Choice("hermes", "user", "set after --")}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
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
    own: dict[str, Any] = {
        name: changes.pop(name) for name in ("target", "notes", "options") if name in changes
    }
    plan = PLAN.change(**settings).model_copy(update=own)
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


def test_alone_it_lists_the_clients_without_a_run(capsys: Capture) -> None:
    out, _ = connect(capsys=capsys)
    assert [line.split()[0] for line in out.splitlines()[1:9]] == list(CLIENTS)
    listed = ClientList.model_validate_json(connect("--json", capsys=capsys)[0])
    assert [one.name for one in listed.clients] == list(CLIENTS)


def test_without_a_run_it_says_what_to_type(capsys: Capture) -> None:
    _, err = connect("claude", capsys=capsys, code=1)
    assert "hint: name a server as http://HOST:PORT, or slipstream serve TARGET" in err


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
    assert found["model name"].hint.endswith("-- --served-model-name name org/name --port 8000")
    assert "--tool-call-parser" in (found["tool calls"].hint or "")
    assert read_connection("openai-python", capsys=capsys).checks == ()


def test_a_model_whose_template_has_no_tools_is_not_called_short_of_a_parser(
    home: Path, capsys: Capture
) -> None:
    serve(home, notes=(f"tool calls are not parsed: the chat template of it {SHOWS_NO_TOOLS}",))
    found = {one.what: one for one in read_connection("claude", capsys=capsys).checks}
    assert SHOWS_NO_TOOLS in found["tool calls"].message
    assert (found["tool calls"].hint or "").endswith("; others: slipstream models")


@pytest.mark.parametrize(
    ("limit", "hint"),
    [
        (131072, "{again} -- --port 8000 --max-model-len 65536{rest}"),
        (49152, "{again} -- --port 8000 --max-model-len 49152{rest}"),
        (8192, "its model reads at most 8,192 tokens; for others: slipstream models"),
    ],
)
def test_a_larger_context_is_one_that_the_model_has_and_keeps_what_was_asked_for(
    limit: int, hint: str, home: Path, capsys: Capture
) -> None:
    folder = write_checkpoint(home / "model", {**LLAMA, "max_position_embeddings": limit})
    engine = EngineOptions(
        context=Choice(1024, "user", ""),
        sequences=Choice(2, "user", ""),
        speculation=SpeculationOptions(drafter=Choice("org/drafter", "user", "")),
    )
    serve(
        home,
        target=str(folder),
        options=PlanOptions(engine=engine),
        settings={"context": Choice(1024, "user", "")},
    )
    found = {one.what: one.hint for one in read_connection("claude", capsys=capsys).checks}
    rest = """ --max-num-seqs 2 --speculative-config '{"model": "org/drafter"}'"""
    again = f"slipstream stop live; slipstream serve {folder}"
    assert found["context"] == hint.format(again=again, rest=rest)


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


@pytest.mark.parametrize("client", [name for name in CLIENTS if "python" not in name])
def test_what_is_written_is_kept_whole_and_written_once(
    client: str, home: Path, capsys: Capture
) -> None:
    serve(home)
    if client == "openwebui":
        _, err = connect(client, "--write", capsys=capsys, code=1)
        assert err.endswith('hint: eval "$(slipstream connect openwebui)"\n')
        return
    first = read_connection(client, "--write", capsys=capsys)
    assert first.written
    for written in first.written:
        path = Path(written.path)
        assert path.is_relative_to(home)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert written.backup is None
    again = read_connection(client, "--write", capsys=capsys)
    assert [one.changed for one in again.written] == [()] * len(first.written)
    assert not list(home.rglob("*.partial*"))


def test_each_client_finds_its_own_entries(home: Path, capsys: Capture) -> None:
    serve(home)
    for client in ("claude", "codex", "opencode", "aider", "llm"):
        connect(client, "--write", capsys=capsys)
    url = "http://127.0.0.1:8000"
    claude = json.loads((home / ".claude/settings.json").read_text())
    assert claude["env"]["ANTHROPIC_BASE_URL"] == url
    assert claude["env"]["ANTHROPIC_DEFAULT_HAIKU_MODEL"] == MODEL
    codex = tomllib.loads((home / ".codex/slipstream.config.toml").read_text())
    provider = codex["model_providers"][codex["model_provider"]]
    assert (provider["base_url"], provider["wire_api"]) == (f"{url}/v1", "responses")
    assert (codex["model"], codex["model_context_window"]) == (MODEL, CONTEXT)
    opencode = json.loads((home / ".config/opencode/opencode.json").read_text())
    model = opencode["provider"]["slipstream"]["models"][MODEL]
    assert model["limit"] == {"context": CONTEXT, "output": CONTEXT // 4}
    aider = yaml.safe_load((home / ".aider.conf.yml").read_text())
    assert (aider["model"], aider["openai-api-base"]) == (f"openai/{MODEL}", f"{url}/v1")
    limits = json.loads((home / ".aider.model.metadata.json").read_text())
    assert limits[f"openai/{MODEL}"]["max_input_tokens"] == CONTEXT
    models = home / ".config/io.datasette.llm/extra-openai-models.yaml"
    (entry,) = yaml.safe_load(models.read_text())
    assert (entry["model_id"], entry["model_name"]) == ("slipstream", MODEL)


def test_with_a_key_no_file_holds_it(home: Path, capsys: Capture) -> None:
    file = make_keys(home)
    serve(home, terms=Terms(keys_file=home / "keys.json"))
    for client in ("claude", "codex", "opencode", "aider", "llm"):
        connect(client, "--write", "--key", str(file), capsys=capsys)
    holding = [path for path in home.rglob("*") if path.is_file() and SECRET in path.read_text()]
    assert holding == [file]
    claude = json.loads((home / ".claude/settings.json").read_text())
    helper = ["sh", "-c", claude["apiKeyHelper"]]
    done = subprocess.run(helper, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == SECRET
    assert claude["env"]["ANTHROPIC_AUTH_TOKEN"] == ""


def test_what_a_user_had_is_kept_beside_ours_and_in_a_backup(home: Path, capsys: Capture) -> None:
    serve(home)
    file = home / ".claude" / "settings.json"
    file.parent.mkdir()
    old = json.dumps({"theme": "dark", "env": {"EDITOR": "vi", "ANTHROPIC_API_KEY": "sk-mine"}})
    file.write_text(old)
    file.chmod(0o640)
    out, err = connect("claude", "--write", capsys=capsys)
    new = json.loads(file.read_text())
    assert (new["theme"], new["env"]["EDITOR"]) == ("dark", "vi")
    assert new["env"]["ANTHROPIC_API_KEY"] == ""
    backup = file.with_name("settings.json.before-slipstream")
    assert backup.read_text() == old
    assert {stat.S_IMODE(one.stat().st_mode) for one in (file, backup)} == {0o640}
    assert "sk-mine" not in out + err
    undo = next(line.removeprefix("undo: ") for line in out.splitlines() if "undo: " in line)
    subprocess.run(shlex.split(undo), check=True)
    assert file.read_text() == old


@pytest.mark.parametrize("kind", ["link", "dangling link", "link of the backup", "pipe", "folder"])
def test_what_is_no_file_of_the_users_is_left_alone(kind: str, home: Path, capsys: Capture) -> None:
    serve(home)
    file, other = home / ".claude" / "settings.json", home / "other.json"
    file.parent.mkdir()
    other.write_text("{}")
    if kind == "link":
        file.symlink_to(other)
    elif kind == "dangling link":
        file.symlink_to(home / "absent.json")
    elif kind == "link of the backup":
        file.write_text("{}")
        file.with_name("settings.json.before-slipstream").symlink_to(other)
    elif kind == "pipe":
        os.mkfifo(file)
    else:
        file.mkdir()
    before = sorted(path.lstat().st_ino for path in file.parent.iterdir())
    _, err = connect("claude", "--write", capsys=capsys, code=1)
    assert str(file) in err
    assert sorted(path.lstat().st_ino for path in file.parent.iterdir()) == before
    assert other.read_text() == "{}"
    assert not (home / "absent.json").exists()


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b"[1]", b"{} // mine", b" " * (1 << 21)])
def test_a_file_that_cannot_be_read_is_left_alone(
    content: bytes, home: Path, capsys: Capture
) -> None:
    serve(home)
    file = home / ".claude" / "settings.json"
    file.parent.mkdir()
    file.write_bytes(content)
    _, err = connect("claude", "--write", capsys=capsys, code=1)
    assert str(file) in err
    assert file.read_bytes() == content
    assert list(file.parent.iterdir()) == [file]


def test_of_two_files_none_is_written_if_one_cannot_be(home: Path, capsys: Capture) -> None:
    serve(home)
    (home / ".aider.model.metadata.json").write_text("{")
    connect("aider", "--write", capsys=capsys, code=1)
    assert not (home / ".aider.conf.yml").exists()


def test_a_folder_that_cannot_be_written_is_told(home: Path, capsys: Capture) -> None:
    serve(home)
    (home / ".codex").write_text("a file where a folder should be")
    _, err = connect("codex", "--write", capsys=capsys, code=1)
    assert f"hint: ls -ld {home / '.codex'}" in err
