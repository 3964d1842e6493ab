"""A log is followed through rotation and truncation, to the last word before the end."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slipstream.serving import following, run
from slipstream.serving.following import (
    GrowingFile,
    follow_accesses,
    follow_events,
    follow_file,
)
from slipstream.serving.supervision.warden import shift_parts
from tests.unit.serving.kept_runs import access, happen, keep


@pytest.fixture
def file(tmp_path: Path) -> Iterator[GrowingFile]:
    file = GrowingFile(tmp_path / "engine.log")
    yield file
    file.close()


def test_a_file_is_read_as_it_grows(file: GrowingFile) -> None:
    assert file.read() == b""
    file.path.write_bytes(b"one\n")
    assert [file.read(), file.read()] == [b"one\n", b""]
    with file.path.open("ab") as log:
        log.write(b"two\n")
    assert [file.read(), file.read()] == [b"two\n", b""]


def test_a_file_that_is_begun_anew_is_read_from_its_beginning(file: GrowingFile) -> None:
    file.path.write_bytes(b"a long line\n")
    assert file.read() == b"a long line\n"
    file.path.write_bytes(b"short\n")
    assert [file.read(), file.read()] == [b"short\n", b""]


def test_a_file_that_is_moved_away_is_read_to_its_end_first(file: GrowingFile) -> None:
    file.path.write_bytes(b"one\n")
    assert file.read() == b"one\n"
    with file.path.open("ab") as log:
        log.write(b"last\n")
    file.path.rename(file.path.with_name("engine-0.log"))
    assert [file.read(), file.read()] == [b"last\n", b""]
    file.path.write_bytes(b"a new engine\n")
    assert [file.read(), file.read()] == [b"a new engine\n", b""]


def test_a_large_file_comes_in_parts(file: GrowingFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "CHUNK_BYTES", 4)
    file.path.write_bytes(b"abcdef")
    assert [file.read(), file.read(), file.read()] == [b"abcd", b"ef", b""]


def add_each_time(path: Path, *texts: str) -> tuple[Callable[[float], None], Callable[[], bool]]:
    """Return a wait in which a file grows, and the end that comes after all of it."""
    left = list(texts)

    def wait(_: float) -> None:
        with path.open("a") as file:
            file.write(left.pop(0))

    return wait, lambda: not left


def test_what_comes_before_the_end_is_read(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    wait, is_over = add_each_time(log, "one\n", "two\n")
    assert b"".join(follow_file(log, is_over, wait)) == b"one\ntwo\n"


def test_a_file_that_is_over_is_read_once(tmp_path: Path) -> None:
    assert list(follow_file(tmp_path / "none", lambda: True, lambda _: None)) == []


def test_events_are_given_once_and_to_the_end(tmp_path: Path) -> None:
    folder, _ = keep(tmp_path)
    happen(folder, "starting", "one")
    left = ["two", "three"]
    told = follow_events(
        folder, lambda: not left, lambda _: (happen(folder, "ready", left.pop(0)), None)[1]
    )
    assert [event.message for event in told] == ["one", "two", "three"]


def test_requests_are_given_through_rotation_the_oldest_first(tmp_path: Path) -> None:
    folder, _ = keep(tmp_path)
    for number in (1, 2, 10):
        (folder.path / f"access-{number}.jsonl").write_bytes(access(f"older-{number}"))
    (folder.path / "access-old.jsonl").write_bytes(b"not the gate's")
    folder.access_log.write_bytes(access("one") + b"cut of")
    left = ["two", "three"]

    def wait(_: float) -> None:
        with folder.access_log.open("ab") as file:
            file.write(b"f\n" + access(left.pop(0)) if len(left) == 2 else access(left.pop(0)))
        if len(left) == 1:
            folder.access_log.rename(folder.path / "access-11.jsonl")

    given = [line.id for line in follow_accesses(folder, lambda: not left, wait)]
    assert given == ["older-10", "older-2", "older-1", "one", "two", "three"]


def test_a_log_is_followed_through_its_rotation_and_from_its_oldest_part(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    parts = {".3": "one\n", ".2": "two\n", ".1": "thr", "": "ee\n"}
    for name, text in parts.items():
        log.with_name(f"engine.log{name}").write_text(text)
    left = ["four\n", "five\n", "six\n"]

    def rotate(_: float) -> None:
        with log.open("a") as file:
            file.write(left.pop(0))
        shift_parts(str(log))
        log.rename(log.with_name("engine.log.1"))
        log.write_text(left.pop(0) if left else "")

    told = b"".join(follow_file(log, lambda: not left, rotate))
    assert told.decode().split() == ["one", "two", "three", "four", "five", "six"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("engine.log", "engine.log.1", "engine.log.2", "engine.log.3")
    ]


def test_events_are_followed_through_their_rotation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = keep(tmp_path)
    monkeypatch.setattr(run, "EVENTS_BYTES", 2000)
    left = [f"number {number}" for number in range(60)]
    wanted = list(left)

    def go_on(_: float) -> None:
        for _ in range(min(5, len(left))):
            happen(folder, "ready", left.pop(0))

    told = follow_events(folder, lambda: not left, go_on)
    assert [event.message for event in told] == wanted
    kept = [event.message for event in folder.read_events()]
    assert kept == wanted[-len(kept) :]
    assert 20 < len(kept) < 60
    sizes = [path.stat().st_size for path in tmp_path.glob("one/events.jsonl*")]
    assert len(sizes) == 2
    assert sum(sizes) < 5000


def test_only_new_events_are_given_where_the_old_ones_are_known(tmp_path: Path) -> None:
    folder, _ = keep(tmp_path)
    happen(folder, "starting", "old")
    left = ["new"]
    told = follow_events(
        folder,
        lambda: not left,
        lambda _: (happen(folder, "ready", left.pop(0)), None)[1],
        only_new=True,
    )
    assert [event.message for event in told] == ["new"]
