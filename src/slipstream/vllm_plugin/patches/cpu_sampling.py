"""On a CPU, the temperature of a sampled request with drafts is written into a copy, and lost."""

from typing import Any

from slipstream.vllm_plugin.patches.application import Patch


def expand_in_place(module: Any) -> None:
    """Repeat each request's value for its tokens, in the given tensor."""

    def _expand_kernel_impl(
        output: Any,
        input_val: Any,
        cu_num_tokens: Any,
        replace_from: float,
        replace_to: float,
        MAX_NUM_TOKENS: int | None = None,
    ) -> None:
        values = input_val.masked_fill(input_val == replace_from, replace_to)
        counts = cu_num_tokens.diff(prepend=cu_num_tokens.new_zeros(1))
        output.copy_(values.repeat_interleave(counts))

    module._expand_kernel_impl = _expand_kernel_impl


PATCH = Patch(
    name="cpu-sampling",
    since=(0, 32),
    before=(0, 34),
    module="vllm.utils.cpu_triton_utils",
    touches="_expand_kernel_impl",
    source_sha256="b0d7df291932f1c3d0818bcba211d3c9b2a701de070dc888ff659948763e9559",
    symptom="on a CPU, a request with drafts and a temperature is sampled from uninitialised "
    "memory: the text is noise, and nothing reports it",
    proof="tests/engine/test_patches.py::"
    "test_a_cpu_keeps_the_temperature_of_a_drafted_request_only_with_the_patch",
    upstream="https://github.com/vllm-project/vllm/issues/55005",
    drop_when="a release closes #55005",
    change=expand_in_place,
)
