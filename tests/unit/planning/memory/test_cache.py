"""Cache sizes follow the engine's own formulas; unknown stays unknown."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from slipstream.checkpoints.checkpoint import Checkpoint, Layers
from slipstream.planning.memory.cache import (
    layer_token_bytes,
    sequence_bytes,
    slot_bytes,
    state_bytes,
    token_bytes,
)
from tests.unit.planning.pieces import HYBRID_LAYERS, TARGET

TURBOQUANT = ("turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc")


def with_layers(*layers: Layers) -> Checkpoint:
    return TARGET.model_copy(update={"layers": layers})


def size_of(checkpoint: Checkpoint, **changes: int | str) -> int | None:
    wanted: dict[str, int | str] = {
        "context": 1000,
        "kv_dtype": "auto",
        "draft_length": 7,
        "in_flight_tokens": 512,
        "block_tokens": 16,
        **changes,
    }
    return sequence_bytes(checkpoint, **wanted)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("head_size", "sizes"), [(128, (196, 134, 118, 102)), (256, (388, 262, 230, 198))]
)
def test_turboquants_slots_are_those_the_engine_reports(
    head_size: int, sizes: tuple[int, ...]
) -> None:
    assert tuple(slot_bytes(head_size, name) for name in TURBOQUANT) == sizes


def test_plain_slots_are_a_key_and_a_value() -> None:
    assert slot_bytes(128, "auto") == slot_bytes(128, "bfloat16") == 512
    assert slot_bytes(128, "float16") == 512
    assert {slot_bytes(128, name) for name in ("fp8", "fp8_e4m3", "fp8_e5m2")} == {256}
    assert slot_bytes(128, "float32") == 1024


def test_smollm2_with_a_drafter_of_three_layers_keeps_what_the_engine_keeps() -> None:
    target = with_layers(Layers(kind="full", count=30, key_value_heads=3, head_size=64))
    drafter = with_layers(Layers(kind="full", count=3, key_value_heads=3, head_size=64))
    assert (token_bytes(target, "auto") or 0) + (token_bytes(drafter, "auto") or 0) == 25344


def test_a_latent_cache_is_one_vector_a_token() -> None:
    part = Layers(kind="latent", count=1, key_value_heads=1, head_size=576)
    assert layer_token_bytes(part, "auto") == 1152
    assert layer_token_bytes(part, "fp8") == 576


def test_a_latent_cache_is_not_packed() -> None:
    part = Layers(kind="latent", count=1, key_value_heads=1, head_size=576)
    assert layer_token_bytes(part, "turboquant_k8v4") == 1152


def test_turboquant_leaves_four_layers_of_a_dense_model_plain_and_none_of_a_hybrid() -> None:
    dense = with_layers(Layers(kind="full", count=36, key_value_heads=8, head_size=128))
    assert token_bytes(dense, "turboquant_k8v4") == 8 * (32 * 196 + 4 * 512)
    hybrid = with_layers(*HYBRID_LAYERS)
    assert token_bytes(hybrid, "turboquant_k8v4") == 16 * 4 * 388
    packed = size_of(dense, context=16, kv_dtype="turboquant_k8v4")
    assert packed == 16 * 8 * (32 * 196 + 4 * 512)


def test_a_recurrent_state_is_kept_once_more_for_every_draft_token() -> None:
    part = HYBRID_LAYERS[0]
    one = 10240 * 3 * 2 + 786432 * 4
    assert state_bytes(part, 0) == one
    assert state_bytes(part, 15) == (10240 * 18 * 2 + 786432 * 4) * 16


def test_a_state_of_unsaid_type_is_kept_in_two_bytes() -> None:
    part = HYBRID_LAYERS[0].model_copy(update={"state_element_bytes": None})
    assert state_bytes(part, 0) == 10240 * 3 * 2 + 786432 * 2


def test_a_sequence_takes_whole_blocks() -> None:
    target = with_layers(Layers(kind="full", count=2, key_value_heads=1, head_size=64))
    assert size_of(target, context=1000) == 63 * 16 * 2 * 256
    assert size_of(target, context=1008) == 63 * 16 * 2 * 256
    assert size_of(target, context=1009) == 64 * 16 * 2 * 256


def test_a_window_keeps_itself_the_step_and_one_block() -> None:
    target = with_layers(
        Layers(kind="sliding", count=1, key_value_heads=1, head_size=64, window=128)
    )
    assert size_of(target, context=100000) == (-(-(127 + 512) // 16) + 1) * 16 * 256
    assert size_of(target, context=64) == (4 + 1) * 16 * 256
    assert size_of(target, context=100000, block_tokens=1) == (127 + 512 + 1) * 256


def test_a_window_of_unknown_width_is_taken_as_the_whole_context() -> None:
    target = with_layers(Layers(kind="sliding", count=1, key_value_heads=1, head_size=64))
    assert size_of(target, context=1600) == 1600 * 256


def test_layers_that_share_a_cache_keep_nothing() -> None:
    own = Layers(kind="full", count=2, key_value_heads=1, head_size=64)
    shared = Layers(kind="shared", count=9)
    assert size_of(with_layers(own, shared)) == size_of(with_layers(own))
    assert token_bytes(with_layers(own, shared), "auto") == 512


def test_a_hybrids_block_holds_a_state_and_states_are_padded_to_it() -> None:
    hybrid = with_layers(*HYBRID_LAYERS)
    state, token = 10240 * (3 + 7) * 2 + 786432 * 4, 4 * 1024
    block = 16 * -(-state // (16 * token))
    page = block * token
    assert page >= state
    attention = 16 * -(-1024 // block) * page
    assert size_of(hybrid, context=1024) == 48 * 8 * page + attention


def test_a_model_of_states_alone_needs_no_blocks() -> None:
    states = with_layers(HYBRID_LAYERS[0])
    assert size_of(states) == 48 * (10240 * 10 * 2 + 786432 * 4) * 8
    small = Layers(
        kind="recurrent", count=1, convolution_channels=3, convolution_width=4, state_elements=5
    )
    assert size_of(with_layers(small)) == (3 * 10 * 2 + 5 * 2) * 8


@pytest.mark.parametrize(("layers", "plain"), [(1, 0), (2, 2), (3, 2), (4, 4), (36, 4)])
def test_turboquant_leaves_two_layers_at_either_end_plain(layers: int, plain: int) -> None:
    dense = with_layers(Layers(kind="full", count=layers, key_value_heads=1, head_size=128))
    packed = layers - plain
    assert token_bytes(dense, "turboquant_k8v4") == packed * 196 + plain * 512


@pytest.mark.parametrize(
    "layers",
    [
        None,
        (Layers(kind="full", count=2, key_value_heads=None, head_size=64),),
        (Layers(kind="full", count=2, key_value_heads=2, head_size=None),),
        (Layers(kind="recurrent", count=2),),
    ],
)
def test_an_unknown_shape_has_an_unknown_size(layers: tuple[Layers, ...] | None) -> None:
    checkpoint = TARGET.model_copy(update={"layers": layers})
    assert size_of(checkpoint) is None
    if layers is None or layers[0].kind == "full":
        assert token_bytes(checkpoint, "auto") is None


def test_a_cache_type_that_is_not_known_has_an_unknown_size() -> None:
    assert token_bytes(TARGET, "nvfp4") is None
    assert size_of(TARGET, kv_dtype="nvfp4") is None


@given(
    context=some.integers(1, 200000),
    more=some.integers(0, 5000),
    drafted=some.integers(0, 15),
    dtype=some.sampled_from(["auto", "fp8", *TURBOQUANT]),
)
def test_more_context_and_longer_drafts_never_take_less(
    context: int, more: int, drafted: int, dtype: str
) -> None:
    hybrid = with_layers(*HYBRID_LAYERS)
    size = size_of(hybrid, context=context, draft_length=drafted, kv_dtype=dtype)
    assert size is not None
    longer = size_of(hybrid, context=context + more, draft_length=drafted, kv_dtype=dtype)
    deeper = size_of(hybrid, context=context, draft_length=drafted + 1, kv_dtype=dtype)
    assert longer is not None
    assert deeper is not None
    assert longer >= size
    assert deeper > size
