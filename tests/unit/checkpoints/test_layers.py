"""Layers are grouped by what they keep of a sequence, however the config says it."""

import pytest

from slipstream.checkpoints.checkpoint import Layers
from slipstream.checkpoints.layers import parse_layers
from tests.unit.checkpoints.folders import LLAMA, Table

GEMMA: Table = {
    "hidden_size": 2816,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "num_global_key_value_heads": 2,
    "head_dim": 256,
    "global_head_dim": 512,
    "sliding_window": 1024,
    "layer_types": [*["sliding_attention"] * 5, "full_attention"] * 2,
}
QWEN3_NEXT: Table = {
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "mamba_ssm_dtype": "float32",
}
DELTA_NET = Layers(
    kind="recurrent",
    count=36,
    convolution_channels=2 * 16 * 128 + 32 * 128,
    convolution_width=4,
    state_elements=32 * 128 * 128,
    state_element_bytes=4,
)
FULL = Layers(kind="full", count=12, key_value_heads=2, head_size=256)


DENSE = Layers(kind="full", count=12, key_value_heads=2, head_size=16)
WITHOUT_GROUPS = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
TYPES = [*["linear_attention"] * 3, "full_attention"] * 12
SLIDING = Layers(kind="sliding", count=10, key_value_heads=8, head_size=256, window=1024)
WIDE = Layers(kind="full", count=2, key_value_heads=2, head_size=512)


def count(part: Layers, layers: int) -> Layers:
    return part.model_copy(update={"count": layers})


@pytest.mark.parametrize(
    ("config", "layers"),
    [
        (LLAMA, (DENSE,)),
        (LLAMA | {"head_dim": 128}, (DENSE.model_copy(update={"head_size": 128}),)),
        (WITHOUT_GROUPS, (DENSE.model_copy(update={"key_value_heads": 4}),)),
        (GEMMA, (SLIDING, WIDE)),
        (
            GEMMA | {"num_kv_shared_layers": 6},
            (count(SLIDING, 5), count(WIDE, 1), Layers(kind="shared", count=6)),
        ),
        (QWEN3_NEXT | {"layer_types": TYPES}, (DELTA_NET, FULL)),
        (QWEN3_NEXT | {"full_attention_interval": 4}, (DELTA_NET, FULL)),
        (
            QWEN3_NEXT | {"full_attention_interval": 4, "mamba_ssm_dtype": "bfloat16"},
            (DELTA_NET.model_copy(update={"state_element_bytes": 2}), FULL),
        ),
        # Of an unfamiliar recurrence only the count is known.
        (
            LLAMA | {"layer_types": ["mamba", "attention"] * 6},
            (Layers(kind="recurrent", count=6), count(DENSE, 6)),
        ),
        (
            LLAMA | {"kv_lora_rank": 512, "qk_rope_head_dim": 64},
            (Layers(kind="latent", count=12, key_value_heads=1, head_size=576),),
        ),
        ({"hidden_size": 64}, None),
    ],
)
def test_layers_are_read_by_what_they_keep(
    config: Table, layers: tuple[Layers, ...] | None
) -> None:
    assert parse_layers(config) == layers


@pytest.mark.parametrize(
    ("keys", "kind"),
    [
        ({"sliding_window": 512}, "sliding"),
        ({"sliding_window": 512, "use_sliding_window": True}, "sliding"),
        ({"sliding_window": 512, "use_sliding_window": False}, "full"),
        ({"sliding_window": 512, "model_type": "qwen3"}, "full"),
        ({"sliding_window": None, "use_sliding_window": True}, "full"),
    ],
)
def test_a_window_counts_only_where_it_is_used(keys: Table, kind: str) -> None:
    (layers,) = parse_layers(LLAMA | keys) or ()
    assert layers.kind == kind
