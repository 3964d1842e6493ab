"""The reader: a checkpoint's files in, one `Checkpoint` out."""

import hashlib
import json
from collections import Counter
from math import isfinite
from typing import Any, Literal

from pydantic import ValidationError

from slipstream.checkpoints.checkpoint import (
    THINKING,
    Checkpoint,
    ConversationFacts,
    Experts,
    Quantization,
    Rope,
    Scheme,
    Weights,
)
from slipstream.checkpoints.draft_part import parse_draft_part
from slipstream.checkpoints.files import CheckpointFiles, Tensor, open_files
from slipstream.checkpoints.layers import complete_config, parse_layers
from slipstream.checkpoints.parameters import count_parameters
from slipstream.errors import InvalidInputError
from slipstream.records import describe_faults

_PREDICTING_LAYERS = ("mtp_num_hidden_layers", "num_nextn_predict_layers")
_POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
# The positions of these are stated as they are after scaling (vLLM's config/model.py).
_SCALED_IN_CONFIG = ("su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling")
# vLLM takes these of generation_config.json for requests that do not name them.
_SAMPLING = ["temperature", "top_p", "top_k", "min_p", "repetition_penalty"]
_SAMPLING += ["presence_penalty", "frequency_penalty", "max_new_tokens"]
_BY_METHOD: dict[str, Scheme] = {"fp8": "fp8", "fbgemm_fp8": "fp8", "deepseek_v4_fp8": "fp8"}
_BY_METHOD |= {"mxfp4": "mxfp4", "gpt_oss_mxfp4": "mxfp4", "nvfp4": "nvfp4"}
_INTEGERS = {"gptq", "gptq_marlin", "auto_gptq", "awq", "awq_marlin", "auto_awq"}
_INTEGERS |= {"auto-round", "auto_round", "autoround"}
_BY_BITS: dict[tuple[Any, Any], Scheme] = {
    (4, "float"): "nvfp4",
    (8, "float"): "fp8",
    (4, "int"): "int4",
    (8, "int"): "int8",
}


def read_checkpoint(
    name: str, revision: str | None = None, *, tokenizer: bool = True
) -> Checkpoint:
    """Read a checkpoint by its folder or its name on the hub.

    The tokenizer is a large file, and few drafters have one to compare it with: it can be
    left out.
    """
    files = open_files(name, revision)
    try:
        return parse_checkpoint(files, tokenizer=tokenizer)
    except PermissionError as fault:
        raise InvalidInputError(
            f"{fault.filename} is not readable by this user", hint=f"chmod -R a+rX {name}"
        ) from fault
    except (ValueError, TypeError, KeyError, AttributeError) as fault:
        faulty = describe_faults(fault) if isinstance(fault, ValidationError) else (str(fault),)
        raise InvalidInputError(
            f"the files of {name} do not describe a model",
            details=faulty,
            hint=f"fix the config.json of {name}, or download it again",
        ) from fault


def parse_checkpoint(files: CheckpointFiles, *, tokenizer: bool) -> Checkpoint:
    config = _read_json(files, "config.json")
    if config is None:
        raise InvalidInputError(
            f"{files.name} has no config.json",
            hint="name a folder or repository that transformers can load",
        )
    text = complete_config(
        config.get("text_config") or config.get("transformer_layer_config") or config
    )
    tensors = files.read_tensors()
    names = None if tensors is None else frozenset(tensor.name for tensor in tensors)
    quantization = parse_quantization(config, _read_json(files, "hf_quant_config.json") or {})
    draft = parse_draft_part(config, names)
    layers = parse_layers(text, drafter=draft is not None)
    return Checkpoint(
        name=files.name,
        revision=files.revision,
        source=files.origin,
        complete=True,
        architecture=next(iter(config.get("architectures") or ()), None),
        model_type=config.get("model_type"),
        hidden_size=text.get("hidden_size"),
        attention_heads=text.get("num_attention_heads"),
        layers=layers,
        experts=_parse_experts(text),
        vocabulary_size=text.get("vocab_size") or config.get("vocab_size"),
        context=_find_context(text),
        rope=_parse_rope(text),
        attention_sinks=text.get("model_type") == "gpt_oss",
        quantization=quantization,
        quantized=quantization is not None,
        dtype=config.get("dtype") or config.get("torch_dtype") or text.get("dtype"),
        weights=_add_up(tensors),
        parameters=count_parameters(text, layers) if tensors is None else None,
        modalities=tuple(
            kind for kind in ("vision", "audio") if config.get(f"{kind}_config") is not None
        ),
        predicting_layers=_count_predicting_layers(config, text, names),
        conversation=_parse_conversation(files),
        tokenizer_sha256=_hash_tokenizer(files) if tokenizer else None,
        base_models=files.read_base_models(),
        licence=files.licence,
        gated=files.gated,
        draft=draft,
    )


def _read_json(files: CheckpointFiles, file: str) -> dict[str, Any] | None:
    if (content := files.read(file)) is None:
        return None
    called, hint = f"{file} of {files.name}", f"fetch {file} again"
    try:
        table = json.loads(content)
    except ValueError as fault:
        raise InvalidInputError(f"{called} is not JSON: {fault}", hint=hint) from fault
    if not isinstance(table, dict):
        raise InvalidInputError(f"{called} is not a JSON object", hint=hint)
    return table


def _parse_experts(config: dict[str, Any]) -> Experts | None:
    for key in ("num_experts", "num_local_experts", "n_routed_experts"):
        if config.get(key):
            active = config.get("num_experts_per_tok") or config.get("top_k_experts")
            return Experts(total=config[key], active=active)
    return None


def _count_predicting_layers(
    config: dict[str, Any], text: dict[str, Any], tensors: frozenset[str] | None
) -> int:
    """Count the MTP layers that the config states; a quantised build may have left them out."""
    stated = [text.get(key) or config.get(key) for key in _PREDICTING_LAYERS]
    count = next((one for one in stated if isinstance(one, int)), 0)
    if not count or tensors is None:
        return count
    layers = text.get("num_hidden_layers")
    kept = any("mtp." in name or f"layers.{layers}." in name for name in tensors)
    return count if kept else 0


def _parse_rope(config: dict[str, Any]) -> Rope:
    """Read rope_parameters (transformers 5), by layer kind or not, or the two older keys."""
    stated = config.get("rope_parameters") or {}
    stated = stated.get("full_attention", stated)
    older = config.get("rope_scaling") or {}
    kind = stated.get("rope_type") or older.get("rope_type") or older.get("type") or "default"
    return Rope(
        theta=stated.get("rope_theta") or config.get("rope_theta"),
        scaling=kind,
        factor=stated.get("factor") or older.get("factor"),
    )


def _find_context(text: dict[str, Any]) -> int | None:
    """Return the positions as vLLM derives them: scaled, unless the config states them scaled."""
    stated = text.get("model_max_length") or min(
        (text[key] for key in _POSITIONS if text.get(key)), default=None
    )
    rope = _parse_rope(text)
    if (
        stated is None
        or rope.scaling in _SCALED_IN_CONFIG
        or "gemma3" in str(text.get("model_type"))
    ):
        return stated
    return int(stated * (rope.factor or 1))


def _add_up(tensors: tuple[Tensor, ...] | None) -> Weights | None:
    if tensors is None:
        return None
    sizes: Counter[str] = Counter()
    for tensor in tensors:
        sizes[tensor.dtype] += tensor.size_bytes
    return Weights(total_bytes=sizes.total(), bytes_by_dtype=dict(sorted(sizes.items())))


def _hash_tokenizer(files: CheckpointFiles) -> str | None:
    """Hash what decides a token's number: vocabulary and added tokens, however formatted."""
    table = _read_json(files, "tokenizer.json")
    if table is None:
        return None
    vocabulary = (table.get("model") or {}).get("vocab") or {}
    if not isinstance(vocabulary, dict):
        vocabulary = {str(entry[0]): number for number, entry in enumerate(vocabulary)}
    added = {entry["content"]: entry["id"] for entry in table.get("added_tokens") or ()}
    numbered = sorted((number, word) for word, number in (vocabulary | added).items())
    content = "\0".join(f"{number} {word}" for number, word in numbered)
    return hashlib.sha256(content.encode()).hexdigest()


def _parse_conversation(files: CheckpointFiles) -> ConversationFacts:
    """Read template, response template and sampling defaults."""
    tokenizer = _read_json(files, "tokenizer_config.json") or {}
    response, added = tokenizer.get("response_template"), tokenizer.get("added_tokens_decoder")
    fields = response.get("fields") if isinstance(response, dict) else None
    tokens = added.values() if isinstance(added, dict) else None
    config = _read_json(files, "generation_config.json") or {}
    return ConversationFacts(
        template=_read_template(files, tokenizer),
        response_fields=tuple(fields) if isinstance(fields, dict) else (),
        has_thinking_token=None
        if tokens is None
        else any(isinstance(one, dict) and one.get("content") == THINKING for one in tokens),
        sampling={
            name: value
            for name in _SAMPLING
            if isinstance(value := config.get(name), int | float)
            and not isinstance(value, bool)
            and isfinite(value)
        },
    )


def _read_template(files: CheckpointFiles, tokenizer: dict[str, Any]) -> str | None:
    """Read the chat template where transformers looks for it; of named ones, that for tools."""
    file = files.read("chat_template.jinja")
    if file is not None:
        return file.decode(errors="replace")
    processor = _read_json(files, "chat_template.json") or {}
    for stated in (processor.get("chat_template"), tokenizer.get("chat_template")):
        if isinstance(stated, list):
            named = {
                one.get("name"): one.get("template") for one in stated if isinstance(one, dict)
            }
            stated = named.get("tool_use") or named.get("default")
        if isinstance(stated, str) and stated:
            return stated
    return None


def parse_quantization(config: dict[str, Any], extra: dict[str, Any]) -> Quantization | None:
    """Read `quantization_config` of config.json, or modelopt's hf_quant_config.json."""
    text = config.get("text_config") or {}
    stated = next(
        (
            part[key]
            for part in (config, text)
            for key in ("quantization_config", "compression_config")
            if part.get(key)
        ),
        None,
    )
    if stated is None and extra:
        stated = {"quant_method": "modelopt", **(extra.get("quantization") or extra)}
    if stated is None:
        return None
    method = str(stated.get("quant_method") or "unnamed").lower()
    scheme, kv_dtype = _find_scheme(method, stated), _find_kv_dtype(stated)
    return Quantization(scheme=scheme, method=method, kv_dtype=kv_dtype)


def _find_kv_dtype(stated: dict[str, Any]) -> Literal["fp8_e4m3"] | None:
    """Read which cache the checkpoint has scales for (vllm/utils/torch_utils.py)."""
    kept = stated.get("kv_cache_scheme") or stated.get("kv_cache_quant_algo")
    if isinstance(kept, dict):
        static = kept.get("dynamic") is False and kept.get("type") == "float"
        return "fp8_e4m3" if static and kept.get("num_bits") == 8 else None
    return "fp8_e4m3" if isinstance(kept, str) and kept.lower() == "fp8" else None


def _find_scheme(method: str, stated: dict[str, Any]) -> Scheme:
    if method.startswith("modelopt"):
        return _from_algorithm(str(stated.get("quant_algo") or ""))
    if method in ("compressed-tensors", "compressed_tensors"):
        return _from_groups(stated)
    if method in _INTEGERS:
        return "int8" if stated.get("bits") == 8 else "int4"
    return _BY_METHOD.get(method, "other")


def _from_algorithm(algorithm: str) -> Scheme:
    upper = algorithm.upper()
    if "NVFP4" in upper or "W4A4" in upper:
        return "nvfp4"
    if "FP8" in upper:
        return "fp8"
    return "int4" if "W4" in upper or "INT4" in upper else "other"


def _from_groups(stated: dict[str, Any]) -> Scheme:
    """Read the first group of compressed-tensors: float or int, and how many bits."""
    layout = str(stated.get("format") or "")
    if layout.startswith(("nvfp4", "mxfp4")):
        return "nvfp4" if layout.startswith("nvfp4") else "mxfp4"
    groups = stated.get("config_groups") or {}
    weights = next((group.get("weights") or {} for group in groups.values()), {})
    bits, kind = weights.get("num_bits"), weights.get("type")
    if (bits, kind, weights.get("group_size")) == (4, "float", 32):
        return "mxfp4"
    return _BY_BITS.get((bits, kind), "other")
