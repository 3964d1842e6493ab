"""`keys` as a user types it: the key alone on stdout, once."""

import json
from pathlib import Path

import pytest

from slipstream.cli.main import run
from slipstream.serving.access.keys import KeyList, NewKey, read_keys

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SLIPSTREAM_KEYS", str(tmp_path / "keys.json"))
    return tmp_path / "keys.json"


def new(capsys: Capture, *options: str) -> NewKey:
    assert run(["keys", "new", "--json", *options], {}) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    return NewKey.model_validate_json(shown.out)


def test_a_script_gets_the_key_and_a_person_the_rest(capsys: Capture, file: Path) -> None:
    assert run(["keys", "new", "--name", "ann"], {}) == 0
    shown = capsys.readouterr()
    (key,) = read_keys(file)
    assert len(shown.out.strip()) == 43
    assert shown.out.strip() not in file.read_text()
    assert shown.err.startswith(f"key {key.id}, expires never; hash in {file}\n")
    assert shown.out.strip() not in shown.err
    assert key.name == "ann"
    # Only the first one closes servers that were open.
    assert "running servers require a key from now on" in shown.err
    assert run(["keys", "new"], {}) == 0
    assert "running servers" not in capsys.readouterr().err


def test_under_json_a_key_is_one_document(capsys: Capture, file: Path) -> None:
    made = new(capsys, "--name", "bob", "--days", "3")
    assert made.key == read_keys(file)[0]
    assert made.key.expires is not None
    assert (made.key.expires - made.key.created).days == 3


def test_keys_are_listed_without_themselves(capsys: Capture, file: Path) -> None:
    made = [new(capsys, "--name", "ann"), new(capsys, "--days", "2")]
    expired = json.loads(made[0].key.model_dump_json()) | {"expires": "2020-01-02T00:00:00Z"}
    file.write_text(file.read_text() + json.dumps(expired | {"id": "old"}) + "\n")
    assert run(["keys", "list"], {}) == 0
    header, first, second, third = capsys.readouterr().out.splitlines()
    assert header.split() == ["ID", "CREATED", "EXPIRES", "LIMITS", "NAME"]
    today = f"{made[0].key.created:%Y-%m-%d}"
    assert first.split() == [made[0].key.id, today, "never", "default", "ann"]
    assert second.split() == [made[1].key.id, today, f"{made[1].key.expires:%Y-%m-%d}", "default"]
    assert third.split() == ["old", today, "expired", "2020-01-02", "default", "ann"]
    assert run(["keys", "list", "--json"], {}) == 0
    document = capsys.readouterr().out
    assert KeyList.model_validate_json(document).keys == read_keys(file)
    assert not [one for one in made if one.secret in document]


def test_without_keys_the_list_says_so(capsys: Capture, file: Path) -> None:
    assert run(["keys", "list"], {}) == 0
    assert capsys.readouterr().out == f"no keys in {file}\n"
    assert not file.exists()


def test_a_key_is_revoked(capsys: Capture, file: Path) -> None:
    made = new(capsys)
    assert run(["keys", "revoke", made.key.id], {}) == 0
    assert capsys.readouterr().out == f"revoked {made.key.id}\n"
    assert read_keys(file) == ()
    assert run(["keys", "revoke", made.key.id], {}) == 1
    assert f"unknown key {made.key.id}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["revoke"], "`keys rotate` and `keys revoke` need an ID, and only they take one"),
        (["new", "ab12"], "`keys rotate` and `keys revoke` need an ID, and only they take one"),
        (["list", "ab12"], "`keys rotate` and `keys revoke` need an ID, and only they take one"),
        (["rotate"], "`keys rotate` and `keys revoke` need an ID, and only they take one"),
        (["rotate", "ab12", "--weight", "2"], "--weight is for `keys new`"),
        (["revoke", "ab12", "--overlap", "1h"], "--overlap is for `keys rotate`"),
        (["rotate", "ab12", "--overlap", "soon"], "argument --overlap: 'soon' is not a time"),
        (["new", "--routes", "docs"], "argument --routes: invalid choice: 'docs'"),
        ([], "the following arguments are required: ACTION"),
        (["lend"], "argument ACTION: invalid choice: 'lend'"),
        (["new", "--days", "0"], "argument --days: '0' is not a whole number above zero"),
        (["new", "--days", "99999999"], "argument --days: '99999999' is more than 36500 days"),
    ],
)
def test_a_misuse_is_a_usage_error(
    arguments: list[str], message: str, capsys: Capture, file: Path
) -> None:
    assert run(["keys", *arguments], {}) == 2
    assert capsys.readouterr().err.startswith(f"error: {message}")
    assert not file.exists()


def test_a_key_has_terms_that_are_kept_and_listed(capsys: Capture, file: Path) -> None:
    words = (
        "--routes",
        "chat",
        "metrics",
        "--models",
        "m",
        "--concurrent-requests",
        "4",
        "--weight",
        "2.5",
    )
    made = new(capsys, *words, "--tokens-per-minute", "9000", "--priority", "-1")
    (kept,) = read_keys(file)
    assert kept == made.key
    assert (kept.routes, kept.models, kept.concurrent_requests) == (("chat", "metrics"), ("m",), 4)
    assert (kept.weight, kept.tokens_per_minute, kept.priority) == (2.5, 9000, -1)
    assert run(["keys", "list"], {}) == 0
    terms = "routes=chat+metrics,models=m,concurrent_requests=4,tokens_per_minute=9000,weight=2.5"
    assert f"{terms},priority=-1" in capsys.readouterr().out


def test_a_key_is_rotated_and_the_old_one_ends_by_itself(capsys: Capture, file: Path) -> None:
    made = new(capsys, "--name", "ann", "--days", "30", "--routes", "chat")
    assert run(["keys", "rotate", made.key.id, "--overlap", "2h", "--json"], {}) == 0
    again = NewKey.model_validate_json(capsys.readouterr().out)
    old, fresh = read_keys(file)
    assert again.key == fresh
    assert again.secret != made.secret
    assert (fresh.id, fresh.name, fresh.routes) == (old.id, "ann", ("chat",))
    assert fresh.expires is not None
    assert (fresh.expires - fresh.created).days == 30
    assert old.expires is not None
    assert (old.expires - fresh.created).total_seconds() == 2 * 3600
    assert run(["keys", "rotate", made.key.id, "--overlap", "0m"], {}) == 0
    capsys.readouterr()
    assert [key.is_valid(fresh.created) for key in read_keys(file)] == [False, False, True]
    assert run(["keys", "revoke", made.key.id], {}) == 0
    assert read_keys(file) == ()
    assert run(["keys", "rotate", made.key.id], {}) == 1
