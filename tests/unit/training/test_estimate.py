"""An estimate follows from the prompts, the target's size and the settings."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from slipstream.checkpoints.checkpoint import Layers, Weights
from slipstream.hardware import load_host
from slipstream.training.estimate import (
    StageEstimate,
    TrainEstimate,
    count_weights,
    estimate_stages,
)
from slipstream.training.run import STAGES, TrainSettings
from tests.unit.planning.pieces import TARGET
from tests.unit.training.pieces import RUN, SETTINGS, change, converse

SMALL = TARGET.model_copy(
    update={
        "name": "SmolLM2-135M-Instruct",
        "hidden_size": 576,
        "attention_heads": 9,
        "layers": (Layers(kind="full", count=30, key_value_heads=3, head_size=64),),
        "weights": Weights(total_bytes=270_000_000),
    }
)
PROMPTS = [converse("x" * 400, kind="code"), converse("x" * 80, kind="prose")]


def estimate(
    settings: TrainSettings = SETTINGS, *, prompts: int = 1, **options: Any
) -> dict[str, StageEstimate]:
    target = options.pop("target", SMALL)
    on_cpu = options.pop("on_cpu", True)
    stages = estimate_stages(settings, target, PROMPTS * prompts, on_cpu=on_cpu)
    return {stage.name: stage for stage in stages}


def seconds(stage: StageEstimate) -> float:
    assert stage.seconds is not None
    return stage.seconds


def test_every_stage_is_told_of_in_order() -> None:
    assert tuple(estimate()) == STAGES


def test_the_work_of_every_stage_is_described() -> None:
    # 480 characters are 120 tokens, and two templates 60; 70 % of 384 are 269 a response.
    assert {name: stage.work for name, stage in estimate().items()} == {
        "prompts": "2 conversations",
        "responses": "about 538 tokens, at most 384 a response",
        "states": "5 layers of 718 tokens",
        "training": "100 steps of 192 blocks, 12.3 million weights",
        "acceptance": "at most 48 held-out prompts, offline and served",
        "export": "weights, config, card",
    }


def test_the_disk_of_every_stage_is_told() -> None:
    weights = count_weights(SETTINGS, SMALL)
    assert {name: stage.disk_bytes for name, stage in estimate().items()} == {
        "prompts": 480,
        "responses": 538 * 6,
        "states": 718 * 5 * 576 * 2,
        "training": weights * 12,
        "acceptance": 0,
        "export": weights * 2,
    }


def test_an_eagle3_head_projects_a_token_beside_each_state() -> None:
    settings = change(method="eagle3", layers=1, target_layer_ids=(2, 15, 27))
    attention = 2 * 576 * (576 + 2 * 192) + 576 * 576
    assert count_weights(settings, SMALL) == 3 * 576 * 576 + attention + 3 * 576 * 1536


def test_the_measured_target_takes_the_measured_time() -> None:
    stages = estimate()
    assert seconds(stages["responses"]) == pytest.approx(538 / 600)
    assert seconds(stages["states"]) == pytest.approx(718 / 1200)
    # Blocks of 4 are half of those that were measured.
    weights = count_weights(SETTINGS, SMALL)
    assert seconds(stages["training"]) == pytest.approx(100 * 0.5 * 0.5 * weights / 9.6e6)


def test_judging_takes_half_a_minute_and_thirty_tokens_a_second() -> None:
    stage = estimate()["acceptance"]
    assert seconds(stage) == pytest.approx(30 + 48 * 384 * 0.7 / 30)


def test_on_an_accelerator_only_what_takes_no_time_is_known() -> None:
    stages = estimate(on_cpu=False)
    known = {name: stage.seconds for name, stage in stages.items() if stage.seconds is not None}
    assert known == {"prompts": 0, "export": 0}


def test_a_target_of_unknown_size_is_taken_for_the_measured_one() -> None:
    unknown = SMALL.model_copy(update={"weights": None})
    assert estimate(target=unknown) == estimate()


@given(some.integers(1, 50))
def test_twice_the_prompts_take_twice_the_states(prompts: int) -> None:
    once, twice = estimate(prompts=prompts), estimate(prompts=2 * prompts)
    for name in ("responses", "states"):
        assert twice[name].disk_bytes == 2 * once[name].disk_bytes
        assert seconds(twice[name]) == pytest.approx(2 * seconds(once[name]))
    assert twice["training"] == once["training"]


@given(some.integers(1, 10_000), some.integers(2, 32), some.integers(1, 8))
def test_training_time_follows_steps_and_blocks(steps: int, block: int, rows: int) -> None:
    one = estimate(change(steps=1, block_size=1, rows=1))["training"]
    many = estimate(change(steps=steps, block_size=block, rows=rows))["training"]
    assert seconds(many) == pytest.approx(seconds(one) * steps * block * rows)
    assert many.disk_bytes == one.disk_bytes


def test_weights_are_counted_as_the_layers_have_them() -> None:
    attention = 576 * 576 * 2 + 576 * 192 * 2
    inner = 3 * 576 * 1536
    assert count_weights(SETTINGS, SMALL) == 3 * (attention + inner) + 5 * 576 * 576


def test_an_estimate_knows_the_disk_of_a_folder_that_is_not_there_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Path] = []
    usage = shutil.disk_usage(tmp_path)

    def measure(path: Path) -> Any:
        asked.append(path)
        return usage

    monkeypatch.setattr(shutil, "disk_usage", measure)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    for folder in (tmp_path / "there", tmp_path / "runs" / "one", Path("runs/one")):
        expected = TrainEstimate.make(RUN, SMALL, PROMPTS, load_host("cpu-server"), folder)
        assert (expected.folder, expected.free_bytes) == (str(folder), usage.free)
    assert asked == [tmp_path / "there", tmp_path, tmp_path]


@pytest.mark.parametrize(("machine", "known"), [("cpu-server", True), ("h100", False)])
def test_the_time_is_known_only_where_it_was_measured(
    machine: str, known: bool, tmp_path: Path
) -> None:
    expected = TrainEstimate.make(RUN, SMALL, PROMPTS, load_host(machine), tmp_path)
    assert (expected.settings, expected.decisions) == (RUN.settings, RUN.decisions)
    assert (expected.stages[1].seconds is not None) is known
    assert TrainEstimate.model_validate_json(expected.to_json()) == expected
