"""One arm of a comparison, in a process of its own: the real vLLM, offline, greedy.

Reads a job as JSON from stdin and writes the outcome to the file named in the job, so that
whatever the engine prints stays apart.
"""

import json
import sys
from pathlib import Path
from typing import Any

from vllm import LLM, SamplingParams


def generate(engine: Any, prompts: list[list[int]], max_tokens: int) -> list[dict[str, Any]]:
    """Let the engine answer all prompts at once and keep what the tests compare."""
    sampling = SamplingParams(temperature=0, max_tokens=max_tokens, logprobs=2)
    answers = engine.generate(
        [{"prompt_token_ids": prompt} for prompt in prompts], sampling, use_tqdm=False
    )
    return [
        describe(answer.outputs[0]) | {"cached_tokens": answer.num_cached_tokens or 0}
        for answer in answers
    ]


def describe(output: Any) -> dict[str, Any]:
    """Keep the tokens, the two leading candidates of each and how many drafts were accepted."""
    leading = [
        sorted(((entry.logprob, token) for token, entry in position.items()), reverse=True)[:2]
        for position in output.logprobs
    ]
    histogram = output.spec_decode_metrics.histogram if output.spec_decode_metrics else []
    return {
        "token_ids": list(output.token_ids),
        "leading": leading,
        "accepted_by_step": histogram,
    }


def main() -> None:
    """Run the job: every prompt alone and with an empty prefix cache, then all in batches."""
    job = json.load(sys.stdin)
    engine = LLM(**job["engine"])
    prompts, size = job["prompts"], job["batch_size"]
    alone = []
    for prompt in prompts:
        engine.reset_prefix_cache()
        alone += generate(engine, [prompt], job["max_tokens"])
    batched = [
        answer
        for start in range(0, len(prompts), size)
        for answer in generate(engine, prompts[start : start + size], job["max_tokens"])
    ]
    Path(job["outcome"]).write_text(json.dumps({"alone": alone, "batched": batched}))


main()
