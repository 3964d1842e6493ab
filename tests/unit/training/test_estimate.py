"""An estimate follows from the prompts, the target's size and the settings."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from slipstream.checkpoints.checkpoint import Layers, Weights
from slipstream.hardware import load_host
from slipstream.training.estimate import StageEstimate, TrainEstimate, count_weights, estimate_run
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
    settings: TrainSettings = SETTINGS,
    *,
    prompts: int = 1,
    target: Any = SMALL,
    machine: str = "cpu-server",
) -> dict[str, StageEstimate]:
    run = RUN.model_copy(update={"settings": settings})
    made = estimate_run(run, target, PROMPTS * prompts, load_host(machine), Path())
    assert (made.settings, made.decisions) == (settings, RUN.decisions)
    assert TrainEstimate.model_validate_json(made.to_json()) == made
    return {stage.name: stage for stage in made.stages}


def seconds(stage: StageEstimate) -> float:
    assert stage.seconds is not None
    return stage.seconds


def test_every_stage_has_its_work_and_its_disk() -> None:
    stages, weights = estimate(), count_weights(SETTINGS, SMALL)
    assert tuple(stages) == STAGES
    # 480 characters are 120 tokens, and two templates 60; 70 % of 384 are 269 a response.
    assert "538 tokens" in stages["responses"].work
    assert "718 tokens" in stages["states"].work
    assert [stage.disk_bytes for stage in stages.values()] == [
        480,
        538 * 6,
        718 * (5 * 576 * 2 + 48),
        weights * 8,
        0,
        weights * 2,
    ]


@pytest.mark.parametrize(
    ("changes", "extra", "states"),
    [({}, 0, 5), ({"method": "eagle3", "target_layer_ids": (2, 15, 27)}, 576 * (576 + 2 * 192), 3)],
)
def test_weights_are_counted_as_the_layers_have_them(
    changes: dict[str, Any], extra: int, states: int
) -> None:
    """An EAGLE-3 head projects a token beside each state."""
    attention = 576 * 576 * 2 + 576 * 192 * 2 + extra
    expected = 3 * (attention + 3 * 576 * 1536) + states * 576 * 576
    assert count_weights(change(**changes), SMALL) == expected


def test_the_measured_target_takes_the_measured_time() -> None:
    """The card of the shipped drafter has 4 x 48 blocks of 8 at 0.5 s a step."""
    settings = change(block_size=8, intermediate_size=1024)
    stages = estimate(settings)
    weights = count_weights(settings, SMALL)
    assert weights == pytest.approx(9.6e6, rel=0.02)
    assert seconds(stages["training"]) == pytest.approx(100 * 0.5, rel=0.02)
    unknown = SMALL.model_copy(update={"weights": None})
    assert estimate(settings, target=unknown) == stages


def test_time_and_disk_follow_the_target_the_prompts_and_the_steps() -> None:
    large = SMALL.model_copy(update={"weights": Weights(total_bytes=540_000_000)})
    small, slower, more = estimate(), estimate(target=large), estimate(prompts=2)
    for name in ("responses", "states"):
        for other in (slower, more):
            assert seconds(other[name]) == pytest.approx(2 * seconds(small[name]))
        assert more[name].disk_bytes == 2 * small[name].disk_bytes
    assert small["training"] == slower["training"] == more["training"]
    one = estimate(change(steps=1, block_size=1, rows=1))["training"]
    many = estimate(change(steps=300, block_size=16, rows=4))["training"]
    assert seconds(many) == pytest.approx(seconds(one) * 300 * 16 * 4)
    assert many.disk_bytes == one.disk_bytes


def test_on_an_accelerator_only_what_takes_no_time_is_known() -> None:
    stages = estimate(machine="h100")
    known = {name: stage.seconds for name, stage in stages.items() if stage.seconds is not None}
    assert known == {"prompts": 0, "export": 0}


def test_an_estimate_knows_the_disk_of_a_folder_that_is_not_there_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[Path] = []
    usage = shutil.disk_usage(tmp_path)

    def measure(path: Path) -> Any:
        looked.append(path)
        return usage

    monkeypatch.setattr(shutil, "disk_usage", measure)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    for folder in (tmp_path / "there", tmp_path / "runs" / "one", Path("runs/one")):
        expected = estimate_run(RUN, SMALL, PROMPTS, load_host("cpu-server"), folder)
        assert (expected.folder, expected.free_bytes) == (str(folder), usage.free)
    assert looked == [tmp_path / "there", tmp_path, tmp_path]
