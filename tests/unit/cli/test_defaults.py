"""A flag beats config.toml, which beats the built-in default; nothing odd is taken."""

import json
from pathlib import Path

import pytest

from slipstream.cli.arguments import parse_arguments
from slipstream.cli.main import run
from slipstream.errors import InvalidInputError

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    (tmp_path / ".config" / "slipstream").mkdir(parents=True)
    return {"HOME": str(tmp_path)}


def configure(home: dict[str, str], text: str, mode: int = 0o600) -> Path:
    file = Path(home["HOME"], ".config", "slipstream", "config.toml")
    file.write_text(text)
    file.chmod(mode)
    return file


def test_a_flag_beats_the_file_and_values_are_read_as_if_typed(home: dict[str, str]) -> None:
    configure(
        home,
        "[serve]\nport = 8100\ndetach = true\n[plan]\ncontext = 4096\n"
        '[bench]\nconcurrency = [1, 4]\nworkload = ["code"]\n[train]\nprompts = ["a.jsonl"]\n',
    )
    _, options, _ = parse_arguments(["serve", "t"], home)
    assert (options.port, options.detach, options.context) == (8100, True, None)
    assert parse_arguments(["serve", "t", "--port", "8300"], home)[1].port == 8300
    assert parse_arguments(["serve", "t"], {})[1].port is None
    _, options, _ = parse_arguments(["bench"], home)
    assert (options.concurrency, options.workload) == ([1, 4], ["code"])
    assert parse_arguments(["train", "t"], home)[1].prompts == ["a.jsonl"]  # else required


@pytest.mark.parametrize(
    ("line", "method", "copied"),
    [
        ("no-speculation = true", "plain", None),
        ("no-speculation = false", "auto", None),
        ("no-copy = true", "auto", False),
        ("copy = true", "auto", True),
    ],
)
def test_a_switch_of_the_file_sets_what_it_sets_when_typed(
    home: dict[str, str], line: str, method: str, copied: bool | None
) -> None:
    configure(home, f"[plan]\n{line}\n")
    _, options, _ = parse_arguments(["plan", "t"], home)
    assert (options.method, options.copy) == (method, copied)


def test_a_saved_plan_is_taken_without_the_defaults_for_new_ones(
    home: dict[str, str], tmp_path: Path
) -> None:
    configure(home, "[serve]\nport = 8100\ncontext = 4096\n")
    saved = tmp_path / "plan.json"
    saved.write_text("{}")
    _, options, _ = parse_arguments(["serve", str(saved)], home)
    assert (options.port, options.context) == (8100, None)


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("[serv]\nport = 1\n", ("no verb serv; the nearest is serve",)),
        ("port = 1\n", ("no verb port",)),
        ("serve = 1\n", ("serve is not a table",)),
        (
            "[serve]\nprot = 1\nport = 'x'\n",
            ("no option prot; the nearest is port", "port: argument --port: 'x' is not"),
        ),
        ("[serve]\nport = [1, 2]\n", ("takes one value",)),
        ("[serve]\nport = true\n", ("takes a text or a number, not bool",)),
        ("[serve]\ngoal = 'fastest'\n", ("invalid choice",)),
        ("[serve]\ndetach = 'yes'\n", ("is a switch",)),
        ("[serve]\nbind = '--no-gate'\n", ("does not begin with a dash",)),
        ("[serve]\njson = true\n", ("no option json",)),
        ("[serve]\nport = {}\n", ("not dict",)),
    ],
)
def test_what_no_verb_reads_is_refused_all_at_once(
    text: str, faults: tuple[str, ...], home: dict[str, str]
) -> None:
    configure(home, text)
    with pytest.raises(InvalidInputError) as refused:
        parse_arguments(["serve", "t"], home)
    said = " ".join(refused.value.details)
    assert all(fault in said for fault in faults)


@pytest.mark.parametrize("content", [b"[serve", b"\xff\xfe", b"a=" + b"[" * 5000])
def test_a_file_that_is_no_toml_is_refused_with_its_name(
    content: bytes, home: dict[str, str], capsys: Capture
) -> None:
    file = configure(home, "")
    file.write_bytes(content)
    assert run(["status"], home) == 1
    assert str(file) in capsys.readouterr().err


def test_a_file_that_others_can_write_is_refused(home: dict[str, str], capsys: Capture) -> None:
    configure(home, "[serve]\nport = 1\n", mode=0o622)
    assert run(["status"], home) == 1
    assert "chmod 600" in capsys.readouterr().err


def test_config_shows_where_each_value_comes_from(
    home: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    configure(home, "[serve]\nport = 8100\n")
    monkeypatch.setenv("HOME", home["HOME"])
    for name in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLIPSTREAM_CACHE", "/cache")
    assert run(["config", "--json"], {}) == 0
    shown = json.loads(capsys.readouterr().out)
    values = {one["name"]: (one["value"], one["source"]) for one in shown["values"]}
    assert values["cache"] == ("/cache", "SLIPSTREAM_CACHE")
    assert values["runs"][1] == "default"
    assert values["serve --port"] == ("8100", "config.toml")
    assert "serve --bind" not in values
    assert run(["config", "serve"], {}) == 0
    assert "serve --bind" in capsys.readouterr().out


def test_a_broken_file_keeps_nobody_from_help_and_is_named_by_config(
    home: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    configure(home, "[serve]\nprot = 1\n")
    monkeypatch.setenv("HOME", home["HOME"])
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    with pytest.raises(SystemExit):
        run(["serve", "--help"], home)
    assert run(["config"], home) == 1
    assert "no option prot" in capsys.readouterr().err
