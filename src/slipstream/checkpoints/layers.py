"""The layers of a model by what they keep: keys and values, a window of them, or a state.

What a config states, and the layouts of model types that are known here, are read without help.
Any other model type is read by its class in transformers, where that is installed (it is wherever
vLLM is): it is imported only then, because it takes seconds, and no code of the model's repository
runs. What neither knows is unknown, never dense.
"""

import re
from collections import Counter
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from slipstream.checkpoints.checkpoint import Layers
from slipstream.checkpoints.recurrent import describe_recurrent

# `both` is a layer with attention and a state side by side.
_KINDS = {
    "full_attention": "full",
    "attention": "full",
    "sliding_attention": "sliding",
    "chunked_attention": "sliding",
    "linear_attention": "recurrent",
    "mamba": "recurrent",
    "mamba2": "recurrent",
    "conv": "recurrent",
    "hybrid": "both",
    "mlp": "none",
    "moe": "none",
}
_LETTERS = {"M": "recurrent", "*": "full", "-": "none", "E": "none"}
# vLLM keeps one compressed vector a token for these (model_arch_config_convertor.py).
_LATENT = {"deepseek_v2", "deepseek_v3", "deepseek_v32", "deepseek_mtp", "glm_moe_dsa", "kimi_k2"}
_LATENT |= {"glm4_moe_lite", "kimi_linear", "longcat_flash", "pangu_ultra_moe"}
# All layers alike: full, or in a window that the config names.
_UNIFORM = {"llama", "mistral", "mixtral", "ministral", "qwen2", "qwen2_moe", "qwen2_vl"}
_UNIFORM |= {"qwen2_5_vl", "qwen2_5_vl_text", "qwen2_vl_text", "qwen3", "qwen3_moe", "mimo"}
_UNIFORM |= {"qwen3_vl_text", "qwen3_vl_moe_text", "glm", "glm4", "glm4_moe", "gemma", "granite"}
_UNIFORM |= {"granitemoe", "phi", "phi3", "phimoe", "olmo", "olmo2", "olmoe", "starcoder2"}
_UNIFORM |= {"stablelm", "internlm2", "internlm3", "ernie4_5", "ernie4_5_moe", "seed_oss"}
_UNIFORM |= {"hunyuan_v1_dense", "hunyuan_v1_moe", "arcee", "cohere", "minimax_m2", "apertus"}
_STATES_ALONE = {"mamba", "mamba2", "falcon_mamba"}
# Every nth layer has full attention, the others a window; the config may name another n.
_FULL_EVERY = {"gemma2": 2, "gemma3_text": 6, "gemma3n_text": 5, "cohere2": 4, "gpt_oss": 2}
_FULL_EVERY |= {"llama4_text": 4}
# What a published config may leave out, as transformers' classes fill it in.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "gemma2": {"head_dim": 256, "sliding_window": 4096},
    "gemma3_text": {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "sliding_window": 4096,
        "vocab_size": 262208,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": True,
    },
    "llama4_text": {"attention_chunk_size": 8192, "head_dim": 128},
    "mistral": {"sliding_window": 4096},
}
_FOREIGN = re.compile(
    "mamba|ssm|linear_|pattern|conv|rwkv|recurrent|hybrid|swa_|compress|other_set"
)


def complete_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a text config with what its model type leaves out."""
    return _DEFAULTS.get(str(config.get("model_type")), {}) | dict(config)


def parse_layers(config: Mapping[str, Any], *, drafter: bool = False) -> tuple[Layers, ...] | None:
    """Group the layers of a text config by kind; None if nothing knows its layout.

    The layers of a drafter are alike unless its config says otherwise, whatever its model type.
    """
    model_type = str(config.get("model_type"))
    config = complete_config(config)
    if (total := config.get("num_hidden_layers")) is None:
        return None
    total = int(total)
    kinds = _list_kinds(config, total, drafter or model_type in _UNIFORM)
    if kinds is None and (expanded := _expand(model_type, config)) is not None:
        config = expanded
        kinds = _list_kinds(config, total, not any(map(_FOREIGN.search, config)))
    if kinds is None:
        return None
    counts = Counter(kinds)
    both = counts.pop("both", 0)
    parts = [_describe(kind, count, config) for kind, count in counts.items()]
    if both:
        parts.append(_describe("full", both, config))
        parts.append(describe_recurrent(both, config).model_copy(update={"beside": True}))
    return tuple(parts)


def _list_kinds(config: Mapping[str, Any], total: int, uniform: bool) -> list[str] | None:
    """Return the kind of each layer, None if the layout is not known here."""
    model_type = config.get("model_type")
    if (stated := _list_stated(config, total)) is not None:
        return _share(stated, total - (config.get("num_kv_shared_layers") or 0))
    if config.get("kv_lora_rank"):
        known = uniform or model_type in _LATENT
        return ["latent"] * total if known and not config.get("compress_ratios") else None
    if model_type in _STATES_ALONE:
        return ["recurrent"] * total
    if model_type == "falcon_h1":
        return ["both"] * total
    if (every := _FULL_EVERY.get(str(model_type))) is not None:
        every = config.get("sliding_window_pattern") or every
        kinds = ["sliding" if (at + 1) % every else "full" for at in range(total)]
        return _share(kinds, total - (config.get("num_kv_shared_layers") or 0))
    return _list_uniform(config, total) if uniform else None


def _list_stated(config: Mapping[str, Any], total: int) -> list[str] | None:
    """Return the kinds that the config names, layer by layer or by a rule."""
    if linear := config.get("linear_attn_config"):
        states = set(linear.get("kda_layers") or ())
        other = "latent" if config.get("kv_lora_rank") else "full"
        return ["recurrent" if at + 1 in states else other for at in range(total)]
    if pattern := config.get("hybrid_override_pattern"):
        return _translate(pattern, _LETTERS)
    if named := config.get("layer_types") or config.get("layers_block_type"):
        return _translate(named[:total], _KINDS)
    if types := config.get("attn_type_list"):
        return _translate(types, {0: "recurrent", 1: "full"})
    if interval := config.get("full_attention_interval"):
        return ["full" if (at + 1) % interval == 0 else "recurrent" for at in range(total)]
    if period := config.get("attn_layer_period"):
        offset = config.get("attn_layer_offset", 0)
        return ["full" if at % period == offset else "recurrent" for at in range(total)]
    for key in ("attn_layer_indices", "full_attn_idxs"):
        if (full := config.get(key)) is not None:
            return ["full" if at in full else "recurrent" for at in range(total)]
    if ropes := config.get("no_rope_layers"):
        return ["sliding" if rope else "full" for rope in ropes]
    return None


def _translate(named: Any, kinds: Mapping[Any, str]) -> list[str] | None:
    """Return our words for a config's; one that is not known makes all unknown."""
    known = [kinds.get(name) for name in named]
    return None if None in known else [kind for kind in known if kind is not None]


def _share(kinds: list[str], own: int) -> list[str]:
    return [kind if at < own else "shared" for at, kind in enumerate(kinds)]


def _list_uniform(config: Mapping[str, Any], total: int) -> list[str]:
    """Return layers of one kind; Qwen's are in a window only from the layer that it names."""
    if not config.get("sliding_window"):
        return ["full"] * total
    of_qwen = str(config.get("model_type")).startswith("qwen")
    if not config.get("use_sliding_window", not of_qwen):
        return ["full"] * total
    first = config.get("max_window_layers") or 0 if of_qwen else 0
    return ["sliding" if at >= first else "full" for at in range(total)]


def _expand(model_type: str, config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the config as transformers' own class for its model type completes it."""
    try:
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING
        from transformers.utils import logging

        logging.set_verbosity_error()
        # The class rewrites the tables inside of what it is given.
        complete = CONFIG_MAPPING[model_type].from_dict(deepcopy(dict(config)))
        return {**complete.to_dict(), "layer_types": getattr(complete, "layer_types", None)}
    # Whatever a class of another version makes of a strange config, it is not our fault.
    except Exception:  # noqa: BLE001
        return None


def _describe(kind: str, count: int, config: Mapping[str, Any]) -> Layers:
    if kind in ("shared", "none"):
        return Layers(kind="shared" if kind == "shared" else "none", count=count)
    if kind == "recurrent":
        return describe_recurrent(count, config)
    if kind == "latent":
        width = config["kv_lora_rank"] + config.get("qk_rope_head_dim", 0)
        index = config.get("index_head_dim")
        return Layers(
            kind="latent", count=count, key_value_heads=1, head_size=width, index_size=index
        )
    heads = config.get("num_key_value_heads") or config.get("num_attention_heads")
    hidden, parts = config.get("hidden_size"), config.get("num_attention_heads")
    stated = config.get("head_dim") or config.get("attention_head_dim")
    head_size = stated or (hidden // parts if hidden and parts else None)
    sliding = kind == "sliding"
    window = config.get("attention_chunk_size") or config.get("sliding_window")
    return Layers(
        kind="sliding" if sliding else "full",
        count=count,
        key_value_heads=(None if sliding else config.get("num_global_key_value_heads")) or heads,
        head_size=(None if sliding else config.get("global_head_dim")) or head_size,
        window=window if sliding else None,
        chunked=sliding and bool(config.get("attention_chunk_size")),
    )
