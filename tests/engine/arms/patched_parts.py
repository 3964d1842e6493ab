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


def verify_greedily() -> dict[str, Any]:
    """Let vLLM verify the drafts of three requests; return the tokens and who sampled them.

    Requests are greedy; then one has a penalty, and then one is to have its least tokens.
    """
    from vllm.platforms import current_platform
    from vllm.v1.sample.logits_processor import LogitsProcessors
    from vllm.v1.sample.logits_processor.builtin import MinTokensLogitsProcessor
    from vllm.v1.sample.metadata import SamplingMetadata
    from vllm.v1.sample.rejection_sampler import RejectionSampler
    from vllm.v1.sample.sampler import Sampler
    from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

    class Counted(Sampler):  # type: ignore[misc]
        calls = 0

        def forward(self, *arguments: Any, **named: Any) -> Any:
            Counted.calls += 1
            return super().forward(*arguments, **named)

    current_platform.import_kernels()
    current_platform.register_triton_kernel_overrides()
    verifier = RejectionSampler(Counted())
    logits = torch.randn(7, 1024, generator=torch.Generator().manual_seed(1)).bfloat16()
    logits[0, [3, 700]] = 9.0  # Two that are equally large: the first counts.
    best = logits.float().argmax(-1).tolist()
    # The first request's drafts are right, the second's second one is wrong, the third has none.
    drafted = [best[:2], [best[3], 5], []]
    drafts = SpecDecodeMetadata.make_dummy(drafted, device="cpu")
    drafts.target_logits_indices = torch.tensor([0, 1, 3, 4])
    drafts.bonus_logits_indices = torch.tensor([2, 5, 6])
    waiting = MinTokensLogitsProcessor.__new__(MinTokensLogitsProcessor)
    waiting.min_toks = {0: (9, [], {best[0]}, False)}
    found: dict[str, Any] = {}
    for name, penalties, processors in (
        ("greedy", 1.0, LogitsProcessors()),
        ("penalty", 1.5, LogitsProcessors()),
        ("least", 1.0, LogitsProcessors([waiting])),
    ):
        sampling = SamplingMetadata(
            temperature=None,
            all_greedy=True,
            all_random=False,
            top_p=None,
            top_k=None,
            generators={},
            max_num_logprobs=None,
            no_penalties=penalties == 1.0,
            prompt_token_ids=torch.tensor([[best[0]], [5], [5]]),
            frequency_penalties=torch.zeros(3),
            presence_penalties=torch.zeros(3),
            repetition_penalties=torch.full((3,), penalties),
            output_token_ids=[[1], [1], [1]],
            allowed_token_ids_mask=None,
            bad_words_token_ids={},
            logitsprocs=processors,
            spec_token_ids=drafted,
        )
        Counted.calls = 0
        try:
            answer = verifier(drafts, None, logits.clone(), sampling).sampled_token_ids.tolist()
        except AttributeError:  # Ours is no whole processor: it was asked, which is enough.
            answer = None
        found[name] = {"tokens": answer, "samplings": Counted.calls}
    return found | {"best": best}


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
        "verified": verify_greedily(),
        "turboquant_was_imported": early,
        "complaints": {name: turn_last_position(config) for name, config in drafting.items()},
        "plain_graphs": choose_graphs(plain),
        "drafting_graphs": [choose_graphs(config) for config in drafting.values()],
    }
    Path(job["outcome"]).write_text(json.dumps(outcome))


main()
