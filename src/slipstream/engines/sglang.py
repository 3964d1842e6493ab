"""SGLang as a second renderer of the same plan: its names for vLLM's settings.

Its draft count includes the anchor, so it is one higher than vLLM's.
"""

from collections.abc import Iterable

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
    "--kv-cache-dtype": "--kv-cache-dtype",
    "--quantization": "--quantization",
    "--attention-backend": "--attention-backend",
    "--speculative-config.model": "--speculative-draft-model-path",
    "--speculative-config.revision": "--speculative-draft-model-revision",
    "--speculative-config.attention_backend": "--speculative-draft-attention-backend",
    "--speculative-config.num_speculative_tokens": "--speculative-num-draft-tokens",
    "--speculative-config.method": "--speculative-algorithm",
    "--enforce-eager": "--disable-cuda-graph",
    "--no-enable-prefix-caching": "--disable-radix-cache",
}
_BACKENDS = {"TRITON_ATTN": "triton", "FLASHINFER": "flashinfer"}
_FLASH_BY_MAJOR = {"9": "fa3", "10": "fa4"}
_METHODS = {"dflash": "DFLASH", "dflash2": "DFLASH", "dspark": "DSPARK"}


def render_argv(
    settings: Iterable[tuple[str, str | None]], capability: str | None
) -> tuple[list[str], list[str]]:
    """Write SGLang's command, and the settings that it has no name for."""
    arguments: list[str] = list(COMMAND)
    left_out: list[str] = []
    for flag, value in settings:
        if (name := _NAMES.get(flag)) is None:
            left_out.append(flag)
        else:
            arguments += [name] if value is None else [name, _translate(flag, value, capability)]
    return arguments, left_out


def _translate(flag: str, value: str, capability: str | None) -> str:
    if flag.endswith("num_speculative_tokens"):
        return str(int(value) + 1)
    if flag.endswith("method"):
        return _METHODS.get(value, value.upper())
    if flag.endswith(("attention-backend", "attention_backend")):
        if value == "FLASH_ATTN":
            return _FLASH_BY_MAJOR.get((capability or "").partition(".")[0], "flashinfer")
        return _BACKENDS.get(value, value.lower())
    return "fp8_e4m3" if flag == "--kv-cache-dtype" and value == "fp8" else value
