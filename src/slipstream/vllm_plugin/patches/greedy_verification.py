"""Drafts are verified with three copies of all logits where the largest of each row would do."""

from typing import Any

from slipstream.vllm_plugin.patches.application import Patch
from slipstream.vllm_plugin.patches.dflash_survival import find_largest


def compare_largest(module: Any) -> None:
    """Where every request is greedy and nothing changes logits, look for the largest only."""
    sampler, torch = module.RejectionSampler, module.torch
    verify = sampler.forward

    def forward(
        self: Any, metadata: Any, draft_probs: Any, logits: Any, sampling_metadata: Any
    ) -> Any:
        lossy = self.synthetic_mode or getattr(self, "use_fly", False)
        if lossy or not is_plainly_greedy(sampling_metadata):
            return verify(self, metadata, draft_probs, logits, sampling_metadata)
        largest = find_largest(logits)
        last = largest[metadata.bonus_logits_indices].to(torch.int32).unsqueeze(1)
        if not metadata.max_spec_len:
            return module.SamplerOutput(sampled_token_ids=last, logprobs_tensors=None)
        tokens = last.new_full((len(last), metadata.max_spec_len + 1), module.PLACEHOLDER_TOKEN_ID)
        module._rejection_greedy_sample(
            tokens,
            metadata.cu_num_draft_tokens,
            metadata.draft_token_ids,
            largest[metadata.target_logits_indices],
            last,
            None,
            metadata.max_spec_len,
            None,
            None,
        )
        return module.SamplerOutput(sampled_token_ids=tokens, logprobs_tensors=None)

    sampler.forward = forward


def is_plainly_greedy(sampling: Any) -> bool:
    """Return whether the largest logit of a row is its token, and nobody asks for more of them."""
    holder = sampling.thinking_budget_state_holder
    return (
        sampling.all_greedy
        and sampling.max_num_logprobs is None
        and not sampling.logprob_token_ids
        and sampling.no_penalties
        and sampling.allowed_token_ids_mask is None
        and not sampling.bad_words_token_ids
        and (holder is None or not holder.has_tracked_requests())
        and all(map(_is_idle, sampling.logitsprocs.non_argmax_invariant))
    )


def _is_idle(processor: Any) -> bool:
    """Return whether one of vLLM's own processors has nothing to do; of others nobody knows."""
    states = {"LogitBiasLogitsProcessor": "biases", "MinTokensLogitsProcessor": "min_toks"}
    kind = type(processor)
    name = states.get(kind.__name__)
    is_own = kind.__module__.startswith("vllm.v1.sample.logits_processor")
    return is_own and name is not None and not getattr(processor, name)


PATCH = Patch(
    name="greedy-verification",
    since=(0, 32),
    before=(0, 34),
    module="vllm.v1.sample.rejection_sampler",
    touches="RejectionSampler.forward",
    source_sha256=(
        "c82e51bdd5a8dc3ce974766f6ce920280c348f94e3e58de45b2fce5cb32d92d7",
        "5f03339ca632e5180f0b8eb958dac0291e4fc74c0d040e9f661146faba75efe3",
    ),
    symptom="a step of a drafted engine copies the logits of all rows three times, also where "
    "nothing is drafted: of 16 greedy requests on a CPU that is 5 % of the step",
    proof="tests/engine/test_patches.py::"
    "test_greedy_drafts_are_verified_by_the_largest_logits_with_the_patch",
    upstream="https://github.com/vllm-project/vllm/blob/v0.32.0/vllm/v1/sample/rejection_sampler.py",
    drop_when="runner V1 is gone, or its rejection sampler leaves the copies out",
    change=compare_largest,
)
