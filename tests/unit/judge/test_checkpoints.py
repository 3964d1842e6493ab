"""The models that plans are judged with: enough kinds, with sources, and read as published."""

from pathlib import Path

import pytest

from slipstream.checkpoints.reading import read_checkpoint
from tests.judge.checkpoints import list_targets, load_models, write_checkpoint


def test_models_cover_the_kinds_that_plans_differ_by() -> None:
    targets = [load_models()[name] for name in list_targets()]
    classes = {model.config["architectures"][0] for model in targets}
    methods = {
        model.config["quantization_config"]["quant_method"]
        for model in targets
        if "quantization_config" in model.config
    }
    assert len(targets) >= 32
    assert len(classes) >= 18
    assert methods >= {"awq", "gptq", "auto-round", "fp8", "mxfp4", "modelopt"}
    assert methods >= {"compressed-tensors"}
    assert all(model.source for model in targets)
    assert {model.drafter for model in targets} - {None} <= set(load_models())


@pytest.mark.parametrize("name", sorted(load_models()))
def test_a_written_model_has_the_published_size_and_shape(name: str, tmp_path: Path) -> None:
    model = load_models()[name]
    read = read_checkpoint(str(write_checkpoint(name, tmp_path)))
    text = model.config.get("text_config") or model.config
    assert read.weights is not None
    assert read.weights.total_bytes == pytest.approx(model.bytes)
    assert read.architecture == model.config["architectures"][0]
    assert (read.draft is not None) == model.is_drafter
    assert read.hidden_size == text["hidden_size"]
    assert read.quantized == ("quantization_config" in model.config)
