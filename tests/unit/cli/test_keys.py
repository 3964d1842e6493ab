"""`keys` as a user types it: the key alone on stdout, once."""

import json
from pathlib import Path

import pytest

from slipstream.cli.main import run
from slipstream.serving.access.keys import KeyList, NewKey, read_keys


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SLIPSTREAM_KEYS", str(tmp_path / "keys.json"))
    return tmp_path / "keys.json"


def new(capsys: pytest.CaptureFixture[str], *options: str) -> NewKey:
    assert run(["keys", "new", "--json", *options], {}) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    return NewKey.model_validate_json(shown.out)


def test_a_script_gets_the_key_and_a_person_the_rest(
    capsys: pytest.CaptureFixture[str], file: Path
) -> None:
    assert run(["keys", "new", "--name", "ann"], {}) == 0
    shown = capsys.readouterr()
    (key,) = read_keys(file)
    assert len(shown.out.strip()) == 43
    assert shown.out.strip() not in file.read_text()
    assert shown.err == (f"key {key.id}, expires never; hash in {file}\nit is shown this once:\n")
    assert key.name == "ann"


def test_under_json_a_key_is_one_document(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    made = new(capsys, "--name", "bob", "--days", "3")
    assert made.key == read_keys(file)[0]
    assert made.key.expires is not None
    assert (made.key.expires - made.key.created).days == 3


def test_keys_are_listed_without_themselves(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    made = [new(capsys, "--name", "ann"), new(capsys, "--days", "2")]
    expired = json.loads(made[0].key.model_dump_json()) | {"expires": "2020-01-02T00:00:00Z"}
    file.write_text(file.read_text() + json.dumps(expired | {"id": "old"}) + "\n")
    assert run(["keys", "list"], {}) == 0
    header, first, second, third = capsys.readouterr().out.splitlines()
    assert header.split() == ["ID", "CREATED", "EXPIRES", "NAME"]
    today = f"{made[0].key.created:%Y-%m-%d}"
    assert first.split() == [made[0].key.id, today, "never", "ann"]
    assert second.split() == [made[1].key.id, today, f"{made[1].key.expires:%Y-%m-%d}"]
    assert third.split() == ["old", today, "expired", "2020-01-02", "ann"]
    assert run(["keys", "list", "--json"], {}) == 0
    document = capsys.readouterr().out
    assert KeyList.model_validate_json(document).keys == read_keys(file)
    assert not [one for one in made if one.secret in document]


def test_without_keys_the_list_says_so(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    assert run(["keys", "list"], {}) == 0
    assert capsys.readouterr().out == f"no keys in {file}\n"
    assert not file.exists()


def test_a_key_is_revoked(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    made = new(capsys)
    assert run(["keys", "revoke", made.key.id], {}) == 0
    assert capsys.readouterr().out == f"revoked {made.key.id}\n"
    assert read_keys(file) == ()
    assert run(["keys", "revoke", made.key.id], {}) == 1
    assert f"there is no key {made.key.id}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["revoke"], "an ID goes with revoke, and only with it"),
        (["new", "ab12"], "an ID goes with revoke, and only with it"),
        (["list", "ab12"], "an ID goes with revoke, and only with it"),
        ([], "the following arguments are required: action"),
        (["lend"], "argument action: invalid choice: 'lend'"),
        (["new", "--days", "0"], "argument --days: '0' is not a whole number above zero"),
        (["new", "--days", "99999999"], "argument --days: '99999999' is more than 36500 days"),
    ],
)
def test_a_misuse_is_a_usage_error(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], file: Path
) -> None:
    assert run(["keys", *arguments], {}) == 2
    assert capsys.readouterr().err.startswith(f"error: {message}")
    assert not file.exists()
