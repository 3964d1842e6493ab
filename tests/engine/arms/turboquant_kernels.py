"""vLLM's own TurboQuant kernels on a CPU, in Triton's interpreter: store, unpack and attend.

vLLM's CPU build has the kernels but no Triton, so they get it here, before they are imported. The
cases come as tensors in a file, and what the kernels made of them goes to another.
"""

import json
import math
import sys
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
import vllm.triton_utils
from vllm.model_executor.layers.quantization.turboquant.centroids import get_centroids
from vllm.model_executor.layers.quantization.turboquant.config import TurboQuantConfig

vllm.triton_utils.triton, vllm.triton_utils.tl = triton, tl

from vllm.v1.attention.ops.triton_turboquant_decode import (  # noqa: E402
    _tq_full_dequant_kv,
    triton_turboquant_decode_attention,
)
from vllm.v1.attention.ops.triton_turboquant_store import triton_turboquant_store  # noqa: E402


def run(case: dict[str, Any]) -> dict[str, Any]:
    """Store a case's tokens, read the first sequence back, and attend with one query for each."""
    size, heads = case["keys"].shape[-1], case["keys"].shape[1]
    config = TurboQuantConfig.from_cache_dtype(case["kv_dtype"], size)
    levels = get_centroids(size, config.centroid_bits)
    sizes = {
        "mse_bits": config.key_mse_bits,
        "key_packed_size": config.key_packed_size,
        "value_quant_bits": config.effective_value_quant_bits,
        "key_fp8": config.key_fp8,
    }
    shape = (case["blocks"], case["block"], heads, config.slot_size_aligned)
    cache = torch.full(shape, case["blank"], dtype=torch.uint8)
    between = (levels[1:] + levels[:-1]) / 2
    rotation = case["rotation"]
    triton_turboquant_store(
        case["keys"], case["values"], cache, case["slots"], rotation, between, **sizes
    )
    attended = triton_turboquant_decode_attention(
        case["queries"], cache, case["table"], case["lengths"], rotation, levels,
        1 / math.sqrt(size), norm_correction=config.norm_correction, PiT=rotation,
        max_num_kv_splits=case["splits"], **sizes,
    )  # fmt: skip
    tokens = int(case["lengths"][0])
    keys, values = (torch.zeros(1, heads, tokens, size, dtype=torch.float16) for _ in range(2))
    _tq_full_dequant_kv[tokens, heads](
        cache, case["table"], levels, keys, values, *keys.stride()[:3], *values.stride()[:3],
        *cache.stride()[:3], case["table"].stride(0), HEAD_DIM=size, BLOCK_SIZE=case["block"],
        NUM_KV_HEADS=heads, MSE_BYTES=math.ceil(size * config.key_mse_bits / 8),
        KPS=config.key_packed_size, VQB=config.effective_value_quant_bits,
        VAL_DATA_BYTES=math.ceil(size * config.effective_value_quant_bits / 8),
        MSE_BITS=config.key_mse_bits, KEY_FP8=int(config.key_fp8), BLOCK_D=size,
        NORM_CORRECTION=int(config.norm_correction),
    )  # fmt: skip
    return {
        "levels": levels,
        "cache": cache,
        "attended": attended,
        "keys": keys[0].transpose(0, 1),
        "values": values[0].transpose(0, 1),
    }


def main() -> None:
    job = json.load(sys.stdin)
    cases = torch.load(job["cases"])
    torch.save({name: run(case) for name, case in cases.items()}, job["results"])
    Path(job["outcome"]).write_text("{}")


main()
