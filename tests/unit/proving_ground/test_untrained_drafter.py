"""A drafter can be had in any shape, and its tensors fit its config and its target."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as some

from slipstream.proving_ground.untrained_drafter import (
    DrafterShape,
    drafter_config,
    spread_evenly,
    weight_shapes,
)

TARGET: dict[str, Any] = {
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_theta": 100000.0, "rope_type": "default"},
}

SHAPES = some.builds(
    DrafterShape,
    layers=some.integers(1, 6),
    block_size=some.integers(2, 32),
    target_layer_ids=some.none() | some.sets(some.integers(0, 29), min_size=1).map(tuple),
    attention_heads=some.none() | some.integers(1, 16),
    key_value_heads=some.none() | some.integers(1, 4),
    head_size=some.none() | some.sampled_from([32, 64, 128]),
    intermediate_size=some.none() | some.integers(8, 4096),
)


def test_what_is_not_asked_for_follows_the_target() -> None:
    config = drafter_config(TARGET, DrafterShape())
    assert config["architectures"] == ["DFlashDraftModel"]
    assert config["head_dim"] == 64
    assert config["max_position_embeddings"] == 8192
    assert config["rope_parameters"] == TARGET["rope_parameters"]
    assert config["dflash_config"] == {"mask_token_id": 3, "target_layer_ids": [1, 8, 14, 20, 27]}


@given(SHAPES)
def test_every_shape_gives_tensors_that_fit_together(shape: DrafterShape) -> None:
    config = drafter_config(TARGET, shape)
    sizes = weight_shapes(config)
    features = 576 * len(config["dflash_config"]["target_layer_ids"])
    query = config["num_attention_heads"] * config["head_dim"]
    assert sizes["fc.weight"] == (576, features)
    assert sizes["layers.0.self_attn.q_proj.weight"] == (query, 576)
    assert sizes["layers.0.self_attn.o_proj.weight"] == (576, query)
    assert len(sizes) == 3 + 11 * shape.layers


@given(some.integers(0, 9), some.integers(10, 200))
def test_what_is_spread_is_sorted_distinct_and_from_the_first_to_the_last(
    first: int, last: int
) -> None:
    ids = spread_evenly(first, last)
    assert list(ids) == sorted(set(ids))
    assert (ids[0], ids[-1]) == (first, last)
