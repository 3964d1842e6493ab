"""On runner V2, drafts that copy: a repetition in a request's own tokens replaces DFlash's row.

Only `--copy` plans it: it has run on CPU tensors only, and nobody has timed it on a GPU. To measure
it there, save a plan with it and one without (`slipstream plan TARGET --copy --json > copy.json`)
and run `slipstream compare copy.json --against plan.json`: `--workload agent` for what it brings,
`prose` for what it costs.

A row keeps the engine's number of draft tokens. V2 takes a copied token for the point mass that it
is if drafts are greedy, as in all our plans. If they are drawn (`draft_sample_method`), the logits
that are kept of a copied row are made a point mass's; they are not read at temperature 0.

Adaptive verification, if it is on, gets how often copies were right as the confidence of a copied
row. Its own estimator does not see the verdict on one: it predicts from the drafter's logits.
"""

import sys
from inspect import signature
from typing import TYPE_CHECKING, Any

from slipstream.vllm_plugin.patches.application import Patch, hash_source, log

if TYPE_CHECKING:
    import torch

# What is read or replaced of the speculator and of its requests' state, in 0.32 and in 0.33.
_KNOWN = {
    "DFlashSpeculator": (
        "af83e1ae0ad4fdeb6b16e0d8c762297198860ea41c0ed279f29596c7ead3a6c8",
        "cd7d25f2fc8ee3aa88b1eeb538aa4df7c340d74ece96db81dc95e9ef5df74196",
    ),
    "DraftModelSpeculator": (
        "5423fcd808945e29919216f485414492821e484a0010174b8339ab0c0c661e67",
        "73b3aaff0e4bc7340f8fda7f339852bd92cb1e3b808a81923afdae133d662989",
    ),
    "RequestState": (
        "c4d4eb436ca06a4c223760bd887fe5396736cb161e4ddc8cf63250707482a1b2",
        "d0c9e200d0bcf4ca5727b969f35f21379567e4f09199e172555b97fb1efbf950",
    ),
}


def copy_after_drafting(module: Any) -> None:
    """Have a DFlash speculator know its requests' tokens, and copy after each draft."""
    make = module.init_speculator

    def init_speculator(vllm_config: Any, device: Any, req_states: Any) -> Any:
        speculator = make(vllm_config, device, req_states)
        if why := _find_obstacle(speculator, req_states):
            log.warning("slipstream patch %s: no row is copied: %s", PATCH.name, why)
        else:
            RowCopier(speculator, req_states)
        return speculator

    module.init_speculator = init_speculator


def _find_obstacle(speculator: Any, req_states: Any) -> str | None:
    if type(speculator).__name__ != "DFlashSpeculator":
        return f"{type(speculator).__name__} drafts in another way"
    if speculator.draft_watermarker is not None:
        return "a watermark is a rule for how drafts are drawn"
    for one in (*type(speculator).__mro__[:2], type(req_states)):
        known = _KNOWN.get(one.__name__, ())
        if hash_source(sys.modules[one.__module__], one.__name__) not in known:
            return f"{one.__name__} differs from the one it was written for"
    return None


class RowCopier:
    """Lays copies over the rows of one speculator, and keeps which slots have one."""

    def __init__(self, speculator: Any, requests: Any) -> None:
        import torch

        from slipstream.vllm_plugin.steering import row_copies

        self._torch, self._rows = torch, row_copies
        self._speculator, self._requests = speculator, requests
        slots, device = speculator.max_num_reqs, speculator.device
        self._copied = torch.zeros(slots, dtype=torch.bool, device=device)
        self._matched = torch.zeros(slots, dtype=torch.int64, device=device)
        self._rates = row_copies.RowRates(device)
        self._observe = speculator.observe_verification
        self._propose = speculator.propose
        self._form = signature(self._propose)
        self._keep_tokens_on_device()
        speculator.propose = self.propose
        speculator.observe_verification = self.observe_verification

    def _keep_tokens_on_device(self) -> None:
        """Hold the tokens in the GPU's memory, as V2 does for its own n-grams.

        Otherwise they are in the host's, and every step would read them through the bus. It takes 4
        bytes for each request and position that can be served, before vLLM measures what is left.
        """
        requests = self._requests
        requests.all_token_ids = type(requests.all_token_ids)(
            (requests.max_num_reqs, requests.max_model_len),
            dtype=self._torch.int32,
            device=requests.device,
        )

    def propose(self, *arguments: Any, **named: Any) -> "torch.Tensor":
        """Draft, then copy; a run without requests and a step without drafts stay as they are."""
        drafts = self._propose(*arguments, **named)
        given = self._form.bind(*arguments, **named).arguments
        if given.get("dummy_run") or given.get("num_speculative_tokens") == 0:
            return drafts
        with self._torch.inference_mode():
            batch = given["input_batch"]
            self._copy(drafts, batch, given["num_sampled"], given["temperature"])
        return drafts

    def _copy(self, drafts: Any, batch: Any, num_sampled: Any, temperature: Any) -> None:
        rows, requests = self._rows, self._requests
        count, width = drafts.shape
        slots = batch.idx_mapping[:count].to(self._torch.int64)
        longest = int(batch.seq_lens_cpu_upper_bound[:count].max()) + 1
        window = rows.choose_window(count, min(longest, requests.max_model_len))
        lengths = requests.total_len.gpu[slots]
        aligned = rows.align_ends(requests.all_token_ids.gpu, slots, lengths, window)
        copies = rows.find_copies(aligned, width)
        enabled = num_sampled[:count] > 0
        logits = self._speculator.draft_logits
        if logits is None:
            drafts[:], copied = rows.lay_over(
                drafts, copies, enabled, self._torch.ones_like(enabled)
            )
        else:
            enabled &= (copies.tokens < logits.shape[2]).all(1)
            drafts[:], copied = rows.lay_over(drafts, copies, enabled, temperature[slots] == 0)
            rows.mark_point_masses(logits, slots, drafts, copied)
        self._copied[slots], self._matched[slots] = copied, copies.matched
        if self._speculator.acceptance_estimator is not None:
            confidences = self._speculator.draft_token_confidence_probs[:count]
            rates = self._rates.predict(copies.matched, width)
            confidences[:] = self._torch.where(copied[:, None], rates, confidences)

    def observe_verification(self, idx_mapping: Any, num_sampled: Any, num_rejected: Any) -> None:
        """Learn from the verdict on copied rows, and show the estimator that on the others."""
        if self._speculator.acceptance_estimator is None:
            return
        with self._torch.inference_mode():
            slots = idx_mapping.to(self._torch.int64)
            copied, matched = self._copied[slots], self._matched[slots]
            accepted, width = (num_sampled - 1).clamp(min=0), self._speculator.num_speculative_steps
            self._rates.learn(matched, copied, accepted, num_rejected, width)
            drafted = (~copied).to(num_sampled.dtype)
            self._observe(idx_mapping, num_sampled * drafted, num_rejected * drafted)


PATCH = Patch(
    name="dflash-v2-copy",
    since=(0, 32),
    before=(0, 34),
    module="vllm.v1.worker.gpu.spec_decode",
    touches="init_speculator",
    source_sha256=(
        "e86cedd1d4c3e0e261ead87b245cd356bf570c1918c92acdf48fdb66acfbff80",
        "bad8b92d97584fbef965258ab8b5f9182308fe7dca66ec8a49acdb72d5878003",
    ),
    variable="SLIPSTREAM_COPY",
    symptom="DFlash drafts again what a request repeats from its own tokens: files, tool results, "
    "edited code",
    proof="tests/judge/v2_copies.py::copies_take_fewer_steps_to_the_same_text",
    upstream="https://github.com/vllm-project/vllm/blob/v0.33.0/"
    "vllm/v1/worker/gpu/spec_decode/ngram/speculator.py",
    drop_when="V2 drafts by n-grams and by a model at the same time",
    change=copy_after_drafting,
)
