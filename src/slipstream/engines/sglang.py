"""SGLang as a second renderer of the same plan: its names for vLLM's settings.

Its draft count includes the anchor, so it is one higher than vLLM's.
"""

from collections.abc import Mapping
from typing import Any

COMMAND = ("python", "-m", "sglang.launch_server")

_NAMES = {
    "--model": "--model-path",
    "--revision": "--revision",
    "--served-model-name": "--served-model-name",
    "--host": "--host",
    "--port": "--port",
    "--max-model-len": "--context-length",
    "--max-num-seqs": "--max-running-requests",
    "--max-num-batched-tokens": "--chunked-prefill-size",
    "--gpu-memory-utilization": "--mem-fraction-static",
    "--tensor-parallel-size": "--tp-size",
    "--dtype": "--dtype",
    "--kv-cache-dtype": "--kv-cache-dtype",
    "--quantization": "--quantization",
    "--attention-backend": "--attention-backend",
    "--enforce-eager": "--disable-cuda-graph",
}
_OF_DRAFTS = {
    "method": "--speculative-algorithm",
    "model": "--speculative-draft-model-path",
    "num_speculative_tokens": "--speculative-num-draft-tokens",
    "revision": "--speculative-draft-model-revision",
    "attention_backend": "--speculative-draft-attention-backend",
}
_SPECULATION = "--speculative-config"
_PREFIX_CACHING = "--enable-prefix-caching"
_BACKENDS = {"TRITON_ATTN": "triton", "FLASHINFER": "flashinfer"}
_FLASH_BY_MAJOR = {"9": "fa3", "10": "fa4"}
_METHODS = {"dflash": "DFLASH", "dflash2": "DFLASH", "dspark": "DSPARK"}


def render_argv(settings: Mapping[str, Any], capability: str | None) -> tuple[list[str], list[str]]:
    """Write SGLang's command, and the settings that it has no name for."""
    words: list[str] = list(COMMAND)
    left_out: list[str] = []
    names = {flag: (_NAMES.get(flag), value) for flag, value in settings.items()}
    names |= {
        f"{_SPECULATION}.{key}": (_OF_DRAFTS.get(key), value)
        for key, value in settings.get(_SPECULATION, {}).items()
    }
    names.pop(_SPECULATION, None)
    if names.pop(_PREFIX_CACHING, (None, True))[1] is False:
        words.append("--disable-radix-cache")
    for flag, (name, value) in names.items():
        if name is None:
            left_out.append(flag)
        elif value is True:
            words.append(name)
        elif value is not False:
            words += [name, _translate(flag, value, capability)]
    return words, left_out


def _translate(flag: str, value: Any, capability: str | None) -> str:
    if flag.endswith("num_speculative_tokens"):
        return str(value + 1)
    if flag.endswith("method"):
        return _METHODS.get(value, str(value).upper())
    if flag.endswith(("attention-backend", "attention_backend")):
        if value == "FLASH_ATTN":
            return _FLASH_BY_MAJOR.get((capability or "").partition(".")[0], "flashinfer")
        return _BACKENDS.get(value, str(value).lower())
    if flag == "--served-model-name":
        return str(value[0])
    return "fp8_e4m3" if flag == "--kv-cache-dtype" and value == "fp8" else str(value)
