"""How weights are stored, from the many notations of checkpoints."""

from typing import Any

from slipstream.checkpoints.checkpoint import Quantization, Scheme

_BY_METHOD: dict[str, Scheme] = {"fp8": "fp8", "fbgemm_fp8": "fp8", "deepseek_v4_fp8": "fp8"}
_BY_METHOD |= {"mxfp4": "mxfp4", "gpt_oss_mxfp4": "mxfp4", "nvfp4": "nvfp4"}
_INTEGERS = {"gptq", "gptq_marlin", "auto_gptq", "awq", "awq_marlin", "auto_awq"}
_INTEGERS |= {"auto-round", "auto_round", "autoround"}


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
    return Quantization(scheme=_find_scheme(method, stated), method=method)


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
    names: dict[tuple[Any, Any], Scheme] = {
        (4, "float"): "nvfp4",
        (8, "float"): "fp8",
        (4, "int"): "int4",
        (8, "int"): "int8",
    }
    return names.get((bits, kind), "other")
