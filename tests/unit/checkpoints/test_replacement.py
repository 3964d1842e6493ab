"""A drafter takes another's place only if the engine need not notice."""

from pathlib import Path

import pytest

from slipstream.checkpoints.replacement import MASK_EMBEDDING, find_replacement_faults
from tests.unit.checkpoints.folders import Table, Tensors, drafter_tensors, write_checkpoint
from tests.unit.checkpoints.pairs import NATIVE, SPECULATORS, with_own, with_rope

TENSORS = drafter_tensors(NATIVE)


def find(
    tmp_path: Path, config: Table, tensors: Tensors = TENSORS, loaded: Table = NATIVE
) -> list[tuple[str, str]]:
    old = write_checkpoint(tmp_path / "old", loaded, tensors=TENSORS)
    new = write_checkpoint(tmp_path / "new", config, tensors=tensors)
    faults = list(find_replacement_faults(str(old), str(new)))
    assert all(fault.verdict == "refuse" and str(new) in fault.hint for fault in faults)
    return [(fault.code, fault.message.partition(": ")[2]) for fault in faults]


def test_a_drafter_of_the_same_shape_in_either_layout_takes_its_place(tmp_path: Path) -> None:
    told = {"dtype": "float32", "max_position_embeddings": 99, "transformers_version": "9"}
    assert find(tmp_path, NATIVE | told) == []
    own = with_own(target_layer_ids=[1, 3, 5, 7, 9])
    assert find(tmp_path, SPECULATORS, loaded=own) == []


@pytest.mark.parametrize(
    ("tensors", "what"),
    [
        ({"norm.weight": ("BF16", (32,))}, "norm.weight is BF16 [32], not BF16 [64]"),
        ({"norm.weight": ("F32", (64,))}, "norm.weight is F32 [64], not BF16 [64]"),
        ({"lm_head.weight": ("BF16", (2, 2))}, "lm_head.weight is BF16 [2, 2], not there"),
    ],
)
def test_tensors_without_a_place_are_named(tmp_path: Path, tensors: Tensors, what: str) -> None:
    assert find(tmp_path, NATIVE, {**TENSORS, **tensors}) == [("swap-tensors", what)]


def test_a_tensor_that_is_missing_is_named(tmp_path: Path) -> None:
    fewer = {name: tensor for name, tensor in TENSORS.items() if name != "fc.weight"}
    ((code, what),) = find(tmp_path, NATIVE, fewer)
    assert (code, what[:20]) == ("swap-tensors", "fc.weight is missing")


@pytest.mark.parametrize(
    ("config", "what"),
    [
        (NATIVE | {"block_size": 16}, "block_size is 16, not 8"),
        (with_own(mask_token_id=4), "mask_token_id is 4, not 3"),
        (with_own(target_layer_ids=[1, 2, 3, 4, 5]), "target layers is (1, 2, 3, 4, 5), not"),
        (with_rope(rope_theta=5e5), "rope_theta is 500000.0, not 10000.0"),
        (NATIVE | {"rms_norm_eps": 1e-6}, "rms_norm_eps is 1e-06, not 1e-05"),
        (NATIVE | {"hidden_act": "gelu"}, "hidden_act is gelu, not silu"),
    ],
)
def test_settings_that_the_engine_would_not_take_over_are_named(
    tmp_path: Path, config: Table, what: str
) -> None:
    ((code, told),) = find(tmp_path, config)
    assert code == "swap-settings"
    assert told.startswith(what)


@pytest.mark.parametrize("which", ["old", "new"])
def test_a_mask_embedding_of_its_own_stays_until_a_restart(tmp_path: Path, which: str) -> None:
    (tmp_path / which).mkdir()
    (tmp_path / which / MASK_EMBEDDING).touch()
    assert [code for code, _ in find(tmp_path, NATIVE)] == ["swap-mask"]
