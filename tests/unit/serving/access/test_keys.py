"""A key is shown once, its hash is kept where nobody else can write, and it can end."""

import os
import re
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from slipstream.errors import InvalidInputError
from slipstream.serving.access.keys import Key, find_key_file, make_key, read_keys, revoke_key

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)


def make(file: Path, name: str = "", expires: datetime | None = None) -> tuple[Key, str]:
    made = make_key(file, name, now=NOW, expires=expires)
    return made.key, made.secret


def modes(*paths: Path) -> list[int]:
    return [stat.S_IMODE(path.stat().st_mode) for path in paths]


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"HOME": "/h"}, "/h/.config/slipstream/keys.json"),
        ({"HOME": "/h", "XDG_CONFIG_HOME": "/x"}, "/x/slipstream/keys.json"),
        ({"HOME": "/h", "XDG_CONFIG_HOME": "/x", "SLIPSTREAM_KEYS": "/s/k"}, "/s/k"),
        ({"SLIPSTREAM_KEYS": "~/k"}, f"{Path.home()}/k"),
        ({"SLIPSTREAM_KEYS": "", "HOME": "/h"}, "/h/.config/slipstream/keys.json"),
    ],
)
def test_where_the_keys_are(environment: dict[str, str], expected: str) -> None:
    assert find_key_file(environment) == Path(expected)


def test_without_a_file_there_are_no_keys(tmp_path: Path) -> None:
    assert read_keys(tmp_path / "nowhere" / "keys.json") == ()


def test_only_the_hash_of_a_key_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "slipstream" / "keys.json"
    key, secret = make(file, "ann", NOW + timedelta(days=1))
    assert re.fullmatch(r"[\w-]{43}", secret)
    assert key.sha256 == sha256(secret.encode()).hexdigest()
    assert re.fullmatch(r"[0-9a-f]{8}", key.id)
    assert (key.name, key.created, key.expires) == ("ann", NOW, NOW + timedelta(days=1))
    assert read_keys(file) == (key,)
    assert secret not in file.read_text()
    assert [path.name for path in file.parent.iterdir()] == ["keys.json"]


def test_the_file_is_its_owners_alone_from_the_first_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[tuple[int, int]] = []
    opener = os.open

    def spy(path: Any, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_CREAT:
            opened.append((flags & os.O_EXCL, mode))
        return opener(path, flags, mode)

    monkeypatch.setattr("os.open", spy)
    before = os.umask(0)
    try:
        file = tmp_path / "slipstream" / "keys.json"
        key, _ = make(file)
        assert modes(file.parent, file) == [0o700, 0o600]
        make(file)
        revoke_key(file, key.id)
    finally:
        os.umask(before)
    assert modes(file.parent, file) == [0o700, 0o600]
    assert opened == [(os.O_EXCL, 0o600)] * 3


def test_commands_at_the_same_time_lose_no_key(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda number: make(file, str(number)), range(24)))
    assert {key.id for key in read_keys(file)} == {key.id for key, _ in made}
    assert len({key.id for key, _ in made}) == len({secret for _, secret in made}) == 24


def test_a_revoked_key_is_gone_and_the_others_stay(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    (first, _), (second, _), (third, _) = (make(file, name) for name in "abc")
    assert revoke_key(file, second.id) == second
    assert read_keys(file) == (first, third)
    revoke_key(file, first.id)
    revoke_key(file, third.id)
    assert (read_keys(file), file.exists()) == ((), True)


def test_a_key_that_is_not_there_cannot_be_revoked(tmp_path: Path) -> None:
    key, _ = make(tmp_path / "keys.json")
    with pytest.raises(InvalidInputError, match="unknown key nobody in") as refused:
        revoke_key(tmp_path / "keys.json", "nobody")
    assert refused.value.hint == "slipstream keys list"
    assert read_keys(tmp_path / "keys.json") == (key,)


def test_a_key_is_valid_until_it_expires(tmp_path: Path) -> None:
    end = NOW + timedelta(days=1)
    (brief, _), (endless, _) = make(tmp_path / "k", "", end), make(tmp_path / "k")
    assert [brief.is_valid(now) for now in (NOW, end - timedelta(seconds=1), end)] == [
        True,
        True,
        False,
    ]
    assert endless.is_valid(NOW + timedelta(days=9999))


def test_every_faulty_line_is_named(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    make(file)
    file.write_text(file.read_text() + '{"id": "a"}\nnonsense\n')
    with pytest.raises(InvalidInputError, match="is not a file of keys") as refused:
        read_keys(file)
    assert [detail.split(":")[0] for detail in refused.value.details] == ["line 2", "line 3"]
    assert "sha256: Field required" in refused.value.details[0]
    with pytest.raises(InvalidInputError):
        make(file)


def widen_file(file: Path) -> None:
    file.chmod(0o620)


def widen_folder(file: Path) -> None:
    file.parent.chmod(0o702)


@pytest.mark.parametrize(
    ("widen", "path", "hint"),
    [(widen_file, "folder/keys.json", "chmod 600"), (widen_folder, "folder", "chmod 700")],
)
def test_keys_that_others_could_have_written_are_refused(
    tmp_path: Path, widen: Callable[[Path], None], path: str, hint: str
) -> None:
    file = tmp_path / "folder" / "keys.json"
    make(file)
    widen(file)
    with pytest.raises(InvalidInputError, match="other users can write") as refused:
        read_keys(file)
    assert refused.value.hint == f"{hint} {tmp_path / path}"


def test_in_a_sticky_folder_others_cannot_replace_the_file(tmp_path: Path) -> None:
    make(tmp_path / "folder" / "keys.json")
    (tmp_path / "folder").chmod(0o1777)
    assert len(read_keys(tmp_path / "folder" / "keys.json")) == 1


def test_a_place_that_cannot_hold_keys_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInputError, match="cannot store keys in") as refused:
        make(tmp_path / "file" / "keys.json")
    assert "SLIPSTREAM_KEYS" in refused.value.hint


def test_a_folder_in_the_files_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "keys.json").mkdir()
    with pytest.raises(InvalidInputError, match=r"cannot read .*keys\.json: Is a directory"):
        read_keys(tmp_path / "keys.json")
