"""A checkpoint's files in, one `Checkpoint` out."""

from pathlib import Path

import pytest

from slipstream.checkpoints import Checkpoint, read_checkpoint
from slipstream.checkpoints.checkpoint import (
    Conversation,
    Experts,
    Layers,
    Quantization,
    Rope,
    Weights,
)
from slipstream.errors import InvalidInputError
from slipstream.proving_ground.untrained_drafter import DrafterShape, drafter_config
from tests.unit.checkpoints.folders import (
    LLAMA,
    LLAMA_TENSORS,
    TOKENIZER,
    Table,
    drafter_tensors,
    write_checkpoint,
    write_safetensors,
)

GEMMA: Table = {
    "architectures": ["Gemma4ForConditionalGeneration"],
    "model_type": "gemma4",
    "dtype": "bfloat16",
    "text_config": {
        "model_type": "gemma4_text",
        "hidden_size": 5376,
        "num_hidden_layers": 6,
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "num_global_key_value_heads": 4,
        "head_dim": 256,
        "global_head_dim": 512,
        "vocab_size": 262144,
        "max_position_embeddings": 262144,
        "sliding_window": 1024,
        "layer_types": [*["sliding_attention"] * 5, "full_attention"],
        "rope_parameters": {
            "full_attention": {"rope_theta": 1000000.0, "rope_type": "proportional"},
            "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
        },
    },
    "vision_config": {"hidden_size": 1152},
}


def read_config(folder: Path, config: Table) -> Checkpoint:
    return read_checkpoint(str(write_checkpoint(folder, config)))


def hash_tokenizer(folder: Path, tokenizer: Table) -> str | None:
    write_checkpoint(folder, LLAMA, tokenizer=tokenizer)
    return read_checkpoint(str(folder)).tokenizer_sha256


def with_vocabulary(vocabulary: object) -> Table:
    return TOKENIZER | {"model": TOKENIZER["model"] | {"vocab": vocabulary}}


def test_a_dense_model_is_read_whole(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, LLAMA, tensors=LLAMA_TENSORS, tokenizer=TOKENIZER)
    checkpoint = read_checkpoint(str(folder))
    assert checkpoint == Checkpoint(
        name=str(tmp_path),
        source="folder",
        complete=True,
        architecture="LlamaForCausalLM",
        model_type="llama",
        hidden_size=64,
        attention_heads=4,
        layers=(Layers(kind="full", count=12, key_value_heads=2, head_size=16),),
        vocabulary_size=300,
        context=4096,
        rope=Rope(theta=10000.0, scaling="default"),
        attention_sinks=False,
        quantized=False,
        dtype="bfloat16",
        weights=Weights(total_bytes=76800, bytes_by_dtype={"BF16": 76800}),
        modalities=(),
        predicting_layers=0,
        conversation=Conversation(),
        tokenizer_sha256=checkpoint.tokenizer_sha256,
        gated=False,
    )
    assert checkpoint.tokenizer_sha256 is not None


def test_a_multimodal_model_is_read_from_its_text_config(tmp_path: Path) -> None:
    checkpoint = read_config(tmp_path, GEMMA)
    assert checkpoint.architecture == "Gemma4ForConditionalGeneration"
    assert checkpoint.model_type == "gemma4"
    assert (checkpoint.hidden_size, checkpoint.vocabulary_size) == (5376, 262144)
    assert checkpoint.context == 262144
    assert checkpoint.layers == (
        Layers(kind="sliding", count=5, key_value_heads=16, head_size=256, window=1024),
        Layers(kind="full", count=1, key_value_heads=4, head_size=512),
    )
    assert checkpoint.modalities == ("vision",)
    assert checkpoint.dtype == "bfloat16"


def test_a_vocabulary_beside_the_text_config_is_found(tmp_path: Path) -> None:
    text = {key: value for key, value in GEMMA["text_config"].items() if key != "vocab_size"}
    checkpoint = read_config(tmp_path, GEMMA | {"text_config": text, "vocab_size": 262208})
    assert checkpoint.vocabulary_size == 262208


def test_a_drafter_has_a_draft_part_and_its_head_is_the_targets(tmp_path: Path) -> None:
    config = drafter_config(LLAMA, DrafterShape(layers=2))
    folder = write_checkpoint(tmp_path, config, tensors=drafter_tensors(config))
    drafter = read_checkpoint(str(folder))
    assert drafter.draft is not None
    assert (drafter.draft.family, drafter.layer_count) == ("dflash", 2)
    assert (drafter.draft.own_head, drafter.draft.has_vocabulary_map) == (False, False)


def test_a_speculators_drafter_is_read_from_its_layer_config(tmp_path: Path) -> None:
    config = {"speculators_model_type": "dflash", "transformer_layer_config": LLAMA}
    drafter = read_config(tmp_path, config)
    assert (drafter.hidden_size, drafter.context, drafter.vocabulary_size) == (64, 4096, 300)


@pytest.mark.parametrize(
    ("keys", "experts"),
    [
        ({"num_experts": 512, "num_experts_per_tok": 10}, Experts(total=512, active=10)),
        ({"num_local_experts": 32, "num_experts_per_tok": 4}, Experts(total=32, active=4)),
        ({"n_routed_experts": 256, "num_experts_per_tok": 8}, Experts(total=256, active=8)),
        ({"num_experts": 128, "top_k_experts": 8}, Experts(total=128, active=8)),
        ({"num_experts": 64}, Experts(total=64, active=None)),
        ({"num_experts": 0}, None),
        ({}, None),
    ],
)
def test_experts_are_read_under_every_name(
    tmp_path: Path, keys: Table, experts: Experts | None
) -> None:
    assert read_config(tmp_path, LLAMA | keys).experts == experts


@pytest.mark.parametrize(
    ("keys", "rope"),
    [
        (
            {"rope_parameters": {"rope_theta": 5e5, "rope_type": "yarn", "factor": 4.0}},
            Rope(theta=5e5, scaling="yarn", factor=4.0),
        ),
        (
            {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
            Rope(theta=5e5, scaling="llama3", factor=8.0),
        ),
        (
            {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}},
            Rope(theta=5e5, scaling="linear", factor=2.0),
        ),
        ({"rope_theta": 5e5, "rope_scaling": None}, Rope(theta=5e5, scaling="default")),
        (
            {"rope_parameters": GEMMA["text_config"]["rope_parameters"]},
            Rope(theta=1e6, scaling="proportional"),
        ),
        ({}, Rope(scaling="default")),
    ],
)
def test_rope_is_read_in_old_and_new_keys_and_by_layer_kind(
    tmp_path: Path, keys: Table, rope: Rope
) -> None:
    bare = {key: value for key, value in LLAMA.items() if key != "rope_parameters"}
    assert read_config(tmp_path, bare | keys).rope == rope


def test_gpt_oss_has_attention_sinks(tmp_path: Path) -> None:
    assert read_config(tmp_path, LLAMA | {"model_type": "gpt_oss"}).attention_sinks is True


def test_weights_are_added_up_by_dtype_over_all_shards(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, LLAMA)
    first = {"a": ("F4", (64, 32)), "b": ("F8_E4M3", (64, 2))}
    second = {"c": ("BF16", (10, 10)), "d": ("F4", (2, 2)), "e": ("F32", (1,))}
    write_safetensors(tmp_path / "model-00001-of-00002.safetensors", first)
    write_safetensors(tmp_path / "model-00002-of-00002.safetensors", second)
    sizes = {"BF16": 200, "F32": 4, "F4": 1026, "F8_E4M3": 128}
    assert read_checkpoint(str(tmp_path)).weights == Weights(total_bytes=1358, bytes_by_dtype=sizes)


def test_quantization_is_read_from_modelopts_own_file(tmp_path: Path) -> None:
    extra = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4"}}
    checkpoint = read_checkpoint(str(write_checkpoint(tmp_path, LLAMA, quantization=extra)))
    assert checkpoint.quantization == Quantization(scheme="nvfp4", method="modelopt")
    assert checkpoint.quantized is True


UNIGRAM = with_vocabulary([["a", -1.0], ["b", -2.0]])


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (TOKENIZER, with_vocabulary({"c": 2, "a": 0, "b": 1}) | {"truncation": None}, True),
        (TOKENIZER, with_vocabulary({"b": 0, "a": 1, "c": 2}), False),
        (TOKENIZER, with_vocabulary({"a": 0, "b": 1, "d": 2}), False),
        (TOKENIZER, with_vocabulary({"a": 0, "b": 1, "c": 5}), False),
        (TOKENIZER, TOKENIZER | {"added_tokens": [{"id": 4, "content": "<mask>"}]}, False),
        (TOKENIZER, TOKENIZER | {"added_tokens": []}, False),
        (UNIGRAM, with_vocabulary([["a", -3.0], ["b", -4.0]]), True),
        (UNIGRAM, with_vocabulary([["b", -1.0], ["a", -2.0]]), False),
    ],
)
def test_a_tokenizer_is_its_numbered_tokens_however_it_is_formatted(
    tmp_path: Path, one: Table, other: Table, same: bool
) -> None:
    hashes = [hash_tokenizer(tmp_path / str(at), table) for at, table in enumerate((one, other))]
    assert None not in hashes
    assert (hashes[0] == hashes[1]) is same


def test_a_tokenizer_that_is_absent_or_not_asked_for_is_unknown(tmp_path: Path) -> None:
    assert read_config(tmp_path / "bare", LLAMA).tokenizer_sha256 is None
    folder = write_checkpoint(tmp_path / "whole", LLAMA, tokenizer=TOKENIZER)
    assert read_checkpoint(str(folder), tokenizer=False).tokenizer_sha256 is None


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError) as caught:
        read_checkpoint(str(tmp_path))
    assert caught.value.message == f"{tmp_path} has no config.json"


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "config.json of {} is not JSON: "), ("[]", "config.json of {} is not a JSON object")],
)
def test_a_config_that_is_no_table_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(InvalidInputError) as caught:
        read_checkpoint(str(tmp_path))
    assert caught.value.message.startswith(message.format(tmp_path))
    assert caught.value.hint == "fetch config.json again"


def test_files_that_are_closed_to_this_user_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_checkpoint(tmp_path / "closed", LLAMA, tensors=LLAMA_TENSORS)

    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(InvalidInputError, match=r"config\.json is not readable") as refused:
        read_checkpoint(str(folder))
    assert refused.value.hint == f"chmod -R a+rX {folder}"
