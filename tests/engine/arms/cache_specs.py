"""vLLM's own account of the cache for configurations without weights.

Every layer gets the spec that its class in vLLM would give it; sizes come from those specs, and
from the grouping that the engine would make of them. Needs no device and no tokenizer.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.layers.quantization.turboquant.config import TQ_PRESETS, TurboQuantConfig
from vllm.model_executor.models import ModelRegistry
from vllm.platforms import current_platform
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend
from vllm.v1.core.kv_cache_utils import (
    _max_memory_usage_bytes_from_groups,
    get_kv_cache_configs,
)
from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec, SlidingWindowSpec

POOL_BYTES = 64 << 30


def make_specs(config: Any) -> dict[str, Any]:
    """Return the spec of every layer of the target by name."""
    return {
        f"layers.{at}": make_spec(config, kind)
        for at, kind in enumerate(config.model_config.hf_text_config.layer_types)
    }


def make_spec(config: Any, kind: str) -> Any:
    """Return one layer's spec."""
    model, cache = config.model_config, config.cache_config
    if kind == "linear_attention":
        layer_class, _ = ModelRegistry.resolve_model_cls(model.architecture, model_config=model)
        return MambaSpec(
            block_size=cache.mamba_block_size or model.max_model_len,
            shapes=layer_class.get_mamba_state_shape_from_config(config),
            dtypes=layer_class.get_mamba_state_dtype_from_config(config),
            page_size_padded=cache.mamba_page_size_padded,
            mamba_cache_mode=cache.mamba_cache_mode,
            num_speculative_blocks=config.num_speculative_tokens,
        )
    shape = {
        "block_size": cache.block_size,
        "num_kv_heads": model.get_num_kv_heads(config.parallel_config),
        "head_size": model.get_head_size(),
        "dtype": torch.bfloat16,
    }
    if kind == "sliding_attention":
        return SlidingWindowSpec(**shape, sliding_window=model.get_sliding_window())
    return FullAttentionSpec(**shape)


def describe(case: dict[str, Any]) -> dict[str, Any]:
    """Add up what a token and a sequence of full length keep, by layers and as grouped."""
    config = EngineArgs(**case["engine"], skip_tokenizer_init=True).create_engine_config()
    config.scheduler_config.async_scheduling = case["async_scheduling"]
    config.cache_config.kv_cache_layout = "LBNHC"
    block_tokens = config.cache_config.block_size
    plain = make_specs(config).values()
    if config.model_config.is_hybrid:
        # The engine does this once its layers exist: state and attention share one page size.
        current_platform._align_hybrid_block_size(config, CPUAttentionBackend)
    specs = make_specs(config)
    (pool,) = get_kv_cache_configs(config, [specs], [POOL_BYTES])
    return {
        "block_tokens": block_tokens,
        "plain_layers": len(TurboQuantConfig.get_boundary_skip_layers(config.model_config)),
        "token_bytes": sum(
            spec.page_size_bytes // spec.block_size
            for spec in plain
            if not isinstance(spec, MambaSpec)
        ),
        "state_bytes": sum(
            spec.max_memory_usage_bytes(config) for spec in plain if isinstance(spec, MambaSpec)
        ),
        "sequence_bytes": sum(spec.max_memory_usage_bytes(config) for spec in specs.values()),
        "grouped_bytes": _max_memory_usage_bytes_from_groups(config, pool.kv_cache_groups),
    }


def main() -> None:
    """Describe every case, and TurboQuant's slots for every head size."""
    job = json.load(sys.stdin)
    slots = {
        variant: {
            size: TurboQuantConfig.from_cache_dtype(variant, size).slot_size_aligned
            for size in job["head_sizes"]
        }
        for variant in TQ_PRESETS
    }
    cases = {name: describe(case) for name, case in job["cases"].items()}
    Path(job["outcome"]).write_text(json.dumps({"cases": cases, "slots": slots}))


main()
