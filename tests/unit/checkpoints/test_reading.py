"""A checkpoint's files in, one `Checkpoint` out."""

import json
from pathlib import Path
from typing import Any

import pytest

from slipstream.checkpoints import Checkpoint, read_checkpoint
from slipstream.checkpoints.checkpoint import (
    ConversationFacts,
    Experts,
    Layers,
    Quantization,
    Rope,
    Weights,
)
from slipstream.checkpoints.reading import parse_quantization
from slipstream.errors import InvalidInputError
from tests.unit.checkpoints.folders import (
    LLAMA,
    LLAMA_TENSORS,
    TOKENIZER,
    Table,
    drafter_tensors,
    write_checkpoint,
    write_safetensors,
)
from tests.untrained_drafter import DrafterShape, drafter_config

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
        conversation=ConversationFacts(),
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
    text = {key: value for key, value in GEMMA["text_config"].items() if key != "vocab_size"}
    beside = read_config(tmp_path, GEMMA | {"text_config": text, "vocab_size": 262208})
    assert beside.vocabulary_size == 262208


def test_a_drafter_is_read_from_either_layout(tmp_path: Path) -> None:
    config = drafter_config(LLAMA, DrafterShape(layers=2))
    folder = write_checkpoint(tmp_path / "native", config, tensors=drafter_tensors(config))
    drafter = read_checkpoint(str(folder))
    assert drafter.draft is not None
    assert (drafter.draft.family, drafter.layer_count) == ("dflash", 2)
    assert (drafter.draft.own_head, drafter.draft.has_vocabulary_map) == (False, False)
    config = {"speculators_model_type": "dflash", "transformer_layer_config": LLAMA}
    drafter = read_config(tmp_path / "other", config)
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


def test_weights_are_added_up_by_dtype_over_all_shards(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, LLAMA)
    first = {"a": ("F4", (64, 32)), "b": ("F8_E4M3", (64, 2))}
    second = {"c": ("BF16", (10, 10)), "d": ("F4", (2, 2)), "e": ("F32", (1,))}
    write_safetensors(tmp_path / "model-00001-of-00002.safetensors", first)
    write_safetensors(tmp_path / "model-00002-of-00002.safetensors", second)
    sizes = {"BF16": 200, "F32": 4, "F4": 1026, "F8_E4M3": 128}
    assert read_checkpoint(str(tmp_path)).weights == Weights(total_bytes=1358, bytes_by_dtype=sizes)


def test_quantization_is_read_from_modelopts_own_file_and_sinks_from_the_type(
    tmp_path: Path,
) -> None:
    extra = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4"}}
    config = LLAMA | {"model_type": "gpt_oss"}
    checkpoint = read_checkpoint(str(write_checkpoint(tmp_path, config, quantization=extra)))
    assert checkpoint.quantization == Quantization(scheme="nvfp4", method="modelopt")
    assert (checkpoint.quantized, checkpoint.attention_sinks) == (True, True)


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


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.json", None, "{} has no config.json"),
        ("config.json", "{", "config.json of {} is not JSON: "),
        ("config.json", "[]", "config.json of {} is not a JSON object"),
        ("generation_config.json", "{", "generation_config.json of {} is not JSON: "),
    ],
)
def test_a_file_that_is_missing_or_no_table_is_refused(
    tmp_path: Path, file: str, content: str | None, message: str
) -> None:
    write_checkpoint(tmp_path, LLAMA)
    (tmp_path / file).write_text(content) if content else (tmp_path / file).unlink()
    with pytest.raises(InvalidInputError) as caught:
        read_checkpoint(str(tmp_path))
    assert caught.value.message.startswith(message.format(tmp_path))
    assert content is None or caught.value.hint == f"fetch {file} again"


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


CONFIG = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 4}


def read(folder: Path, **files: Any) -> ConversationFacts:
    """Read a checkpoint with these JSON files beside its config."""
    write_checkpoint(folder, CONFIG)
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    conversation = read_checkpoint(str(folder)).conversation
    assert conversation is not None
    return conversation


def test_a_file_comes_before_the_processors_template_and_that_before_the_tokenizers(
    tmp_path: Path,
) -> None:
    files = {"chat_template": {"chat_template": "a"}, "tokenizer_config": {"chat_template": "b"}}
    assert read(tmp_path, **files).template == "a"
    (tmp_path / "chat_template.jinja").write_bytes(b"own \xff")
    assert read(tmp_path).template == "own \ufffd"


@pytest.mark.parametrize(
    ("stated", "template"),
    [
        ([{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}], "b"),
        ([{"name": "default", "template": "a"}, {"name": "rag", "template": "b"}], "a"),
        (["default"], None),
        ({"default": "a"}, None),
        (7, None),
    ],
)
def test_of_several_templates_the_one_for_tools_is_read(
    stated: object, template: str | None, tmp_path: Path
) -> None:
    assert read(tmp_path, tokenizer_config={"chat_template": stated}).template == template


def test_sampling_is_what_vllm_would_take(tmp_path: Path) -> None:
    config = {"temperature": 0.6, "top_k": 20, "top_p": None, "min_p": float("nan")}
    config |= {"do_sample": True, "eos_token_id": 2}
    assert read(tmp_path, generation_config=config).sampling == {"temperature": 0.6, "top_k": 20}


@pytest.mark.parametrize("response", ["text", {"fields": ["thinking"]}, {"fields": None}])
def test_a_response_template_of_another_shape_is_none(response: object, tmp_path: Path) -> None:
    assert read(tmp_path, tokenizer_config={"response_template": response}).response_fields == ()


@pytest.mark.parametrize(
    ("stated", "tensors", "layers"),
    [
        ({}, None, 0),
        ({"num_nextn_predict_layers": 1}, None, 1),
        ({"text_config": {"mtp_num_hidden_layers": 1}}, None, 1),
        ({"num_nextn_predict_layers": 1}, ["model.layers.3.w"], 0),
        ({"num_nextn_predict_layers": 1}, ["model.layers.4.w"], 1),
        ({"num_nextn_predict_layers": 2}, ["mtp.layers.0.w"], 2),
    ],
)
def test_mtp_layers_count_if_their_weights_are_there(
    stated: dict[str, Any], tensors: list[str] | None, layers: int, tmp_path: Path
) -> None:
    shapes = {name: ("BF16", (1,)) for name in tensors} if tensors else None
    folder = write_checkpoint(tmp_path, CONFIG | stated, tensors=shapes)
    assert read_checkpoint(str(folder)).predicting_layers == layers


def group(bits: int, kind: str, **more: object) -> Table:
    return {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"weights": {"num_bits": bits, "type": kind, **more}}},
    }


NVFP4_GROUP = group(4, "float", group_size=16) | {"format": "nvfp4-pack-quantized"}
MODELOPT = {"quant_method": "modelopt"}


@pytest.mark.parametrize(
    ("stated", "scheme"),
    [
        (MODELOPT | {"quant_algo": "NVFP4"}, "nvfp4"),
        ({"quant_method": "modelopt_fp4", "quant_algo": "NVFP4"}, "nvfp4"),
        (MODELOPT | {"quant_algo": "W4A16_NVFP4"}, "nvfp4"),
        (MODELOPT | {"quant_algo": "FP8"}, "fp8"),
        (MODELOPT | {"quant_algo": "W4A16_AWQ"}, "int4"),
        (MODELOPT, "other"),
        (NVFP4_GROUP, "nvfp4"),
        (group(4, "float"), "nvfp4"),
        (group(4, "float", group_size=32) | {"format": "mxfp4-pack-quantized"}, "mxfp4"),
        (group(4, "float", group_size=32), "mxfp4"),
        (group(8, "float"), "fp8"),
        (group(8, "int"), "int8"),
        (group(8, "int") | {"quant_method": "compressed_tensors"}, "int8"),
        (group(4, "int"), "int4"),
        (group(2, "int"), "other"),
        ({"quant_method": "compressed-tensors"}, "other"),
        ({"quant_method": "awq", "bits": 4}, "int4"),
        ({"quant_method": "awq"}, "int4"),
        ({"quant_method": "awq_marlin", "bits": 4}, "int4"),
        ({"quant_method": "gptq", "bits": 4}, "int4"),
        ({"quant_method": "gptq", "bits": 8}, "int8"),
        ({"quant_method": "gptq_marlin", "bits": 4}, "int4"),
        ({"quant_method": "auto-round", "bits": 4}, "int4"),
        ({"quant_method": "auto-round", "bits": 8}, "int8"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8"),
        ({"quant_method": "FP8"}, "fp8"),
        ({"quant_method": "fbgemm_fp8"}, "fp8"),
        ({"quant_method": "mxfp4"}, "mxfp4"),
        ({"quant_method": "gpt_oss_mxfp4"}, "mxfp4"),
        ({"quant_method": "exl3", "bits": 4.0}, "other"),
    ],
)
def test_config_json_tells_the_scheme(stated: Table, scheme: str) -> None:
    found = parse_quantization({"quantization_config": stated}, {})
    assert found is not None
    assert (found.scheme, found.method) == (scheme, stated["quant_method"].lower())


NVFP4 = {"quant_algo": "NVFP4"}


@pytest.mark.parametrize(
    ("config", "extra", "found"),
    [
        ({}, {"producer": {}, "quantization": NVFP4}, ("nvfp4", "modelopt")),
        ({}, NVFP4, ("nvfp4", "modelopt")),
        (
            {"quantization_config": {"quant_method": "fp8"}},
            {"quantization": NVFP4},
            ("fp8", "fp8"),
        ),
        ({"compression_config": group(8, "int")}, {}, ("int8", "compressed-tensors")),
        (
            {"text_config": {"quantization_config": group(4, "int")}},
            {},
            ("int4", "compressed-tensors"),
        ),
        ({"quantization_config": {"bits": 4}}, {}, ("other", "unnamed")),
        ({}, {}, None),
        ({"quantization_config": None}, {}, None),
    ],
)
def test_it_is_found_where_it_is_told(
    config: Table, extra: Table, found: tuple[str, str] | None
) -> None:
    read = parse_quantization(config, extra)
    assert (read and (read.scheme, read.method)) == found


@pytest.mark.parametrize(
    ("stated", "kept"),
    [
        ({"kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"}}, "fp8_e4m3"),
        ({"kv_cache_quant_algo": "FP8"}, "fp8_e4m3"),
        ({"kv_cache_scheme": {"dynamic": True, "num_bits": 8, "type": "float"}}, None),
        ({"kv_cache_scheme": None}, None),
    ],
)
def test_the_cache_that_a_checkpoint_has_scales_for(
    stated: dict[str, Any], kept: str | None
) -> None:
    config = {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4", **stated}}
    found = parse_quantization(config, {})
    assert found is not None
    assert found.kv_dtype == kept
