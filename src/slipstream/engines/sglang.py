"""SGLang as a second renderer of the same plan: its names for vLLM's settings.

`sglang_arguments.json` is made from SGLang's own parser by `scripts/engine sglang`, which
also has that parser read every plan of the catalogue. A value that is none of SGLang's choices is
reported as left out instead of rendered. SGLang counts the anchor among the draft tokens of DFlash,
so its number is one higher than vLLM's.
"""

import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

VERSION = "0.5.23"
COMMAND = ("python", "-m", "sglang.launch_server")
GPU_METHODS = ("dflash", "dspark")
"""Methods that SGLang refuses on a CPU."""

_SAME = ["--revision", "--served-model-name", "--host", "--port", "--nnodes", "--node-rank"]
_SAME += ["--dtype", "--kv-cache-dtype", "--quantization", "--load-format", "--trust-remote-code"]
_SAME += ["--attention-backend", "--tool-call-parser", "--reasoning-parser"]
_NAMES = {flag: flag for flag in _SAME} | {
    "--model": "--model-path",
    "--max-model-len": "--context-length",
    "--max-num-seqs": "--max-running-requests",
    "--max-num-batched-tokens": "--chunked-prefill-size",
    "--gpu-memory-utilization": "--mem-fraction-static",
    "--tensor-parallel-size": "--tp-size",
    "--pipeline-parallel-size": "--pp-size",
    "--data-parallel-size": "--dp-size",
    "--limit-mm-per-prompt": "--limit-mm-data-per-request",
    "--generation-config": "--sampling-defaults",
    "--speculative-config.model": "--speculative-draft-model-path",
    "--speculative-config.revision": "--speculative-draft-model-revision",
    "--speculative-config.attention_backend": "--speculative-draft-attention-backend",
    "--speculative-config.kv_cache_dtype": "--speculative-draft-kv-cache-dtype",
    "--speculative-config.quantization": "--speculative-draft-model-quantization",
}
_SPECULATION = "--speculative-config"
_METHOD, _LENGTH = f"{_SPECULATION}.method", f"{_SPECULATION}.num_speculative_tokens"
_ALGORITHMS = {
    "dflash": "DFLASH",
    "dspark": "DSPARK",
    "eagle": "EAGLE",
    "eagle3": "EAGLE3",
    "mtp": "NEXTN",
    "draft_model": "STANDALONE",
    "ngram": "NGRAM",
    "ngram_gpu": "NGRAM",
}
_NO_GRAPHS = [f"--cuda-graph-backend-{part}" for part in ("decode", "prefill")]
_IMPLIED = {
    "--enable-auto-tool-choice": True,
    "--enable-prefix-caching": True,
    f"{_SPECULATION}.disable_eagle_block_drop": True,
    f"{_SPECULATION}.draft_sample_method": "greedy",
}
_BACKENDS = {"TRITON_ATTN": "triton", "FLASHINFER": "flashinfer"}
_FLASH_BY_MAJOR = {"9": "fa3", "10": "fa4"}
_SAMPLING_DEFAULTS = {"auto": "model", "vllm": "openai"}
_DETECTED = ("--tool-call-parser", "--reasoning-parser")


@cache
def read_arguments() -> dict[str, dict[str, Any]]:
    """Return the row of every argument of SGLang under each of its names."""
    table = json.loads(files("slipstream.engines").joinpath("sglang_arguments.json").read_text())
    return {flag: row for row in table["arguments"] for flag in row["flags"]}


def render_argv(settings: Mapping[str, Any], capability: str | None) -> tuple[list[str], list[str]]:
    """Return SGLang's command, and the settings that it has no counterpart for."""
    words: list[str] = list(COMMAND)
    left_out: list[str] = []
    method = settings.get(_SPECULATION, {}).get("method")
    for flag, value in _flatten(settings):
        unsupported = flag.startswith(_SPECULATION) and method not in _ALGORITHMS
        rendered = None if unsupported else _render(flag, value, method, capability)
        if rendered is None:
            left_out.append(flag)
        else:
            words += rendered
    return words, left_out


def _flatten(settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for flag, value in settings.items():
        if flag == _SPECULATION:
            yield from ((f"{flag}.{key}", part) for key, part in value.items())
        else:
            yield flag, value


def _render(flag: str, value: Any, method: Any, capability: str | None) -> list[str] | None:
    """Return the words for one setting, None if SGLang has no counterpart."""
    if flag == _METHOD:
        return ["--speculative-algorithm", _ALGORITHMS[value]]
    if flag == _LENGTH:
        return _render_length(value, method)
    if flag == "--enforce-eager":
        return [word for name in _NO_GRAPHS for word in (name, "disabled")] if value else []
    if _IMPLIED.get(flag) == value:
        return []
    if flag == "--enable-prefix-caching":
        return ["--disable-radix-cache"]
    if (name := _NAMES.get(flag)) is None:
        return None
    if isinstance(value, bool):
        return [name] if value else []
    text = _translate(flag, value, capability)
    choices = read_arguments()[name].get("choices")
    if choices and text not in choices:
        return [name, "auto"] if flag in _DETECTED else None
    return None if text is None else [name, text]


def _render_length(length: int, method: str) -> list[str]:
    tokens = ["--speculative-num-draft-tokens", str(length + 1)]
    if method == "dspark":
        return ["--speculative-dspark-block-size", str(length)]
    if _ALGORITHMS[method] == "NGRAM":  # A chain, as vLLM drafts, and no tree.
        return [*tokens, "--speculative-ngram-max-bfs-breadth", "1"]
    if method == "dflash":
        return tokens
    return ["--speculative-num-steps", str(length), "--speculative-eagle-topk", "1", *tokens]


def _translate(flag: str, value: Any, capability: str | None) -> str | None:
    if flag.endswith(("attention-backend", "attention_backend")):
        if value == "FLASH_ATTN":
            return _FLASH_BY_MAJOR.get((capability or "").partition(".")[0], "flashinfer")
        return _BACKENDS.get(value, str(value).lower())
    if flag.endswith(("cache-dtype", "cache_dtype")):
        return "fp8_e4m3" if value == "fp8" else str(value)
    if flag == "--limit-mm-per-prompt":
        plain = all(isinstance(count, int) for count in value.values())
        return json.dumps(value) if plain else None
    if flag == "--generation-config":
        return _SAMPLING_DEFAULTS.get(value)
    return str(value[0] if flag == "--served-model-name" else value)
