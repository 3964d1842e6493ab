"""Checks drafts that copy on runner V2, with the speculator of one build of vLLM on CPU tensors.

It runs in that build's environment, its kernels in Triton's interpreter. From stdin comes a job:
`target` and `drafter` are folders of checkpoints, `outcome` is the file for what every check found,
which is null if all is well. What stands in for what is said in v2_bed.py.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "src")]
os.environ["TRITON_INTERPRET"] = "1"

import torch  # noqa: E402 - after the path
import vllm  # noqa: E402
from vllm.config import set_current_vllm_config  # noqa: E402
from vllm.v1.worker.gpu import spec_decode  # noqa: E402
from vllm.v1.worker.gpu.spec_decode import (  # noqa: E402
    acceptance_estimator,
    adaptive_verification,
)

from slipstream.vllm_plugin.patches import apply_named  # noqa: E402
from slipstream.vllm_plugin.steering import row_copies  # noqa: E402
from tests.judge import v2_bed as bed  # noqa: E402

plain = spec_decode.init_speculator
Check = Callable[[Any, Any], None]


def copies_take_fewer_steps_to_the_same_text(greedy: Any, drawn: Any) -> None:
    for config, temperature in ((greedy, 0.0), (greedy, 1.0), (drawn, 0.0), (drawn, 1.0)):
        steps = {}
        for make in (plain, spec_decode.init_speculator):
            runner = bed.Runner(config, make, bed.TEXTS, temperature)
            steps[make] = runner.count_steps()
            for text, got in zip(bed.TEXTS, runner.read(), strict=True):
                assert got[: len(text)] == text
        (repeats, other), copying = steps[plain], steps[spec_decode.init_speculator]
        sys.stderr.write(f"steps at {temperature}: {steps[plain]}, with copies {copying}\n")
        assert copying[0] <= repeats / 2
        assert copying[1] == other


def a_copied_row_is_verified_like_a_greedy_draft(greedy: Any, drawn: Any) -> None:
    """Kept logits with point masses give the tokens that no kept logits give, in every row."""
    count, each = 32, bed.WIDTH + 1
    draw = torch.Generator().manual_seed(1)
    target = 2 * torch.randn(count * each, 16, generator=draw)
    tokens = torch.randint(0, 16, (count, each), generator=draw)
    kept = torch.randn(count, bed.WIDTH, 16, generator=draw)
    slots = torch.arange(count, dtype=torch.int32).flip(0)
    marked = kept.clone()
    yes = torch.ones(count, dtype=torch.bool)
    row_copies.mark_point_masses(marked, slots.to(torch.int64), tokens[:, 1:], yes)
    warm = torch.rand(count, generator=draw) + 0.5
    seeds = torch.randint(0, 1 << 40, (count,), generator=draw)
    found = []
    for logits in (None, marked, kept):
        places = torch.arange(each).repeat(count)
        rows = (tokens.flatten(), places, slots, warm, seeds)
        found.append(
            bed.verify_rows(target / warm[slots].repeat_interleave(each)[:, None], logits, *rows)
        )
    (sampled, counts), (same, same_counts), (_, other_counts) = found
    assert counts.float().std() > 0
    assert torch.equal(counts, same_counts)
    written = torch.arange(each) < counts[:, None]
    assert torch.equal(sampled[written], same[written])
    assert not torch.equal(counts, other_counts)


def adaptive_verification_knows_a_copied_row(greedy: Any, drawn: Any) -> None:
    """Copied rows have confidences of their own, and the estimator learns from the others only."""
    runner = bed.Runner(greedy, spec_decode.init_speculator, bed.TEXTS, 0.0)
    speculator, shown = runner.speculator, []
    estimator = acceptance_estimator.OnlineAcceptanceEstimator(bed.SLOTS, bed.WIDTH, bed.CPU)
    learn = estimator.step

    def step(slots: torch.Tensor, *counts: torch.Tensor) -> None:
        shown.append(counts)
        learn(slots, *counts)

    estimator.step = step
    speculator.acceptance_estimator = estimator
    runner.begin()
    confidences = speculator.draft_token_confidence_probs[:2]
    first, second = confidences.clone()
    assert (first > second).all()
    assert torch.equal(second, estimator.predictions[runner.slots[1]])
    by_slot = torch.zeros(bed.SLOTS, bed.WIDTH)
    by_slot[runner.slots.to(torch.int64)] = torch.stack((first, second))
    capacities = torch.full((2,), bed.WIDTH, dtype=torch.int32)
    budget = (by_slot, runner.slots.to(torch.int64), capacities, bed.WIDTH, bed.WIDTH)
    adaptive_verification._assign_draft_token_budget(*budget)
    assert capacities[0] > capacities[1]
    runner.finish(*runner.verify(), bed.WIDTH + 1)
    (copied, drafted), _ = shown[-1]
    assert copied == 0
    assert drafted > 0
    assert speculator.draft_token_confidence_probs[0, 0] > first[0]


def a_shorter_length_takes_the_same_pass_and_none_skips_it_from_033_on(
    greedy: Any, drawn: Any
) -> None:
    """So steering saves verification on this runner, and the drafter's pass at 0 on 0.33 alone."""
    passes = {}
    for length in (bed.WIDTH, 3, 0):
        runner = bed.Runner(greedy, plain, bed.TEXTS, 0.0)
        runner.begin()
        drafter = runner.speculator.model
        before = drafter.passes, drafter.stored
        runner.length = length
        runner.finish(*runner.verify(), bed.WIDTH + 1)
        passes[length] = drafter.passes - before[0]
        assert drafter.stored > before[1], "the context is stored for later drafts"
    is_new = tuple(map(int, vllm.__version__.split(".")[:2])) >= (0, 33)
    sys.stderr.write(f"passes of the drafter by length: {passes}\n")
    assert passes == {bed.WIDTH: 1, 3: 1, 0: 0 if is_new else 1}


CHECKS: tuple[Check, ...] = (
    a_shorter_length_takes_the_same_pass_and_none_skips_it_from_033_on,
    copies_take_fewer_steps_to_the_same_text,
    a_copied_row_is_verified_like_a_greedy_draft,
    adaptive_verification_knows_a_copied_row,
)


def main() -> None:
    job = json.load(sys.stdin)
    os.environ.update(SLIPSTREAM_PATCHES="dflash-v2-copy", SLIPSTREAM_COPY="31")
    bed.put_on_cpu()
    apply_named()
    for folder in (job["target"], job["drafter"]):
        bed.shrink(folder)
    greedy = bed.make_config(job)
    drawn = bed.make_config(job, draft_sample_method="probabilistic")
    found: dict[str, str | None] = {}
    for check in CHECKS:
        found[check.__name__] = None
        try:
            with set_current_vllm_config(greedy), torch.inference_mode():
                check(greedy, drawn)
        except Exception:  # noqa: BLE001 - any fault is an outcome
            found[check.__name__] = traceback.format_exc()
    Path(job["outcome"]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
