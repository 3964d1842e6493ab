"""Logs stay within a bound, and their end is found whatever part it is in."""

import os
from pathlib import Path

import pytest

from slipstream.serving import kept_logs
from slipstream.serving.kept_logs import cut_own_log, read_tail, set_aside
from slipstream.serving.supervision.diagnosis import READ_BYTES, diagnose_file

DEATH = b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"


def test_the_end_of_a_log_is_read_across_its_parts(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    assert read_tail(log, 10) == b""
    for name, text in ((".2", b"oldest"), (".1", b"older"), ("", b"new")):
        log.with_name(f"engine.log{name}").write_bytes(text)
    assert read_tail(log, 3) == b"new"
    assert read_tail(log, 6) == b"dernew"[-6:]
    assert read_tail(log, 100) == b"oldestoldernew"


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
