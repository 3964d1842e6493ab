"""vLLM's Triton kernels on a CPU, in Triton's interpreter: attention and rejection sampling.

The job names a file of cases by kernel and name, and one for what they return. vLLM's CPU build
has the kernels but no Triton, so they get it here, before they are imported. A script of this
folder must not be called triton_kernels: vLLM imports that name if it is there.
"""

import json
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import triton
import triton.language as tl
import vllm.triton_utils
from triton.runtime.interpreter import InterpretedFunction

vllm.triton_utils.triton, vllm.triton_utils.tl = triton, tl
# The interpreter lacks log1p.
vllm.triton_utils.tldevice = SimpleNamespace(log1p=lambda x: tl.log(1 + x))

from vllm.v1.attention.ops.triton_unified_attention import unified_attention  # noqa: E402
from vllm.v1.sample import rejection_sampler  # noqa: E402
from vllm.v1.worker.gpu.spec_decode import rejection_sampler_utils  # noqa: E402


def attend(case: dict[str, Any]) -> torch.Tensor:
    """Attend from the queries of a batch to its paged keys and values."""
    queries, keys, starts = (case[name] for name in ("queries", "keys", "starts"))
    found = torch.full_like(queries, torch.nan)
    scales = torch.ones(len(starts) - 1, keys.shape[2])
    window = case["window"] - 1 if case["window"] else -1
    segments = {}
    if case["split"]:
        heads, size = queries.shape[1:]
        segments = {
            "seq_threshold_3D": len(queries),
            "num_par_softmax_segments": 4,
            "softmax_segm_output": torch.full((len(queries), heads, 4, size), torch.nan),
            "softmax_segm_max": torch.full((len(queries), heads, 4), torch.nan),
            "softmax_segm_expsum": torch.full((len(queries), heads, 4), torch.nan),
        }
    unified_attention(
        q=queries,
        k=keys,
        v=case["values"],
        out=found,
        cu_seqlens_q=starts,
        max_seqlen_q=int(starts.diff().max()),
        seqused_k=case["lengths"],
        max_seqlen_k=int(case["lengths"].max()),
        softmax_scale=queries.shape[-1] ** -0.5,
        causal=case["causal"],
        window_size=(window, -1),
        block_table=case["table"],
        softcap=0.0,
        q_descale=None,
        k_descale=scales,
        v_descale=scales,
        **segments,
    )
    return found


def verify_on_v1(case: dict[str, Any]) -> torch.Tensor:
    """Verify rows of drafts; return the tokens of each row, then -1."""
    torch.manual_seed(case["seed"])
    drafts, logits = case["drafts"], case["logits"]
    rows, width = drafts.shape
    greedy = case["temperature"] == 0
    sampling = SimpleNamespace(
        all_greedy=greedy,
        all_random=not greedy,
        temperature=torch.full((rows,), case["temperature"]),
        generators={},
    )
    probabilities = case["draft_logits"]
    return rejection_sampler.rejection_sample(
        *(drafts.flatten().int(), [width] * rows, width),
        width * torch.arange(1, rows + 1, dtype=torch.int32),
        None if probabilities is None else probabilities.softmax(-1).flatten(0, 1),
        logits[:, :-1].flatten(0, 1).contiguous(),
        logits[:, -1].argmax(-1, keepdim=True),
        sampling,
    ).long()


def verify_on_v2(case: dict[str, Any]) -> torch.Tensor:
    """Do the same on runner V2, where the request states of the rows are in another order."""
    drafts, logits = case["drafts"], case["logits"]
    rows, width = drafts.shape
    slots = torch.arange(rows).flip(0)
    tokens = torch.cat([torch.zeros(rows, 1, dtype=drafts.dtype), drafts], 1)
    kept = case["draft_logits"]
    seeds = torch.Generator().manual_seed(case["seed"])
    sampled, counts = rejection_sampler_utils.rejection_sample(
        logits.flatten(0, 1),
        None if kept is None else kept.flip(0).contiguous(),
        tokens.flatten().int(),
        (width + 1) * torch.arange(rows + 1, dtype=torch.int32),
        torch.arange(width + 1).repeat(rows),
        slots,
        slots.repeat_interleave(width + 1),
        torch.arange(width + 1, dtype=torch.int32).repeat(rows),
        torch.full((rows,), case["temperature"]),
        torch.randint(0, 1 << 40, (rows,), generator=seeds),
        width,
    )
    return sampled.masked_fill(torch.arange(width + 1) >= counts[:, None], -1)


class Narrowed:
    """A kernel with tiles of the vocabulary's width: the interpreter computes all of a tile."""

    tile = 16

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def __getitem__(self, grid: Any) -> Any:
        return partial(self.launch, grid)

    def launch(self, grid: Any, *arguments: Any, **named: Any) -> Any:
        return self.kernel[grid](*arguments, **named | {"BLOCK_SIZE": Narrowed.tile})

    def __getattr__(self, name: str) -> Any:
        return getattr(self.kernel, name)


def spare_time() -> None:
    """Save most of the interpreter's time, for the same results."""
    verification, recovery = rejection_sampler_utils, rejection_sampler._sample_recovered_tokens
    recovery.kernel = Narrowed(recovery.kernel)
    for name in ("_compute_local_logits_stats_kernel", "_resample_kernel"):
        setattr(verification, name, Narrowed(getattr(verification, name)))
    call = InterpretedFunction.__call__

    def call_patched(function: Any, *arguments: Any, **named: Any) -> Any:
        """Call a function without patching the language again, which its kernel did."""
        if function.fn.__globals__.get("tl") is tl:
            return function.rewrite()(*arguments, **named)
        return call(function, *arguments, **named)

    InterpretedFunction.__call__ = call_patched


def run(kernel: str, case: dict[str, Any]) -> torch.Tensor:
    if "logits" in case:
        Narrowed.tile = max(16, triton.next_power_of_2(case["logits"].shape[-1]))
    return KERNELS[kernel](case)


KERNELS = {"attention": attend, "V1": verify_on_v1, "V2": verify_on_v2}


def main() -> None:
    job = json.load(sys.stdin)
    cases = torch.load(job["cases"])
    spare_time()
    found = {(kernel, name): run(kernel, case) for (kernel, name), case in cases.items()}
    torch.save(found, job["results"])
    Path(job["outcome"]).write_text(json.dumps({"version": vllm.__version__}))


main()
