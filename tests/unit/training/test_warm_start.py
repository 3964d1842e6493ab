"""A drafter that speculators would train as something else is refused before it is converted."""

import json
from pathlib import Path
from typing import Any

import pytest

from slipstream.errors import InvalidInputError
from slipstream.training.warm_start import convert_drafter, require_same_tensors
from tests.unit.checkpoints.folders import LLAMA, Table, drafter_tensors, write_checkpoint
from tests.untrained_drafter import DrafterShape, drafter_config

SLIDING, FULL = "sliding_attention", "full_attention"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "target", LLAMA)


def native(*layer_ids: int, **changes: Any) -> Table:
    """Return the config of a native drafter; `changes` go into its dflash_config."""
    shape = DrafterShape(layers=2, target_layer_ids=layer_ids or (1, 5, 9))
    config = drafter_config(LLAMA, shape)
    config["dflash_config"] |= changes
    return config


def sliding(config: Table, *kinds: str) -> Table:
    return config | {"layer_types": list(kinds), "sliding_window": 512, "use_sliding_window": True}


def speculators(*kinds: str, non_causal: bool, layer_ids: tuple[int, ...] = (2, 6, 10)) -> Table:
    """Return the config of a drafter in speculators' layout."""
    layers = {"model_type": "qwen3", "num_hidden_layers": len(kinds), "hidden_size": 64}
    return {
        "speculators_model_type": "dflash",
        "block_size": 8,
        "mask_token_id": 3,
        "aux_hidden_state_layer_ids": list(layer_ids),
        "sliding_window_non_causal": non_causal,
        "transformer_layer_config": sliding(layers, *kinds),
        "speculators_config": {
            "algorithm": "dflash",
            "verifier": {"name_or_path": "owner/elsewhere", "architectures": []},
        },
    }


@pytest.mark.parametrize(
    ("config", "fault"),
    [
        (native(1, 5, 11), "it reads the output of target layer 11; speculators keeps that of"),
        (speculators(FULL, non_causal=True, layer_ids=(2, 12)), "the output of target layer 11"),
        (native(mask_token_id=None), "has no mask_token_id"),
        (native(use_swa=True, causal=False), "dflash_config.use_swa gives its layers windows"),
        (native(causal=True), "it is causal and has full attention"),
        (sliding(native(), SLIDING, FULL), "it is causal and has full attention"),
        (speculators(SLIDING, FULL, non_causal=False), "it is causal and has full attention"),
    ],
)
def test_what_speculators_would_lose_is_refused(
    tmp_path: Path, target: Path, config: Table, fault: str
) -> None:
    source = write_checkpoint(tmp_path / "source", config)
    with pytest.raises(InvalidInputError, match="cannot be trained further") as caught:
        convert_drafter(source, target, tmp_path / "converted")
    assert len(caught.value.details) == 1
    assert fault in caught.value.details[0]
    assert not (tmp_path / "converted").exists()


def test_every_fault_is_told_at_once_and_what_is_no_dflash_drafter_is_refused(
    tmp_path: Path, target: Path
) -> None:
    source = write_checkpoint(tmp_path / "source", native(11, use_swa=True, causal=True))
    with pytest.raises(InvalidInputError) as caught:
        convert_drafter(source, target, tmp_path / "converted")
    assert len(caught.value.details) == 3
    for config in (LLAMA, native() | {"architectures": ["DFlash2DraftModel"]}):
        source = write_checkpoint(tmp_path / "source", config)
        with pytest.raises(InvalidInputError, match="is not a DFlash drafter"):
            convert_drafter(source, target, tmp_path / "converted")


@pytest.mark.parametrize(
    ("kinds", "non_causal", "settled"),
    [
        ((FULL, FULL), False, True),
        ((FULL, FULL), True, True),
        ((SLIDING, SLIDING), False, False),
        ((SLIDING, SLIDING), True, True),
        ((SLIDING, FULL), True, True),
    ],
)
def test_a_drafter_in_speculators_layout_is_copied_and_made_for_this_target(
    tmp_path: Path, target: Path, kinds: tuple[str, ...], non_causal: bool, settled: bool
) -> None:
    """vLLM 0.32 takes `sliding_window_non_causal` for the word on full attention too."""
    config = speculators(*kinds, non_causal=non_causal)
    tensors = {"fc.weight": ("BF16", (64, 192))}
    source = write_checkpoint(tmp_path / "source", config, tensors=tensors)
    (source / "optimizer_state_dict.pt").write_bytes(b"large")
    folder = convert_drafter(source, target, tmp_path / "converted")
    verifier = {"name_or_path": str(target), "architectures": []}
    expected = config | {
        "sliding_window_non_causal": settled,
        "speculators_config": {"algorithm": "dflash", "verifier": verifier},
    }
    assert json.loads((folder / "config.json").read_text()) == expected
    assert json.loads((source / "config.json").read_text()) == config
    copied = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert set(copied) == {"config.json", "model.safetensors"}
    assert copied["model.safetensors"] == (source / "model.safetensors").read_bytes()


def test_tensors_that_were_dropped_or_cut_are_named_and_more_are_fine(tmp_path: Path) -> None:
    def store(name: str, **changes: tuple[str, tuple[int, ...]]) -> Path:
        tensors = {**whole, **{f"{key}.weight": value for key, value in changes.items()}}
        return write_checkpoint(tmp_path / name, config, tensors=tensors)

    config = native()
    whole = drafter_tensors(config)
    source = store("source", lm_head=("BF16", (300, 64)))
    cut = store("cut", fc=("BF16", (64, 128)))
    with pytest.raises(InvalidInputError, match="no place for 2 of the tensors") as caught:
        require_same_tensors(source, cut)
    assert caught.value.details == ("fc.weight: [64, 192]", "lm_head.weight: [300, 64]")
    require_same_tensors(store("plain"), source)
