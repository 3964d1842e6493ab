"""A step without drafts runs the drafter although DFlash needs only its context."""

from inspect import signature
from typing import Any

from slipstream.vllm_plugin.patches.application import Patch

_FIRST_INPUTS = (
    *("target_token_ids", "target_positions", "next_token_ids"),
    *("token_indices_to_sample", "num_rejected_tokens_gpu"),
)


def store_context_only(module: Any) -> None:
    """Where no token is to be drafted, store the context's keys and values and return."""
    proposer, torch = module.DFlashProposer, module.torch
    propose_drafts = proposer.propose
    form = signature(propose_drafts)

    def propose(self: Any, num_speculative_tokens: int, *arguments: Any, **named: Any) -> Any:
        if num_speculative_tokens:
            return propose_drafts(self, num_speculative_tokens, *arguments, **named)
        given = form.bind(self, 0, *arguments, **named).arguments
        metadata, states = given["common_attn_metadata"], given["target_hidden_states"]
        self.num_speculative_tokens, self._last_draft_probs = 0, None
        self.set_inputs_first_pass(
            **{name: given.get(name) for name in _FIRST_INPUTS},
            target_hidden_states=self.model.combine_hidden_states(states),
            cad=metadata,
        )
        count = self._dflash_num_context
        self.model.precompute_and_store_context_kv(
            self._dflash_hidden_states,
            self._context_positions_buffer[:count],
            self._context_slot_mapping_buffer[:count],
        )
        batch = metadata.batch_size()
        return torch.empty(batch, 0, device=self.device, dtype=torch.int64)

    proposer.propose = propose


PATCH = Patch(
    name="dflash-no-drafts",
    since=(0, 32),
    before=(0, 34),
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
