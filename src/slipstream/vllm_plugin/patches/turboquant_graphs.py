"""TurboQuant declares graphs of one token per request, although drafts are verified."""

from typing import Any

from slipstream.vllm_plugin.patches.application import Patch


def admit_single_tokens(module: Any) -> None:
    """Lower the level of graph support under speculation, so that vLLM splits the graphs."""
    builder, levels = module.TurboQuantMetadataBuilder, module.AttentionCGSupport

    def get_cudagraph_support(cls: Any, vllm_config: Any, kv_cache_spec: Any) -> Any:
        if vllm_config.speculative_config is not None:
            return levels.UNIFORM_SINGLE_TOKEN_DECODE
        return cls._cudagraph_support

    builder.get_cudagraph_support = classmethod(get_cudagraph_support)


PATCH = Patch(
    name="turboquant-graphs",
    since=(0, 32),
    before=(0, 34),
    module="vllm.v1.attention.backends.turboquant_attn",
    touches="TurboQuantMetadataBuilder",
    source_sha256="bc15af1d5278835c1f5561214caa758b0c46e563d4b619b94ec8736ed5d8ed1b",
    symptom="with a TurboQuant cache and any speculation, whole graphs replay the lengths that "
    "they were recorded with: the text falls into loops, and nothing reports it",
    proof="tests/engine/test_patches.py::"
    "test_turboquant_with_drafts_gets_split_graphs_only_with_the_patch",
    upstream="https://github.com/vllm-project/vllm/pull/53406",
    drop_when="a release holds PR #53406 or #53410; the issue is #53180",
    change=admit_single_tokens,
)
