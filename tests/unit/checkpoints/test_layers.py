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


def test_a_dense_models_head_size_follows_from_its_width() -> None:
    assert parse_layers(LLAMA) == (Layers(kind="full", count=12, key_value_heads=2, head_size=16),)


def test_a_stated_head_size_goes_before_the_computed_one() -> None:
    (layers,) = parse_layers(LLAMA | {"head_dim": 128}) or ()
    assert layers.head_size == 128


def test_without_key_value_heads_every_head_keeps_its_own() -> None:
    config = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
    (layers,) = parse_layers(config) or ()
    assert layers.key_value_heads == 4


def test_gemmas_full_layers_have_their_own_heads() -> None:
    assert parse_layers(GEMMA) == (
        Layers(kind="sliding", count=10, key_value_heads=8, head_size=256, window=1024),
        Layers(kind="full", count=2, key_value_heads=2, head_size=512),
    )


def test_layers_that_share_a_cache_keep_nothing_of_their_own() -> None:
    sliding, full = (parse_layers(GEMMA | {"num_kv_shared_layers": 6}) or ())[:2]
    assert (sliding.count, full.count) == (5, 1)


def test_layers_that_share_a_cache_are_layers_all_the_same() -> None:
    layers = parse_layers(GEMMA | {"num_kv_shared_layers": 6}) or ()
    assert sum(part.count for part in layers) == 12


def test_a_hybrid_is_read_from_its_layer_types() -> None:
    types = [*["linear_attention"] * 3, "full_attention"] * 12
    assert parse_layers(QWEN3_NEXT | {"layer_types": types}) == (DELTA_NET, FULL)


def test_a_hybrid_is_read_from_its_interval_too() -> None:
    assert parse_layers(QWEN3_NEXT | {"full_attention_interval": 4}) == (DELTA_NET, FULL)


def test_a_state_that_is_not_float32_takes_two_bytes_an_element() -> None:
    config = QWEN3_NEXT | {"full_attention_interval": 4, "mamba_ssm_dtype": "bfloat16"}
    (recurrent, _) = parse_layers(config) or ()
    assert recurrent.state_element_bytes == 2


def test_of_an_unfamiliar_recurrence_only_the_count_is_known() -> None:
    config = LLAMA | {"layer_types": ["mamba", "attention"] * 6}
    assert parse_layers(config) == (
        Layers(kind="recurrent", count=6),
        Layers(kind="full", count=6, key_value_heads=2, head_size=16),
    )


def test_latent_attention_keeps_one_compressed_vector() -> None:
    config = LLAMA | {"kv_lora_rank": 512, "qk_rope_head_dim": 64}
    assert parse_layers(config) == (
        Layers(kind="latent", count=12, key_value_heads=1, head_size=576),
    )


@pytest.mark.parametrize(
    ("keys", "kind"),
    [
        ({"sliding_window": 512}, "sliding"),
        ({"sliding_window": 512, "use_sliding_window": True}, "sliding"),
        ({"sliding_window": 512, "use_sliding_window": False}, "full"),
        ({"sliding_window": None, "use_sliding_window": True}, "full"),
    ],
)
def test_a_window_counts_only_where_it_is_used(keys: Table, kind: str) -> None:
    (layers,) = parse_layers(LLAMA | keys) or ()
    assert layers.kind == kind


def test_a_config_without_a_count_tells_nothing() -> None:
    assert parse_layers({"hidden_size": 64}) is None
