"""On a CPU, `top_k` alone crashes the engine: a step without drafts has no largest k."""

from typing import Any

from slipstream.vllm_plugin.patches.application import Patch


def skip_empty(module: Any) -> None:
    apply = module.apply_top_k_only

    def apply_top_k_only(logits: Any, k: Any) -> Any:
        return apply(logits, k) if k.numel() else logits

    module.apply_top_k_only = apply_top_k_only


PATCH = Patch(
    name="cpu-top-k",
    since=(0, 32),
    before=(0, 34),
    module="vllm.v1.sample.ops.topk_topp_sampler",
    touches="apply_top_k_only",
    source_sha256="4af02a4dad88c663c45133442ce31e091546a9e164eaa8f22244c30dca3220bb",
    symptom="on a CPU with a drafter, one request with top_k and without top_p ends the engine: "
    "its prompt's step has no drafts to sample, and the largest k of none is an error",
    proof="tests/engine/test_patches.py::"
    "test_a_step_without_drafts_has_a_top_k_only_with_the_patch",
    upstream="https://github.com/vllm-project/vllm/blob/v0.32.0/"
    "vllm/v1/sample/ops/topk_topp_sampler.py",
    drop_when="that function takes empty logits; no report of it was found",
    change=skip_empty,
)
