"""A checkpoint adds up its layers, and holds together what it says of quantization."""

import pytest
from hypothesis import given
from hypothesis import strategies as some
from pydantic import ValidationError

from slipstream.checkpoints import Checkpoint
from slipstream.checkpoints.checkpoint import DraftPart, LayerKind, Layers, Quantization

NVFP4 = Quantization(scheme="nvfp4", method="modelopt")


def with_layers(*counts: tuple[LayerKind, int]) -> Checkpoint:
    layers = tuple(Layers(kind=kind, count=count) for kind, count in counts)
    return Checkpoint(name="maker/model", source="test", layers=layers)


@given(some.lists(some.integers(1, 100), min_size=1))
def test_all_layers_are_counted(counts: list[int]) -> None:
    checkpoint = with_layers(*(("full", count) for count in counts))
    assert checkpoint.layer_count == sum(counts)


def test_recurrent_layers_make_a_hybrid_and_windows_are_seen() -> None:
    hybrid = with_layers(("recurrent", 3), ("full", 1))
    windowed = with_layers(("sliding", 5), ("full", 1))
    assert (hybrid.is_hybrid, hybrid.has_sliding_windows) == (True, False)
    assert (windowed.is_hybrid, windowed.has_sliding_windows) == (False, True)


def test_unknown_layers_are_not_counted_and_not_suspected() -> None:
    checkpoint = Checkpoint(name="maker/model", source="test")
    assert checkpoint.layer_count is None
    assert checkpoint.is_hybrid is False
    assert checkpoint.has_sliding_windows is False


def test_a_scheme_and_a_word_that_there_is_none_contradict_each_other() -> None:
    with pytest.raises(ValidationError, match="quantization is given, but quantized is false"):
        Checkpoint(name="maker/model", source="test", quantization=NVFP4, quantized=False)


@pytest.mark.parametrize("quantized", [True, None])
def test_a_scheme_may_be_given_without_saying_so_twice(quantized: bool | None) -> None:
    checkpoint = Checkpoint(
        name="maker/model", source="test", quantization=NVFP4, quantized=quantized
    )
    assert checkpoint.quantization == NVFP4


def test_a_checkpoint_loads_back_from_its_json_identically() -> None:
    checkpoint = with_layers(("sliding", 5), ("full", 1)).model_copy(
        update={"draft": DraftPart(family="dflash", target_layer_ids=(1, 9))}
    )
    assert Checkpoint.model_validate_json(checkpoint.to_json()) == checkpoint


@given(some.integers(2, 64))
def test_a_block_drafts_one_token_less_than_it_has_unless_the_anchor_counts(size: int) -> None:
    plain = DraftPart(family="dflash", block_size=size)
    from_anchor = DraftPart(family="dspark", block_size=size, drafts_from_anchor=True)
    assert (plain.longest_draft, from_anchor.longest_draft) == (size - 1, size)


@given(some.lists(some.integers(0, 60), min_size=1))
def test_hidden_states_lie_one_higher_than_the_layers_that_put_them_out(ids: list[int]) -> None:
    outputs = DraftPart(
        family="dflash", target_layer_ids=tuple(ids), layer_id_convention="layer-output"
    )
    states = DraftPart(
        family="dflash",
        target_layer_ids=tuple(at + 1 for at in ids),
        layer_id_convention="hidden-state",
    )
    assert outputs.layer_outputs == states.layer_outputs == tuple(ids)
