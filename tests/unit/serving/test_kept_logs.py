"""Logs stay within a bound, and their end is found whatever part it is in."""

import os
from pathlib import Path

import pytest

from slipstream.serving import kept_logs
from slipstream.serving.kept_logs import cut_own_log, find_place, read_end, set_aside
from slipstream.serving.supervision.causes.diagnosis import READ_BYTES, diagnose_file
from slipstream.serving.supervision.warden import KEPT_PARTS, name_part, shift_parts

DEATH = b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"


def test_the_end_of_a_log_is_read_across_its_parts(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    assert read_end(log, 10) == ""
    for name, text in ((".2", "oldest\n"), (".1", "older\nol"), ("", "d\nnew\n")):
        log.with_name(f"engine.log{name}").write_text(text)
    assert read_end(log, 4) == "new\n"
    assert read_end(log, 6) == "new\n"
    assert read_end(log, 8) == "old\nnew\n"
    assert read_end(log, 100) == "oldest\nolder\nold\nnew\n"


def rotate(log: Path) -> None:
    """Begin a log anew, as its warden does."""
    shift_parts(str(log))
    log.rename(name_part(str(log), 1))
    log.touch()


def test_what_follows_a_place_is_read_through_rotations_until_its_part_is_gone(
    tmp_path: Path,
) -> None:
    log = tmp_path / "engine.log"
    log.write_bytes(b"good health\n" + DEATH)
    place, wanted = find_place(log), ""
    for number in range(KEPT_PARTS):
        said = f"line {number}\n"
        with log.open("a") as file:
            file.write(said)
        wanted += said
        assert read_end(log, 1000, place) == wanted
        rotate(log)
        assert read_end(log, 1000, place) == wanted
        assert diagnose_file(log, healthy=place) == ()
    assert read_end(log, 8, place) == "line 2\n"
    rotate(log)
    # A file system may give the newest part the inode of the one that is gone.
    log.write_bytes(b"sick\n" + DEATH * 2)
    assert read_end(log, 1000, place) == "line 1\nline 2\nsick\n" + (DEATH * 2).decode()
    assert diagnose_file(log, healthy=place)[0].cause == "out-of-memory"


def test_a_place_is_found_whatever_is_repeated_and_after_the_newest_part_is_lost(
    tmp_path: Path,
) -> None:
    log = tmp_path / "engine.log"
    assert find_place(log) is None
    log.touch()
    begun = find_place(log)
    log.write_bytes(DEATH)
    rotate(log)
    assert diagnose_file(log, healthy=begun)
    log.unlink()
    assert diagnose_file(log, healthy=begun)


def test_a_death_is_diagnosed_right_after_a_rotation(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.with_name("engine.log.1").write_bytes(b"calm\n" * READ_BYTES + DEATH)
    log.write_bytes(b"a last word\n")
    assert diagnose_file(log)[0].cause == "out-of-memory"


def test_the_logs_of_the_last_engines_are_kept_and_the_next_begins_without(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    for engine in range(1, 7):
        log.write_text(f"engine {engine}")
        for part in (1, 2, 3):
            log.with_name(f"engine.log.{part}").write_text(f"engine {engine} before, {part}")
        set_aside(log)
    kept = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert kept == {
        f"engine-{engine}.log{part}": f"engine {engine}{' before, 1' if part else ''}"
        for engine in (4, 5, 6)
        for part in ("", ".1")
    }


def test_the_supervisors_own_log_begins_anew_when_it_is_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_logs, "SUPERVISOR_LOG_BYTES", 1000)
    log = tmp_path / "supervisor.log"
    cut_own_log(log)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in range(600):
        os.write(descriptor, f"line {number:04}\n".encode())
        cut_own_log(log)
    os.close(descriptor)
    files = sorted(tmp_path.iterdir(), reverse=True)
    assert len(files) == 4
    assert all(file.stat().st_size <= 1010 for file in files)
    kept = "".join(file.read_text() for file in files).splitlines()
    assert kept == [f"line {number:04}" for number in range(600 - len(kept), 600)]
