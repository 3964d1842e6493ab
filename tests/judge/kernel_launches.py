"""Launches the Triton kernels of our plans through one build of vLLM, on CPU tensors.

The shapes and types of tensors are those of the plans. With what else a kernel is compiled (tiles,
warps, stages, constants), vLLM's code chooses for the GPU that it sees.
"""

from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from vllm.config import CUDAGraphMode
from vllm.config.attention import AttentionConfig
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends import triton_attn, turboquant_attn
from vllm.v1.kv_cache_interface import KVQuantMode
from vllm.v1.sample import rejection_sampler
from vllm.v1.spec_decode.dflash import DFlashProposer
from vllm.v1.worker.gpu.input_batch import InputBatch, InputBuffers
from vllm.v1.worker.gpu.sample.gumbel import gumbel_sample
from vllm.v1.worker.gpu.spec_decode import rejection_sampler_utils
from vllm.v1.worker.gpu.spec_decode.dflash.speculator import prepare_dflash_inputs

CPU = torch.device("cpu")
BLOCK, CONTEXT, BATCHED_TOKENS = 16, 40_960, 8192
SEQUENCES, REQUESTS, DRAFTED, VOCABULARY = 8, 2, 15, 151_936
VERIFIED = DRAFTED + 1
# The first capability whose tensor cores read fp8, for which plans choose an fp8 cache.
FP8_SINCE = 89


class Shape(NamedTuple):
    """The attention of a layer."""

    heads: int
    kv_heads: int
    size: int
    window: int | None = None
    causal: bool = True
    sinks: bool = False
    kv_dtype: str = "auto"


# What plans run on TRITON_ATTN (tests/judge/table.json), or could with --attention-backend.
SHAPES = {
    "gpt-oss": Shape(64, 8, 64, sinks=True),
    "gpt-oss, window": Shape(64, 8, 64, window=128, sinks=True),
    "gpt-oss, fp8": Shape(64, 8, 64, sinks=True, kv_dtype="fp8"),
    "gpt-oss, drafter": Shape(64, 8, 64, causal=False),
    "Qwen3-8B": Shape(32, 8, 128),
    "Qwen3-8B, fp8": Shape(32, 8, 128, kv_dtype="fp8"),
    "Qwen3-8B, drafter": Shape(32, 8, 128, causal=False),
    "Qwen3.5-27B": Shape(24, 4, 256),
    "Qwen3.5-27B, drafter, window": Shape(32, 8, 128, window=4096),
    "Gemma 4 31B": Shape(32, 4, 512),
    "Gemma 4 31B, fp8": Shape(32, 4, 512, kv_dtype="fp8"),
    "Gemma 4 31B, window": Shape(32, 16, 256, window=1024),
    "Gemma 4 31B, window, fp8": Shape(32, 16, 256, window=1024, kv_dtype="fp8"),
    "Gemma 4 31B, drafter": Shape(64, 8, 128, causal=False),
    "Gemma 4 31B, drafter, window": Shape(64, 8, 128, window=2048),
    "window, not causal": Shape(32, 8, 128, window=2048, causal=False),
}
PACKED = ("turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc")
PACKED_SHAPES = {"Qwen3-8B": Shape(32, 8, 128), "Qwen3.5-27B": Shape(24, 4, 256)}


def make_batch(lengths: list[int], cached: int, *, causal: bool = True) -> CommonAttentionMetadata:
    """Describe a batch whose requests have so many new tokens each, after some in the cache."""
    starts = torch.tensor([0, *lengths]).cumsum(0).int()
    ends = torch.tensor([cached + length for length in lengths], dtype=torch.int32)
    return CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=ends,
        seq_lens_cpu_upper_bound=ends,
        num_reqs=len(lengths),
        num_actual_tokens=sum(lengths),
        max_query_len=max(lengths),
        max_seq_len=int(ends.max()),
        block_table_tensor=torch.zeros(len(lengths), CONTEXT // BLOCK, dtype=torch.int32),
        slot_mapping=torch.zeros(sum(lengths), dtype=torch.int64),
        causal=causal,
    )


def make_cache(shape: Shape, content: int, dtype: torch.dtype) -> torch.Tensor:
    """Return two blocks as vLLM shows them to a backend: heads before the tokens of a block."""
    return torch.zeros(2, BLOCK, shape.kv_heads, content, dtype=dtype).transpose(1, 2)


def make_config(shape: Shape) -> Any:
    """Return what builders and backends read of the engine's config."""
    return SimpleNamespace(
        model_config=SimpleNamespace(
            get_num_attention_heads=lambda parallel: shape.heads,
            get_num_kv_heads=lambda parallel: shape.kv_heads,
            get_head_size=lambda: shape.size,
            rswa_window=None,
            max_model_len=CONTEXT,
        ),
        parallel_config=None,
        attention_config=AttentionConfig(),
        compilation_config=SimpleNamespace(
            cudagraph_mode=CUDAGraphMode.NONE, static_forward_context={}
        ),
        scheduler_config=SimpleNamespace(max_num_seqs=SEQUENCES),
        speculative_config=SimpleNamespace(num_speculative_tokens=DRAFTED, parallel_drafting=True),
    )


def attend(shape: Shape) -> None:
    """Store keys and values, verify drafts, and decode if the layer is a target's."""
    fp8 = shape.kv_dtype == "fp8"
    impl = triton_attn.TritonAttentionImpl(
        *(shape.heads, shape.size, shape.size**-0.5, shape.kv_heads, None),
        *(shape.window, shape.kv_dtype),
        sinks=torch.zeros(shape.heads, dtype=torch.bfloat16) if shape.sinks else None,
    )
    spec = SimpleNamespace(
        block_size=BLOCK, kv_quant_mode=KVQuantMode.FP8_PER_TENSOR if fp8 else KVQuantMode.NONE
    )
    builder = triton_attn.TritonAttentionMetadataBuilder(spec, [], make_config(shape), CPU)
    one = torch.ones(())
    layer = SimpleNamespace(_q_scale=one, _k_scale=one, _v_scale=one)
    cache = make_cache(shape, 2 * shape.size, torch.uint8 if fp8 else torch.bfloat16)
    for length in (VERIFIED, 8, 1) if shape.causal else (VERIFIED,):
        batch = make_batch([length] * REQUESTS, 32, causal=shape.causal)
        tokens = batch.num_actual_tokens
        queries = torch.zeros(tokens, shape.heads, shape.size, dtype=torch.bfloat16)
        keys, values = torch.zeros(2, tokens, shape.kv_heads, shape.size, dtype=torch.bfloat16)
        impl.do_kv_cache_update(layer, keys, values, cache, batch.slot_mapping)
        # An attention layer quantizes the queries, too, where the cache is fp8.
        asked = queries.to(torch.float8_e4m3fn) if fp8 else queries
        impl.forward(layer, asked, keys, values, cache, builder.build(0, batch), queries)


def attend_packed(kv_dtype: str, shape: Shape) -> None:
    """Store, decode, verify drafts, and read a long continuation of a prompt."""
    config = make_config(shape)
    turboquant_attn.get_current_vllm_config = lambda: config
    # Prompts would run on FlashAttention, which is compiled into the build.
    turboquant_attn.get_flash_attn_version = lambda **_: None
    turboquant_attn._HAS_FLASH_ATTN = False
    # Asks for an AMD GPU with an import that ends a CPU build.
    turboquant_attn.is_flydsl_available = lambda: False
    scratch = SimpleNamespace(
        get_simultaneous=lambda *parts: [torch.empty(size, dtype=dtype) for size, dtype in parts]
    )
    turboquant_attn.is_workspace_manager_initialized = lambda: True
    turboquant_attn.current_workspace_manager = lambda: scratch
    impl = turboquant_attn.TurboQuantAttentionImpl(
        *(shape.heads, shape.size, shape.size**-0.5, shape.kv_heads), kv_cache_dtype=kv_dtype
    )
    builder = object.__new__(turboquant_attn.TurboQuantMetadataBuilder)
    builder.reorder_batch_threshold = 1
    layer = SimpleNamespace()
    cache = make_cache(shape, impl.tq_config.slot_size_aligned, torch.uint8)
    for length in (1, VERIFIED, turboquant_attn._CONTINUATION_DECODE_THRESHOLD + 1):
        batch = make_batch([length] * REQUESTS, 32)
        tokens = batch.num_actual_tokens
        queries = torch.zeros(tokens, shape.heads, shape.size, dtype=torch.bfloat16)
        keys, values = torch.zeros(2, tokens, shape.kv_heads, shape.size, dtype=torch.bfloat16)
        impl.do_kv_cache_update(layer, keys, values, cache, batch.slot_mapping)
        impl.forward(layer, queries, keys, values, cache, builder.build(0, batch))


def verify_on_v1(*, greedy: bool, probabilities: bool = False) -> None:
    """Verify drafts on runner V1."""
    count = REQUESTS * DRAFTED
    sampling = SimpleNamespace(
        all_greedy=greedy,
        all_random=False,
        temperature=torch.ones(REQUESTS),
        generators={},
        top_k=None,
        top_p=None,
    )
    drafts = torch.zeros(count, dtype=torch.int32)
    ends = DRAFTED * torch.arange(1, REQUESTS + 1, dtype=torch.int32)
    logits = torch.zeros(count, VOCABULARY)
    rejection_sampler.rejection_sample(
        *(drafts, [DRAFTED] * REQUESTS, DRAFTED, ends),
        torch.zeros_like(logits) if probabilities else None,
        rejection_sampler.apply_sampling_constraints(logits, ends, sampling),
        torch.zeros(REQUESTS, 1, dtype=torch.int64),
        sampling,
    )


def verify_on_v2(*, dtype: torch.dtype, drawn: bool, block: bool = False) -> None:
    """Verify drafts on runner V2; `drawn` drafts come with their logits."""
    count = REQUESTS * VERIFIED
    slots = torch.arange(REQUESTS)
    drafts = torch.zeros(SEQUENCES, DRAFTED, VOCABULARY, dtype=torch.bfloat16)
    rejection_sampler_utils.rejection_sample(
        torch.zeros(count, VOCABULARY, dtype=dtype),
        drafts if drawn else None,
        torch.zeros(count, dtype=torch.int32),
        VERIFIED * torch.arange(REQUESTS + 1, dtype=torch.int32),
        torch.zeros(count, dtype=torch.int64),
        slots,
        slots.repeat_interleave(VERIFIED),
        torch.arange(VERIFIED, dtype=torch.int32).repeat(REQUESTS),
        torch.ones(SEQUENCES),
        torch.zeros(SEQUENCES, dtype=torch.int64),
        DRAFTED,
        use_block_verification=block,
    )


def draw_drafts() -> None:
    """Draw a DFlash drafter's tokens on runner V2, and keep their logits."""
    count = REQUESTS * DRAFTED
    gumbel_sample(
        torch.zeros(count, VOCABULARY, dtype=torch.bfloat16),
        torch.arange(REQUESTS).repeat_interleave(DRAFTED),
        torch.ones(SEQUENCES),
        torch.zeros(SEQUENCES, dtype=torch.int64),
        torch.zeros(count, dtype=torch.int64),
        apply_temperature=True,
        is_drafting=True,
        logits_cache=torch.zeros(SEQUENCES, DRAFTED, VOCABULARY, dtype=torch.bfloat16),
        logits_cache_col=torch.arange(DRAFTED, dtype=torch.int32).repeat(REQUESTS),
    )


def expand_on_v1() -> None:
    """Expand a DFlash drafter's inputs on runner V1, after a prompt and after drafts."""
    tokens = torch.zeros(BATCHED_TOKENS, dtype=torch.int64)
    proposer = SimpleNamespace(
        num_speculative_tokens=DRAFTED,
        device=CPU,
        input_ids=tokens.int(),
        positions=tokens[: SEQUENCES * VERIFIED],
        _context_positions_buffer=tokens,
        _context_slot_mapping_buffer=tokens,
        _slot_mapping_buffer=tokens[: SEQUENCES * VERIFIED],
        parallel_drafting_token_id=VOCABULARY - 1,
        block_size=BLOCK,
        arange=torch.arange(BATCHED_TOKENS, dtype=torch.int32),
        token_arange_np=torch.arange(BATCHED_TOKENS, dtype=torch.int32).numpy(),
        dflash_causal=False,
    )
    rejected = torch.zeros(REQUESTS, dtype=torch.int32)
    for length, counts in ((1000, None), (VERIFIED, rejected)):
        batch = make_batch([length] * REQUESTS, 32)
        context = tokens[: batch.num_actual_tokens]
        DFlashProposer.set_inputs_first_pass(
            proposer, context.int(), rejected, context, context, None, batch, counts
        )


def expand_on_v2() -> None:
    """Expand a DFlash drafter's inputs on runner V2, after a prompt and after drafts."""
    buffers = InputBuffers(SEQUENCES, BATCHED_TOKENS, CPU)
    kept = torch.zeros(SEQUENCES, dtype=torch.int64)
    sampled = torch.zeros(SEQUENCES * DRAFTED, dtype=torch.int64)
    slots = torch.zeros(BATCHED_TOKENS, dtype=torch.int64)
    counts = torch.zeros(REQUESTS, dtype=torch.int32)
    for length in (1000, VERIFIED):
        prepare_dflash_inputs(
            buffers,
            *(slots, slots, slots, sampled, sampled, sampled, torch.ones(SEQUENCES), kept),
            InputBatch.make_dummy(REQUESTS, length * REQUESTS, buffers),
            *(counts, counts, kept[:, None], kept[None].int(), torch.ones(SEQUENCES), kept),
            torch.zeros(SEQUENCES, CONTEXT // BLOCK, dtype=torch.int32),
            *(BLOCK, 0, 1, 1, VOCABULARY - 1, VERIFIED, DRAFTED, SEQUENCES),
            *(BATCHED_TOKENS, CONTEXT),
        )


CASES: dict[str, Callable[[], None]] = {
    **{f"attention, {name}": partial(attend, shape) for name, shape in SHAPES.items()},
    **{
        f"{kv_dtype}, {name}": partial(attend_packed, kv_dtype, shape)
        for kv_dtype in PACKED
        for name, shape in PACKED_SHAPES.items()
    },
    "rejection on V1, greedy": partial(verify_on_v1, greedy=True),
    "rejection on V1, sampled": partial(verify_on_v1, greedy=False),
    "rejection on V1, drawn drafts": partial(verify_on_v1, greedy=False, probabilities=True),
    "rejection on V2, greedy": partial(verify_on_v2, dtype=torch.bfloat16, drawn=False),
    "rejection on V2, sampled": partial(verify_on_v2, dtype=torch.float32, drawn=False),
    "rejection on V2, drawn drafts": partial(verify_on_v2, dtype=torch.float32, drawn=True),
    "rejection on V2, blocks": partial(verify_on_v2, dtype=torch.float32, drawn=True, block=True),
    "drawn drafts on V2": draw_drafts,
    "DFlash inputs on V1": expand_on_v1,
    "DFlash inputs on V2": expand_on_v2,
}
# Faults that the tests plant: they are launched if named, and no plan does it.
PLANTED: dict[str, Callable[[], None]] = {
    "planted: a head of 1024": partial(attend, Shape(2, 1, 1024, causal=False)),
    "planted: fp8 on any GPU": partial(attend, SHAPES["Qwen3-8B, fp8"]),
}


def list_cases(architecture: int) -> Iterator[str]:
    """Yield the cases that a plan for an architecture may run."""
    for case in CASES:
        if architecture >= FP8_SINCE or not case.endswith(", fp8"):
            yield case


def make(case: str) -> None:
    """Make the launches of a case."""
    (CASES | PLANTED)[case]()
