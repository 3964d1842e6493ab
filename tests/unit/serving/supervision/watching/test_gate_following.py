"""What the user changes of the gate counts at once; what is faulty changes nothing."""

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from slipstream.serving.access.gate_file import GateSettings
from slipstream.serving.access.keys import make_key
from slipstream.serving.run import Terms
from slipstream.serving.served_plan import describe_gate
from slipstream.serving.supervision.watching import gate_following, watchdog
from slipstream.vllm_plugin.gate import settings as gate_settings
from slipstream.vllm_plugin.gate.middleware import Gate
from tests.unit.serving.supervision.fake_engine import MakeStage, Stage, until
from tests.unit.vllm_plugin.gate.pieces import HELLO, Engine, ask_async

NOW = datetime(2026, 11, 15, tzinfo=UTC)


@pytest.fixture(autouse=True)
def hurry(hurried: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_following, "LOOK_EVERY_SECONDS", 0.02)
    monkeypatch.setattr(gate_settings, "LOOK_EVERY_SECONDS", 0.0)


def read_gate(stage: Stage) -> dict[str, Any]:
    settings: dict[str, Any] = json.loads(stage.folder.gate.read_text())
    return settings


def test_a_running_gate_follows_its_file_and_keeps_what_was_good(
    make_stage: MakeStage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "gate.toml"
    file.write_text("[limits]\nn = 2\n")
    stage = make_stage(terms=Terms(gate_file=file))
    statuses: list[int] = []

    async def ask(gate: Gate) -> None:
        statuses.append((await ask_async(gate, json=HELLO | {"n": 2})).status_code)

    async def change(stage: Stage) -> None:
        await stage.reach("ready")
        monkeypatch.setenv("SLIPSTREAM_GATE", str(stage.folder.gate))
        gate = Gate(Engine())
        await ask(gate)
        file.write_text("[limits]\nn = 1\n")
        await until(lambda: read_gate(stage)["limits"]["n"] == 1)
        await ask(gate)
        file.write_text("[limits]\nm = 4\n")
        await until(lambda: "the gate keeps its previous rules: " in stage.messages())
        await ask(gate)
        file.unlink()
        await until(lambda: "No such file" in stage.messages())
        await ask(gate)
        file.write_text('routes = ["models"]\n')
        await until(lambda: len(read_gate(stage)["routes"]) == 1)
        await ask(gate)

    stage.serve(change)
    assert statuses == [200, 400, 400, 400, 404]
    assert "limits.m: Extra inputs are not permitted" in stage.messages()
    assert stage.run.terms.gate_rules is not None
    assert stage.run.terms.gate_rules.routes == ("GET /v1/models",)


def test_keys_that_were_made_while_it_runs_outlive_their_file(
    make_stage: MakeStage, tmp_path: Path
) -> None:
    """The file goes, the engine too: its next gate is not open."""
    keys = tmp_path / "keys.json"
    stage = make_stage(terms=Terms(keys_file=keys))
    required = []

    async def lose_keys(stage: Stage) -> None:
        await stage.reach("ready")
        required.append(read_gate(stage)["keys_required"])
        make_key(keys, "", now=NOW, expires=None)
        await until(lambda: bool(read_gate(stage)["keys_required"]))
        keys.unlink()

    stage.serve(lose_keys)
    assert required == [False]
    assert stage.folder.read().terms.keys_required
    gate = describe_gate(stage.run.plan, stage.run.terms, stage.folder, "0" * 64)
    assert gate.keys_required


def test_faulty_rules_at_a_later_start_are_those_before(
    make_stage: MakeStage, tmp_path: Path
) -> None:
    file = tmp_path / "gate.toml"
    file.write_text("routes = [")
    good = GateSettings(retry_after_seconds=77)
    terms = Terms(gate_file=file, gate_rules=good)
    stage = make_stage(terms=terms)

    async def until_ready(stage: Stage) -> None:
        await stage.reach("ready")

    stage.serve(until_ready)
    assert json.loads(stage.folder.gate.read_text())["retry_after_seconds"] == 77
    assert "is not TOML" in stage.messages()


def test_without_a_gate_a_busy_engine_is_left_alone_and_a_hung_one_replaced(
    make_stage: MakeStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "PROBE_EVERY_SECONDS", 0.05)
    monkeypatch.setattr(watchdog, "STUCK_AFTER_SECONDS", 2.0)
    monkeypatch.setattr(watchdog, "READY_WITHIN_SECONDS", 1.0)
    monkeypatch.setattr("slipstream.serving.supervision.generation.PROBE_SECONDS", 0.1)
    stage = make_stage(terms=Terms(gated=False))

    async def work(stage: Stage) -> None:
        await stage.reach("ready")
        (stage.fake / "hang").touch()
        for tokens in range(30):
            (stage.fake / "tokens").write_text(str(1000 + tokens))
            await asyncio.sleep(0.1)
        assert len(stage.starts()) == 1
        while stage.count("starting") < 2:
            await asyncio.sleep(0.02)
        (stage.fake / "hang").unlink()
        await stage.reach("ready", 2)

    stage.serve(work)
    assert len(stage.starts()) == 2
    assert "without the gate: every route of vLLM is open" in stage.messages()
    assert "without the gate open requests are not counted" in stage.messages()
    assert not stage.folder.gate.exists()
