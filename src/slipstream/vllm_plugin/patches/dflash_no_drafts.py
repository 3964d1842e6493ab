"""A step without drafts runs the drafter although DFlash needs only its context."""

from typing import Any

from slipstream.vllm_plugin.patches.application import Patch


def store_context_only(module: Any) -> None:
    """Where no token is to be drafted, store the context's keys and values and return."""
    proposer, torch = module.DFlashProposer, module.torch
    propose_drafts = proposer.propose

    def propose(
        self: Any,
        num_speculative_tokens: int,
        target_token_ids: Any,
        target_positions: Any,
        target_hidden_states: Any,
        next_token_ids: Any,
        token_indices_to_sample: Any,
        common_attn_metadata: Any,
        sampling_metadata: Any,
        mm_embed_inputs: Any = None,
        num_rejected_tokens_gpu: Any = None,
        slot_mappings: Any = None,
    ) -> Any:
        if num_speculative_tokens:
            return propose_drafts(
                self,
                num_speculative_tokens,
                target_token_ids,
                target_positions,
                target_hidden_states,
                next_token_ids,
                token_indices_to_sample,
                common_attn_metadata,
                sampling_metadata,
                mm_embed_inputs,
                num_rejected_tokens_gpu,
                slot_mappings,
            )
        self.num_speculative_tokens, self._last_draft_probs = 0, None
        self.set_inputs_first_pass(
            target_token_ids=target_token_ids,
            next_token_ids=next_token_ids,
            target_positions=target_positions,
            target_hidden_states=self.model.combine_hidden_states(target_hidden_states),
            token_indices_to_sample=token_indices_to_sample,
            cad=common_attn_metadata,
            num_rejected_tokens_gpu=num_rejected_tokens_gpu,
        )
        count = self._dflash_num_context
        self.model.precompute_and_store_context_kv(
            self._dflash_hidden_states,
            self._context_positions_buffer[:count],
            self._context_slot_mapping_buffer[:count],
        )
        batch = common_attn_metadata.batch_size()
        return torch.empty(batch, 0, device=self.device, dtype=torch.int64)

    proposer.propose = propose


PATCH = Patch(
    name="dflash-no-drafts",
    since=(0, 32),
    before=(0, 33),
    module="vllm.v1.spec_decode.dflash",
    touches="DFlashProposer",
    source_sha256="eec86cda56a80e8be20ece54397c95ca61cd418a19d8be421f3d56a60d79fec3",
    symptom="a step for which no draft is wanted pays for the drafter's whole pass, so drafting "
    "less under load saves less than it could",
    proof="tests/engine/test_steering.py::test_a_step_without_drafts_leaves_the_drafters_pass_out",
    upstream="https://github.com/vllm-project/vllm/blob/v0.32.0/"
    "vllm/v1/spec_decode/llm_base_proposer.py",
    drop_when="vLLM returns before the drafter's pass for K = 0; no report of it was found",
    change=store_context_only,
)
