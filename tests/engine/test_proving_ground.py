"""What the proving ground makes is a real checkpoint of a real model."""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from slipstream.checkpoints import read_checkpoint
from slipstream.checkpoints.pairing import pair
from slipstream.proving_ground import SHIPPED_DRAFTER
from tests.untrained_drafter import DrafterShape, make_untrained_drafter, weight_shapes

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


def test_the_shipped_drafter_is_small_fits_its_target_and_names_no_folder_of_ours(
    target: Path,
) -> None:
    faults = pair(read_checkpoint(str(target)), read_checkpoint(str(SHIPPED_DRAFTER))).faults
    assert [fault for fault in faults if fault.verdict == "refuse"] == []
    assert (SHIPPED_DRAFTER / "model.safetensors").stat().st_size <= 20_000_000
    config = json.loads((SHIPPED_DRAFTER / "config.json").read_text())
    assert config["speculators_config"]["verifier"]["name_or_path"] == "SmolLM2-135M-Instruct"
    assert config["sliding_window_non_causal"] is True
    assert "slipstream train" in (SHIPPED_DRAFTER / "README.md").read_text()
