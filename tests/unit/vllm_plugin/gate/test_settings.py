"""The gate starts with all of its settings or not at all."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slipstream.vllm_plugin.gate.middleware import Gate
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
