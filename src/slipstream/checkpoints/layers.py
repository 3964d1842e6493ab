"""The layers of a model by what they keep: keys and values, a window of them, or a state."""

from collections import Counter
from typing import Any

from slipstream.checkpoints.checkpoint import Layers

_KINDS = {
    "full_attention": "full",
    "attention": "full",
    "sliding_attention": "sliding",
    "chunked_attention": "sliding",
    "linear_attention": "recurrent",
    "mamba": "recurrent",
    "mamba2": "recurrent",
}


def parse_layers(config: dict[str, Any]) -> tuple[Layers, ...] | None:
    """Group the layers of a text config by kind; None if the config does not tell."""
    total = config.get("num_hidden_layers")
    if total is None:
        return None
    kinds = Counter(_list_kinds(config, int(total)))
    return tuple(_describe(kind, count, config) for kind, count in kinds.items())


def _list_kinds(config: dict[str, Any], total: int) -> list[str]:
    if config.get("kv_lora_rank"):
        return ["latent"] * total
    if named := config.get("layer_types"):
        own = total - (config.get("num_kv_shared_layers") or 0)
        kinds = [_KINDS.get(kind, "full") for kind in named]
        return [kind if at < own else "shared" for at, kind in enumerate(kinds)]
    if interval := config.get("full_attention_interval"):
        return ["full" if (at + 1) % interval == 0 else "recurrent" for at in range(total)]
    # Qwen configs carry a window that is switched off unless they say otherwise.
    switched = config.get(
        "use_sliding_window", not str(config.get("model_type")).startswith("qwen")
    )
    sliding = config.get("sliding_window") and switched
    return ["sliding" if sliding else "full"] * total


def _describe(kind: str, count: int, config: dict[str, Any]) -> Layers:
    if kind == "shared":
        return Layers(kind="shared", count=count)
    if kind == "recurrent":
        return _describe_recurrent(count, config)
    if kind == "latent":
        width = config["kv_lora_rank"] + config.get("qk_rope_head_dim", 0)
        return Layers(kind="latent", count=count, key_value_heads=1, head_size=width)
    heads = config.get("num_key_value_heads") or config.get("num_attention_heads")
    hidden, parts = config.get("hidden_size"), config.get("num_attention_heads")
    head_size = config.get("head_dim") or (hidden // parts if hidden and parts else None)
    sliding = kind == "sliding"
    return Layers(
        kind="sliding" if sliding else "full",
        count=count,
        key_value_heads=(None if sliding else config.get("num_global_key_value_heads")) or heads,
        head_size=(None if sliding else config.get("global_head_dim")) or head_size,
        window=config.get("sliding_window") if sliding else None,
    )


def _describe_recurrent(count: int, config: dict[str, Any]) -> Layers:
    """Read a gated delta net's state; of other recurrences only the count is known."""
    try:
        key_heads, key_size = config["linear_num_key_heads"], config["linear_key_head_dim"]
        value_heads, value_size = config["linear_num_value_heads"], config["linear_value_head_dim"]
    except KeyError:
        return Layers(kind="recurrent", count=count)
    return Layers(
        kind="recurrent",
        count=count,
        convolution_channels=2 * key_heads * key_size + value_heads * value_size,
        convolution_width=config.get("linear_conv_kernel_dim"),
        state_elements=value_heads * value_size * key_size,
        state_element_bytes=4 if config.get("mamba_ssm_dtype") == "float32" else 2,
    )
