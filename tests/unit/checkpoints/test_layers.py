"""Layers are grouped by what they keep of a sequence, however the config says it."""

import json
import sys

import pytest

from slipstream.checkpoints.checkpoint import Checkpoint, Layers
from slipstream.checkpoints.layers import parse_layers
from tests.judge.checkpoints import load_models
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


def kinds_of(config: Table) -> dict[str, int] | None:
    layers = parse_layers(config)
    return None if layers is None else {part.kind: part.count for part in layers}


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("Qwen/Qwen3-8B", {"full": 36}),
        ("mistralai/Mistral-7B-Instruct-v0.1", {"sliding": 32}),
        ("deepseek-ai/DeepSeek-V3", {"latent": 61}),
        ("moonshotai/Kimi-K2-Instruct", {"latent": 61}),
        ("google/gemma-3-27b-it", {"sliding": 52, "full": 10}),
        ("google/gemma-4-31B-it", {"sliding": 50, "full": 10}),
        ("openai/gpt-oss-20b", {"sliding": 12, "full": 12}),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", {"sliding": 36, "full": 12}),
        ("Qwen/Qwen3.5-27B", {"recurrent": 48, "full": 16}),
        ("nvidia/NVIDIA-Nemotron-Nano-9B-v2", {"recurrent": 27, "none": 25, "full": 4}),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", {"recurrent": 23, "none": 23, "full": 6}),
        ("ai21labs/AI21-Jamba-Mini-1.7", {"recurrent": 28, "full": 4}),
        ("moonshotai/Kimi-Linear-48B-A3B-Instruct", {"recurrent": 20, "latent": 7}),
        ("ibm-granite/granite-4.0-h-small", {"recurrent": 36, "full": 4}),
        ("MiniMaxAI/MiniMax-M2.5", {"full": 62}),
    ],
)
def test_published_configs_are_read_without_transformers(
    name: str, kinds: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers.models.auto.configuration_auto", None)
    config = load_models()[name].config
    layers = parse_layers(config.get("text_config") or config)
    assert layers
    assert {part.kind: part.count for part in layers} == kinds
    known = (part.state_elements for part in layers if part.kind == "recurrent")
    assert None not in known


MAMBA = {"mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2}
HEADS = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 1}


@pytest.mark.parametrize(
    ("config", "state"),
    [
        # Channels, width, groups, elements of the state and bytes of each.
        (MAMBA | {"attn_layer_period": 4, "attn_layer_offset": 1}, (128, 4, None, 2048, 2)),
        (MAMBA | HEADS | {"layer_types": ["mamba"] * 12}, (160, 4, 1, 2048, 2)),
        (
            {"hybrid_override_pattern": "M*-E" * 3, "model_type": "nemotron_h", "conv_kernel": 4}
            | {"mamba_num_heads": 4, "mamba_head_dim": 8, "ssm_state_size": 16, "n_groups": 2},
            (32 + 64, 4, 2, 512, 4),
        ),
        ({"conv_L_cache": 3, "full_attn_idxs": [2, 5]}, (64, 3, None, 0, 2)),
        (
            {
                "linear_attn_config": {"kda_layers": [1, 2, 3], "num_heads": 4, "head_dim": 16}
                | {"short_conv_kernel_size": 4}
            },
            (192, 4, None, 1024, 4),
        ),
    ],
)
def test_a_state_is_read_from_the_keys_of_its_family(
    config: Table, state: tuple[int | None, ...]
) -> None:
    layers = parse_layers(LLAMA | config) or ()
    (part,) = (part for part in layers if part.kind == "recurrent")
    sizes = (part.convolution_channels, part.convolution_width, part.groups)
    assert (*sizes, part.state_elements, part.state_element_bytes) == state


def test_a_state_beside_attention_does_not_make_more_layers() -> None:
    layers = parse_layers(LLAMA | MAMBA | HEADS | {"model_type": "falcon_h1"})
    assert layers is not None
    assert [(part.kind, part.count, part.beside) for part in layers] == [
        ("full", 12, False),
        ("recurrent", 12, True),
    ]
    assert Checkpoint(name="m", source="test", layers=layers).layer_count == 12


NEW = LLAMA | {"model_type": "of_tomorrow"}


@pytest.mark.parametrize(
    ("config", "kinds"),
    [
        # Neither known here nor to transformers.
        (NEW, None),
        (NEW | {"mamba_d_state": 16}, None),
        (NEW | {"kv_lora_rank": 64}, None),
        (NEW | {"layer_types": ["full_attention", "of_tomorrow"] * 6}, None),
        (NEW | {"layer_types": ["full_attention"] * 12}, {"full": 12}),
        # Known to transformers: its class fills in what the config leaves out.
        (LLAMA | {"model_type": "olmo3"}, {"sliding": 9, "full": 3}),
        (LLAMA | {"model_type": "vaultgemma", "head_dim": 16}, {"sliding": 6, "full": 6}),
        (LLAMA | {"model_type": "gpt_neox"}, {"full": 12}),
        # A class that says nothing of its layers and has keys of another layout.
        (LLAMA | {"model_type": "gpt_neox", "ssm_pattern": "MM*"}, None),
    ],
)
def test_a_layout_that_nothing_knows_is_unknown_and_never_dense(
    config: Table, kinds: dict[str, int] | None
) -> None:
    before = json.dumps(config)
    assert kinds_of(config) == kinds
    assert json.dumps(config) == before


def test_a_drafters_layers_are_alike_whatever_its_model_type() -> None:
    assert parse_layers(NEW, drafter=True) == (DENSE,)


def test_without_transformers_an_unknown_type_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers.models.auto.configuration_auto", None)
    assert parse_layers(LLAMA | {"model_type": "olmo3"}) is None
