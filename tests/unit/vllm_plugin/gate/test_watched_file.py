"""A watched file is read again when it was replaced, and not more often than it must be."""

import os
from pathlib import Path

import pytest

from slipstream.vllm_plugin.gate.watched_file import WatchedFile


@pytest.mark.parametrize("start", [0.0, 1e6])
def test_a_file_is_looked_at_four_times_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: float
) -> None:
    now = start
    monkeypatch.setattr("time.monotonic", lambda: now)
    file = tmp_path / "state.json"
    watched = WatchedFile(str(file), bytes, absent=b"")
    shown = []
    for later, content in ((0.0, b"1"), (0.1, b"22"), (0.1, b"333"), (0.1, b"4444")):
        now += later
        file.write_bytes(content)
        shown.append(watched.read())
    assert shown == [b"1", b"1", b"1", b"4444"]


def look_again(watched: WatchedFile[None]) -> None:
    watched._next_look = 0
    watched.read()


def test_a_file_is_read_again_only_if_it_changed(tmp_path: Path) -> None:
    file, replacement = tmp_path / "keys.json", tmp_path / "new"
    reads: list[bytes] = []
    watched = WatchedFile(str(file), reads.append, absent=None)
    look_again(watched)
    assert reads == []
    file.write_bytes(b"1")
    look_again(watched)
    look_again(watched)
    assert reads == [b"1"]
    replacement.write_bytes(b"2")
    os.utime(replacement, ns=(0, file.stat().st_mtime_ns))
    replacement.replace(file)
    look_again(watched)
    assert reads == [b"1", b"2"]


def test_without_a_path_it_is_absent() -> None:
    assert WatchedFile(None, bytes, absent=b"none").read() == b"none"
