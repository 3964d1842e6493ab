"""A drafter knows where it will be rejected, and vLLM's runner V1 drops what it knows."""

from typing import Any

from slipstream.vllm_plugin.patches.application import Patch

_LEAST_CHUNK, _MOST_CHUNK = 64, 512


def send_probabilities(module: Any) -> None:
    """Send each drafted token's probability along with it, as `chances` of the draft."""
    runner, proposer = module.GPUModelRunner, module.DFlashProposer
    draft, take = proposer._greedy_sample, runner.take_draft_token_ids

    def _greedy_sample(self: Any, hidden_states: Any) -> Any:
        self.slipstream_chances = None
        if self.use_local_argmax_reduction or self.use_heterogeneous_vocab:
            return draft(self, hidden_states)
        logits = self.model.compute_logits(hidden_states).float()
        tokens = find_largest(logits)
        odds = logits.sub_(logits.gather(1, tokens[:, None])).exp_().sum(dim=-1)
        self.slipstream_chances = odds.reciprocal_()
        return tokens

    def take_draft_token_ids(self: Any) -> Any:
        drafts = take(self)
        chances = getattr(getattr(self, "drafter", None), "slipstream_chances", None)
        if drafts is not None and chances is not None and drafts.req_ids:
            drafts.chances = chances.view(len(drafts.req_ids), -1).tolist()
            self.drafter.slipstream_chances = None
        return drafts

    proposer._greedy_sample = _greedy_sample
    runner.take_draft_token_ids = take_draft_token_ids


def find_largest(logits: Any) -> Any:
    """Return argmax, which on a CPU takes many times as long as finding the chunk it lies in."""
    rows, columns = logits.shape
    chunk = min(columns & -columns, _MOST_CHUNK)
    if chunk < _LEAST_CHUNK or not logits.is_contiguous():
        return logits.argmax(dim=-1)
    chunks = logits.view(rows, -1, chunk)
    place = chunks.amax(dim=-1).float().argmax(dim=-1)
    found = chunks[place.new_tensor(range(rows)), place]
    return place * chunk + found.float().argmax(dim=-1)


PATCH = Patch(
    name="dflash-survival",
    since=(0, 32),
    before=(0, 34),
    module="vllm.v1.worker.gpu_model_runner",
    touches="GPUModelRunner.take_draft_token_ids",
    source_sha256="21e3697c8c5f9a817a05cb97c90c8c535eaf6b50ac15f532139457d4530096d8",
    symptom="every drafted token is verified, also those that the drafter itself finds unlikely: "
    "from eight requests on that costs as much as the others gain",
    proof="tests/engine/test_steering.py::test_a_draft_comes_with_its_chances_only_with_the_patch",
    upstream="https://github.com/vllm-project/vllm/blob/v0.32.0/vllm/v1/worker/gpu_model_runner.py",
    drop_when="runner V1 is gone; V2's adaptive verification does the same for other methods",
    change=send_probabilities,
)
