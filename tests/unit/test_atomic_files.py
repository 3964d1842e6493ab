"""Files and folders are whole or absent, and made once."""

import json
import threading
import time
from pathlib import Path

import pytest

from slipstream.atomic_files import make_folder_once, write_atomically, write_even_if_full
from tests.unit.full_disk import fill


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old and long")
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with pytest.raises(TypeError):
        write_atomically(path, "text")  # type: ignore[arg-type]
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


def test_a_full_disk_has_room_for_a_document_in_the_place_of_the_old_one(small_disk: Path) -> None:
    path = small_disk / "a.json"
    write_even_if_full(path, b'{"state": "starting", "reasons": ["long"]}')
    fill(small_disk)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b'{"state": "ready"}')
    for state in ("ready", "a longer one than there was before", "beyond its block" * 200):
        write_even_if_full(path, json.dumps({"state": state, "more": state}).encode())
        assert json.loads(path.read_bytes()) == {"state": state, "more": state}
    with pytest.raises(OSError, match="No space left"):
        write_even_if_full(path, json.dumps(["x" * 9000]).encode())
    assert json.loads(path.read_bytes())["state"] == state
    with pytest.raises(OSError, match="No space left"):
        write_even_if_full(small_disk / "new.json", b"{}")


def test_a_build_that_fails_half_way_leaves_no_folder(tmp_path: Path) -> None:
    def build(folder: Path) -> None:
        (folder / "half").write_text("x")
        raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        make_folder_once(tmp_path / "model", build)
    assert not (tmp_path / "model").exists()
    assert not list(tmp_path.glob(".model.partial*"))


def test_the_leftover_of_a_killed_build_is_cleared(tmp_path: Path) -> None:
    leftover = tmp_path / ".model.partial"
    leftover.mkdir()
    (leftover / "half").write_text("x")
    make_folder_once(tmp_path / "model", lambda folder: (folder / "whole").touch())
    assert [entry.name for entry in (tmp_path / "model").iterdir()] == ["whole"]


def test_two_that_want_the_same_folder_build_it_once(tmp_path: Path) -> None:
    builds: list[int] = []

    def build(folder: Path) -> None:
        builds.append(1)
        time.sleep(0.05)
        (folder / "whole").touch()

    wanted = [
        threading.Thread(target=make_folder_once, args=(tmp_path / "model", build))
        for _ in range(4)
    ]
    for thread in wanted:
        thread.start()
    for thread in wanted:
        thread.join()
    assert len(builds) == 1
    assert (tmp_path / "model" / "whole").exists()
