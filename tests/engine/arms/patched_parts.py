"""What vLLM's own parts do with short drafters and with TurboQuant, in a process of its own.

The plugin comes as vLLM loads it, when a config is made. Only on a GPU do the faults end the
engine or its text; here the drafter's layer and the choice of graphs are asked directly.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from vllm.config import CompilationMode, CUDAGraphMode, set_current_vllm_config
from vllm.distributed.parallel_state import (
    ensure_model_parallel_initialized,
    init_distributed_environment,
)
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.models.qwen3_dflash import DFlashQwen3DecoderLayer

TURBOQUANT = "vllm.v1.attention.backends.turboquant_attn"


def turn_last_position(config: Any) -> str | None:
    """Let a layer of the drafter turn a query at the last position served; return its complaint."""
    with set_current_vllm_config(config):
        ensure_model_parallel_initialized(1, 1)
        layer = DFlashQwen3DecoderLayer(
            config,
            config=config.speculative_config.draft_model_config.hf_config,
            layer_idx=0,
            cache_config=config.cache_config,
            prefix="drafter.layers.0",
        )
    attention = layer.self_attn
    last = torch.tensor([config.model_config.max_model_len - 1])
    query, key = torch.ones(1, attention.q_size), torch.ones(1, attention.kv_size)
    try:
        attention.rotary_emb.forward_native(last, query, key)
    except IndexError as fault:
        return str(fault)
    return None


def choose_graphs(config: Any) -> str:
    """Let vLLM choose the graphs of a target on a GPU whose every layer is TurboQuant's."""
    from vllm.v1.attention.backends.turboquant_attn import TurboQuantMetadataBuilder

    graphs = config.compilation_config
    graphs.mode, graphs.splitting_ops = CompilationMode.VLLM_COMPILE, None
    graphs.cudagraph_mode = CUDAGraphMode.FULL_AND_PIECEWISE
    graphs.set_splitting_ops_for_v1("naive", 1)
    mode = graphs.resolve_cudagraph_mode_and_sizes(
        TurboQuantMetadataBuilder.get_cudagraph_support(config, None),
        "TurboQuantAttentionBackend",
        1 + config.num_speculative_tokens,
        use_v2_model_runner=True,
    )
    return str(mode.name)


def expand_sampling() -> dict[str, list[float]]:
    """Let vLLM repeat the settings of two requests, of two tokens and of one, over -1.

    The function is what a CPU worker puts in the place of the rejection sampler's kernel.
    """
    from vllm.utils import cpu_triton_utils

    settings = {"temperature": torch.tensor([0.0, 0.7]), "top_k": torch.tensor([5, 9]).int()}
    ends = torch.tensor([2, 3]).int()
    expanded = {name: values.new_full((3,), -1) for name, values in settings.items()}
    for name, values in settings.items():
        cpu_triton_utils._expand_kernel_impl(expanded[name], values, ends, 0, 1)
    return {name: values.tolist() for name, values in expanded.items()}


def limit_nothing() -> list[int] | str:
    """Let vLLM apply top-k to the logits of no token; return their shape, or its complaint."""
    from vllm.v1.sample.ops import topk_topp_sampler

    try:
        kept = topk_topp_sampler.apply_top_k_top_p_pytorch(
            torch.empty(0, 8), torch.empty(0, dtype=torch.int32), None, allow_cpu_sync=True
        )
    except RuntimeError as fault:
        return str(fault)
    return list(kept.shape)


def main() -> None:
    """Make the configs of the job, with each drafter and with none, and ask about them."""
    job = json.load(sys.stdin)
    plain = EngineArgs(**job["engine"]).create_engine_config()
    drafting = {
        name: EngineArgs(**job["engine"], speculative_config=settings).create_engine_config()
        for name, settings in job["drafters"].items()
    }
    early = TURBOQUANT in sys.modules
    store = Path(job["outcome"]).with_suffix(".store")
    init_distributed_environment(1, 0, f"file://{store}", 0, "gloo")
    outcome = {
        "expanded": expand_sampling(),
        "top_k_of_none": limit_nothing(),
        "turboquant_was_imported": early,
        "complaints": {name: turn_last_position(config) for name, config in drafting.items()},
        "plain_graphs": choose_graphs(plain),
        "drafting_graphs": [choose_graphs(config) for config in drafting.values()],
    }
    Path(job["outcome"]).write_text(json.dumps(outcome))


main()
