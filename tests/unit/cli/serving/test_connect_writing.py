"""`connect --write`: what is put into a client's file, and what is left alone."""

import json
import os
import shlex
import stat
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from slipstream.clients.catalogue import CLIENTS
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
from tests.unit.clients.api_server import CONTEXT, MODEL


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return make_home(tmp_path, monkeypatch)


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
