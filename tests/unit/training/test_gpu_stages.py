"""A run's settings as speculators takes them, and the drafter that comes of it as vLLM does."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from slipstream.errors import MissingPartError
from slipstream.hardware import load_host
from slipstream.training import gpu_lane, gpu_stages
from slipstream.training.gpu_lane import Command, GpuJob
from slipstream.training.gpu_stages import (
    SEQUENCE_LENGTH,
    export_drafter,
    make_job,
    train_drafter,
)
from slipstream.training.workshop import Workshop
from tests.unit.training.pieces import DESIGN, RUN, change, open_workshop


@pytest.fixture
def shop(tmp_path: Path) -> Workshop:
    """Open a workshop on a machine with GPUs, where speculators is."""
    command = tmp_path / "speculators"
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    return replace(
        open_workshop(tmp_path / "run"),
        host=load_host("h100"),
        environment={"SLIPSTREAM_SPECULATORS": str(command)},
    )


def leave_checkpoint(folder: Path) -> Path:
    """Leave what speculators does after an epoch, weights and the state of its optimizer."""
    verifier = {"name_or_path": "/home/me/models/target", "architectures": ["A"]}
    config = {"block_size": 4, "speculators_config": {"algorithm": "dflash", "verifier": verifier}}
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "optimizer_state_dict.pt").write_bytes(b"large")
    return folder


def test_a_job_is_made_of_the_runs_settings(shop: Workshop, tmp_path: Path) -> None:
    settings = change(steps=700, learning_rate=2e-4, seed=5, rows=3, anchors=40)
    run = RUN.model_copy(update={"settings": settings})
    assert make_job(run, shop, endpoint="http://127.0.0.1:9/v1") == GpuJob(
        target="target",
        responses=shop.folder.responses,
        folder=shop.folder.path / "speculators",
        design=DESIGN,
        epochs=1,
        steps=700,
        learning_rate=2e-4,
        anchors=120,
        sequence_length=SEQUENCE_LENGTH,
        endpoint="http://127.0.0.1:9/v1",
        gpus=len(shop.host.accelerators),
        seed=5,
        from_drafter=None,
        speculators=tmp_path / "speculators",
    )


def test_every_gpu_of_the_machine_is_trained_on(shop: Workshop) -> None:
    gpu = shop.host.accelerators[0]
    host = shop.host.model_copy(update={"accelerators": (gpu, gpu, gpu)})
    assert make_job(RUN, replace(shop, host=host), endpoint="").gpus == 3


def test_a_warm_start_begins_with_the_converted_drafter(
    shop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Path, Path]] = []

    def convert(source: Path, target: Path, folder: Path) -> Path:
        asked.append((source, target))
        return folder

    monkeypatch.setattr(gpu_stages, "convert_drafter", convert)
    warm = replace(shop, start_folder=tmp_path)
    assert make_job(RUN, warm, endpoint="").from_drafter == shop.folder.path / "from"
    assert asked == [(tmp_path, Path("target"))]


def test_without_speculators_there_is_no_job(shop: Workshop, tmp_path: Path) -> None:
    bare = replace(shop, environment={"SLIPSTREAM_CACHE": str(tmp_path)})
    with pytest.raises(MissingPartError, match="speculators is not installed"):
        make_job(RUN, bare, endpoint="")


def test_only_what_the_engine_loads_is_exported_under_the_targets_name(tmp_path: Path) -> None:
    trained = leave_checkpoint(tmp_path / "checkpoints" / "3")
    before = (trained / "config.json").read_text()
    folder = tmp_path / "run" / "drafter"
    export_drafter(trained, folder, "Qwen/Qwen3-8B")
    exported = {file.name for file in folder.iterdir()}
    assert exported == {"config.json", "model.safetensors"}
    assert (folder / "model.safetensors").read_bytes() == b"weights"
    assert json.loads((folder / "config.json").read_text()) == {
        "block_size": 4,
        "speculators_config": {
            "algorithm": "dflash",
            "verifier": {"name_or_path": "Qwen/Qwen3-8B", "architectures": ["A"]},
        },
    }
    assert (trained / "config.json").read_text() == before


def test_exporting_again_replaces_the_drafter(tmp_path: Path) -> None:
    folder = tmp_path / "drafter"
    export_drafter(leave_checkpoint(tmp_path / "1"), folder, "one")
    trained = leave_checkpoint(tmp_path / "2")
    (trained / "model.safetensors").write_bytes(b"better")
    export_drafter(trained, folder, "two")
    assert (folder / "model.safetensors").read_bytes() == b"better"
    assert '"two"' in (folder / "config.json").read_text()


@pytest.mark.parametrize("warm", [False, True])
def test_training_leaves_the_best_drafter_for_the_engine(
    warm: bool, shop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = replace(shop, target_folder=tmp_path / "snapshots" / "0a1b2c")
    job = make_job(RUN, shop, endpoint="")
    job.folder.mkdir(parents=True)
    job.rows.write_text('{"input_ids": [1, 2, 3]}\n')
    done: list[Command] = []

    def run_command(command: Command, log: Path, environment: object) -> None:
        done.append(command)
        if "--dry-run" in command:
            job.outline.mkdir()
            (job.outline / "config.json").write_text('{"transformer_layer_config": {}}')
        else:
            leave_checkpoint(job.checkpoints / "checkpoint_best")

    monkeypatch.setattr(gpu_lane, "run_command", run_command)
    monkeypatch.setattr(gpu_stages, "convert_drafter", lambda *_: Path("converted"))
    shop = replace(shop, start_folder=tmp_path if warm else None)
    run, figures = train_drafter(RUN, shop)
    assert figures == {"steps": run.settings.schedule.steps}
    assert ["--dry-run" in command for command in done] == ([False] if warm else [True, False])
    assert ("--from-pretrained" in done[-1]) is warm
    # Three tokens are less than a step, so every step is an epoch of its own.
    assert done[-1][done[-1].index("--epochs") + 1] == "100"
    config = json.loads((shop.folder.drafter / "config.json").read_text())
    assert config["speculators_config"]["verifier"]["name_or_path"] == "Qwen/Qwen3-8B"
