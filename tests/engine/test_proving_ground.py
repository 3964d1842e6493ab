"""What the proving ground makes is a real checkpoint of a real model."""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from slipstream.proving_ground import DrafterShape, make_untrained_drafter
from slipstream.proving_ground.untrained_drafter import weight_shapes

pytestmark = [pytest.mark.engine, pytest.mark.beside]


def test_the_target_is_smollm2_in_bfloat16_with_its_chat_template(
    target: Path, tokenizer: Any
) -> None:
    config = json.loads((target / "config.json").read_text())
    assert (config["num_hidden_layers"], config["hidden_size"]) == (30, 576)
    assert config["vocab_size"] == len(tokenizer) == 49152
    with safe_open(target / "model.safetensors", "pt") as weights:
        kinds = {weights.get_slice(name).get_dtype() for name in weights.keys()}  # noqa: SIM118
    assert kinds == {"BF16"}
    assert "<|im_start|>" in tokenizer.chat_template


def test_a_drafter_of_any_shape_is_stored_as_its_config_says(target: Path, tmp_path: Path) -> None:
    shape = DrafterShape(
        layers=3, block_size=16, target_layer_ids=(0, 29), attention_heads=4, key_value_heads=2
    )
    drafter = make_untrained_drafter(target, tmp_path / "drafter", shape, seed=7)
    config = json.loads((drafter / "config.json").read_text())
    with safe_open(drafter / "model.safetensors", "pt") as weights:
        stored = {
            name: tuple(weights.get_slice(name).get_shape())
            for name in weights.keys()  # noqa: SIM118
        }
    assert stored == weight_shapes(config)
    assert config["block_size"] == 16


def test_a_seed_gives_the_same_drafter_again(target: Path, tmp_path: Path) -> None:
    contents = [
        (
            make_untrained_drafter(target, tmp_path / name, DrafterShape(), seed=seed)
            / "model.safetensors"
        ).read_bytes()
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    ]
    assert contents[0] == contents[1]
    assert contents[0] != contents[2]
