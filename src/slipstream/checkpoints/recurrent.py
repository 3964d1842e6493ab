"""What a recurrent layer keeps of a sequence: a convolution's inputs and a state.

The shapes follow vLLM's own (model_executor/layers/mamba/mamba_utils.py). Families spell the same
figures in different keys.
"""

from collections.abc import Mapping
from typing import Any

from slipstream.checkpoints.checkpoint import Layers

_WIDE = ("float32", "float")


def describe_recurrent(count: int, config: Mapping[str, Any]) -> Layers:
    """Read the state of a family that is known; of another, only the count."""
    for read in (_read_delta_net, _read_kimi, _read_mamba2, _read_mamba, _read_convolution):
        if (state := read(config)) is not None:
            return Layers.model_validate({"kind": "recurrent", "count": count, **state})
    return Layers(kind="recurrent", count=count)


def _pick(config: Mapping[str, Any], *keys: str) -> int | None:
    """Return the first of the keys that holds a number."""
    return next((config[key] for key in keys if isinstance(config.get(key), int)), None)


def _find_element_bytes(config: Mapping[str, Any], usual: str) -> int:
    stated = config.get("mamba_ssm_cache_dtype") or config.get("mamba_ssm_dtype") or usual
    return 4 if stated in _WIDE else 2


def _read_delta_net(config: Mapping[str, Any]) -> dict[str, int | None] | None:
    """Qwen3-Next, Qwen3.5, Olmo-Hybrid."""
    keys, size = _pick(config, "linear_num_key_heads"), _pick(config, "linear_key_head_dim")
    values = _pick(config, "linear_num_value_heads")
    value_size = _pick(config, "linear_value_head_dim")
    if keys is None or size is None or values is None or value_size is None:
        return None
    return {
        "convolution_channels": 2 * keys * size + values * value_size,
        "convolution_width": _pick(config, "linear_conv_kernel_dim"),
        "state_elements": values * value_size * size,
        "state_element_bytes": _find_element_bytes(config, "auto"),
    }


def _read_kimi(config: Mapping[str, Any]) -> dict[str, int | None] | None:
    """Kimi-Linear's delta attention, whose state vLLM keeps in float32."""
    linear = config.get("linear_attn_config") or {}
    heads, size = _pick(linear, "num_heads"), _pick(linear, "head_dim")
    if heads is None or size is None:
        return None
    return {
        "convolution_channels": 3 * heads * size,
        "convolution_width": _pick(linear, "short_conv_kernel_size"),
        "state_elements": heads * size * size,
        "state_element_bytes": 4,
    }


def _read_mamba2(config: Mapping[str, Any]) -> dict[str, int | None] | None:
    """Nemotron-H, Granite 4, Falcon-H1, Bamba, Zamba2, Mamba2."""
    heads = _pick(config, "mamba_num_heads", "mamba_n_heads", "n_mamba_heads")
    state = _pick(config, "ssm_state_size", "mamba_d_state", "state_size")
    groups = _pick(config, "mamba_n_groups", "mamba_ngroups", "n_groups")
    hidden, expand = _pick(config, "hidden_size"), _pick(config, "mamba_expand", "expand")
    if heads is None and config.get("model_type") == "mamba2":
        heads = _pick(config, "num_heads")
    if heads is None or state is None:
        return None
    groups = groups or 1
    size = _pick(config, "mamba_head_dim", "mamba_d_head", "mamba_headdim", "head_dim")
    inner = _pick(config, "mamba_d_ssm") or (expand * hidden if expand and hidden else None)
    if config.get("model_type") == "nemotron_h" or inner is None:
        inner = heads * size if size else None
    if inner is None:
        return None
    # Only Nemotron-H's class asks for float32 if the config is silent (models/config.py).
    usual = "float32" if config.get("model_type") == "nemotron_h" else "auto"
    return {
        "convolution_channels": inner + 2 * groups * state,
        "convolution_width": _pick(config, "conv_kernel", "mamba_d_conv"),
        "groups": groups,
        "group_channels": 2 * state,
        "state_elements": inner * state,
        "state_element_bytes": _find_element_bytes(config, usual),
    }


def _read_mamba(config: Mapping[str, Any]) -> dict[str, int | None] | None:
    """Jamba, Mamba, Falcon-Mamba."""
    state, hidden = _pick(config, "mamba_d_state", "state_size"), _pick(config, "hidden_size")
    expand = _pick(config, "mamba_expand", "expand")
    if state is None or hidden is None or expand is None:
        return None
    return {
        "convolution_channels": expand * hidden,
        "convolution_width": _pick(config, "mamba_d_conv", "conv_kernel"),
        "state_elements": expand * hidden * state,
        "state_element_bytes": _find_element_bytes(config, "auto"),
    }


def _read_convolution(config: Mapping[str, Any]) -> dict[str, int | None] | None:
    """LFM2's short convolutions, which have no other state."""
    if (width := _pick(config, "conv_L_cache")) is None:
        return None
    return {
        "convolution_channels": _pick(config, "conv_dim", "hidden_size"),
        "convolution_width": width,
        "state_elements": 0,
        "state_element_bytes": 2,
    }
