"""What the drafter's patches change: passes without drafts, and the chances of drafted tokens."""

import json
import sys
from pathlib import Path
from typing import Any

from vllm import LLM, SamplingParams
from vllm.model_executor.models.qwen3_dflash import DFlashQwen3ForCausalLM
from vllm.v1.spec_decode.dflash import DFlashProposer
from vllm.v1.worker.gpu_model_runner import GPUModelRunner


def count_passes(engine: Any, prompts: list[list[int]], tokens: int) -> dict[str, Any]:
    """Answer all prompts at once; return the drafter's passes and the texts."""
    passes, run = 0, DFlashQwen3ForCausalLM.forward

    def counted(self: Any, *arguments: Any, **named: Any) -> Any:
        nonlocal passes
        passes += 1
        return run(self, *arguments, **named)

    DFlashQwen3ForCausalLM.forward = counted
    try:
        asked = [{"prompt_token_ids": prompt} for prompt in prompts]
        sampling = SamplingParams(temperature=0, max_tokens=tokens)
        answers = engine.generate(asked, sampling, use_tqdm=False)
    finally:
        DFlashQwen3ForCausalLM.forward = run
    return {"passes": passes, "texts": [list(answer.outputs[0].token_ids) for answer in answers]}


def list_chances(engine: Any, prompts: list[list[int]]) -> list[Any]:
    """Answer both prompts; return what comes with the drafts of each step."""
    found, take = [], GPUModelRunner.take_draft_token_ids

    def watched(self: Any) -> Any:
        drafts = take(self)
        found.append(getattr(drafts, "chances", None))
        return drafts

    GPUModelRunner.take_draft_token_ids = watched
    try:
        count_passes(engine, prompts, 8)
    finally:
        GPUModelRunner.take_draft_token_ids = take
    return found


def main() -> None:
    """A sequence alone gets no drafts, two get some; then the same without the patch."""
    job = json.load(sys.stdin)
    engine = LLM(**job["engine"])
    first, second = job["prompts"][:2]
    outcome: dict[str, Any] = {
        "patched": "propose" in vars(DFlashProposer),
        "alone": count_passes(engine, [first], 8),
        "together": count_passes(engine, [first, second], 8),
    }
    outcome["chances"] = list_chances(engine, [first, second])
    del DFlashProposer.propose
    outcome["alone_unpatched"] = count_passes(engine, [first], 8)
    del DFlashProposer._greedy_sample
    outcome["chances_unpatched"] = list_chances(engine, [first, second])
    Path(job["outcome"]).write_text(json.dumps(outcome))


main()
