"""A checkpoint adds up its layers, and holds together what it says of quantization."""

import pytest
from pydantic import ValidationError

from slipstream.checkpoints import Checkpoint
from slipstream.checkpoints.checkpoint import LayerKind, Layers, Quantization

NVFP4 = Quantization(scheme="nvfp4", method="modelopt")


@pytest.mark.parametrize(
    ("kinds", "count", "hybrid", "windows"),
    [
        ({"recurrent": 3, "full": 1}, 4, True, False),
        ({"sliding": 5, "full": 1}, 6, False, True),
        (None, None, False, False),
    ],
)
def test_layers_are_counted_and_unknown_ones_not_suspected(
    kinds: dict[LayerKind, int] | None, count: int | None, hybrid: bool, windows: bool
) -> None:
    known = tuple(Layers(kind=kind, count=one) for kind, one in (kinds or {}).items())
    checkpoint = Checkpoint(name="maker/model", source="test", layers=known or None)
    assert (checkpoint.layer_count, checkpoint.is_hybrid) == (count, hybrid)
    assert checkpoint.has_sliding_windows is windows


def test_a_scheme_and_a_word_that_there_is_none_contradict_each_other() -> None:
    with pytest.raises(ValidationError, match="quantization is set, but quantized is false"):
        Checkpoint(name="maker/model", source="test", quantization=NVFP4, quantized=False)
    for quantized in (True, None):
        Checkpoint(name="maker/model", source="test", quantization=NVFP4, quantized=quantized)
