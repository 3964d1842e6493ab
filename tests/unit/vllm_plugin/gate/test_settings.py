"""The gate starts with all of its settings or not at all; files are read again when replaced."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slipstream.vllm_plugin.gate.middleware import Gate
from slipstream.vllm_plugin.gate.settings import WatchedFile
from tests.unit.vllm_plugin.gate.pieces import Engine, make_gate


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda document: document.pop("host"), "host"),
        (lambda document: document["limits"].pop("n"), "GateLimits lacks n"),
        (lambda document: document["keys"].pop("routes"), "KeyDefaults lacks routes"),
        (lambda document: document.update(hots="x"), "hots"),
        (lambda document: document["limits"].update(m=1), "limits.m"),
        (lambda document: document.update(schema_version=2), "schema_version"),
        (lambda document: document.update(recording={}), "recording.folder"),
    ],
)
def test_an_engine_with_half_a_gate_does_not_start(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[dict[str, Any]], Any],
    fault: str,
) -> None:
    make_gate(tmp_path, Engine())
    document = json.loads((tmp_path / "gate.json").read_text())
    change(document)
    (tmp_path / "gate.json").write_text(json.dumps(document))
    monkeypatch.setenv("SLIPSTREAM_GATE", str(tmp_path / "gate.json"))
    with pytest.raises(RuntimeError, match="the gate cannot use its settings") as raised:
        Gate(Engine())
    assert fault in str(raised.value)


@pytest.mark.parametrize("path", [None, "", "/nowhere/gate.json"])
def test_an_engine_without_settings_does_not_start(
    monkeypatch: pytest.MonkeyPatch, path: str | None
) -> None:
    monkeypatch.delenv("SLIPSTREAM_GATE", raising=False)
    if path is not None:
        monkeypatch.setenv("SLIPSTREAM_GATE", path)
    with pytest.raises(RuntimeError, match=r"gate.* settings"):
        Gate(Engine())


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
