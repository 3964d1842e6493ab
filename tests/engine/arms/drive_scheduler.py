"""vLLM's own schedulers, steered by ours, step by step with a made-up model.

The model samples by a seed: of each draft it accepts a beginning and adds a token. With an
asynchronous scheduler a step is scheduled before the one before it is known. Prints, by scenario,
what the ledger and vLLM's own statistics counted, and the lengths by batch.
"""

import json
import os
import random
import sys
import tempfile
from collections import defaultdict, deque
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from vllm.config import CUDAGraphMode
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
)
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

BLOCK = 16
VOCABULARY = 1000
CONFIGS: dict[tuple[int, int], Any] = {}


class Model:
    """Samples tokens for what was scheduled, and drafts as many as are wanted.

    It accepts a draft token by chance or, of a text with a `period`, if it is the one that follows.
    """

    def __init__(self, seed: int, rate: float, period: int) -> None:
        self._chance, self._rate, self._period = random.Random(seed), rate, period

    def run(self, output: Any, requests: dict[str, Any]) -> ModelRunnerOutput:
        names = list(output.num_scheduled_tokens)
        drafts = [output.scheduled_spec_decode_tokens.get(name, []) for name in names]
        sampled = [
            [] if requests[name].is_prefill_chunk else self._sample(requests[name], draft)
            for name, draft in zip(names, drafts, strict=True)
        ]
        places = {name: place for place, name in enumerate(names)}
        return ModelRunnerOutput(req_ids=names, req_id_to_index=places, sampled_token_ids=sampled)

    def _sample(self, request: Any, draft: list[int]) -> list[int]:
        tokens = [self._continue(request, 0)]
        for at, token in enumerate(draft):
            right = token == tokens[at] if self._period else self._chance.random() < self._rate
            if not right:
                break
            tokens.append(self._continue(request, at + 1))
        return tokens

    def _continue(self, request: Any, further: int) -> int:
        if not self._period:
            return self._chance.randrange(VOCABULARY)
        return int(request.prompt_token_ids[(request.num_tokens + further) % self._period])

    def draft(self, names: list[str], width: int) -> DraftTokenIds:
        rows = [[self._chance.randrange(VOCABULARY) for _ in range(width)] for _ in names]
        drafts = DraftTokenIds(names, rows)
        drafts.chances = [[self._chance.random() for _ in row] for row in rows]
        return drafts


def make_scheduler(job: dict[str, Any], scenario: dict[str, Any], folder: Path) -> Any:
    from slipstream.planning.settings import draft_lengths as planned
    from slipstream.vllm_plugin.steering import draft_length
    from slipstream.vllm_plugin.steering import scheduler as ours

    # The plugin says these again, since it imports no planning.
    said = planned.FREE_TOKENS, planned.VARIABLE
    assert said == (draft_length.FREE_TOKENS, draft_length.VARIABLE)
    key = (scenario["seats"], scenario.get("budget", 512))
    if key not in CONFIGS:
        engine = {**job["engine"], "speculative_config": job["speculation"]}
        engine |= dict(zip(("max_num_seqs", "max_num_batched_tokens"), key, strict=True))
        CONFIGS[key] = EngineArgs(**engine).create_engine_config()
    config = deepcopy(CONFIGS[key])
    config.scheduler_config.async_scheduling = scenario.get("asynchronous", False)
    if scenario.get("on_gpu"):
        config.__class__ = type("OnGpu", (type(config),), {"use_v2_model_runner": True})
    if lengths := scenario.get("lengths"):  # of which graphs are recorded
        config.compilation_config.cudagraph_mode = CUDAGraphMode.FULL_AND_PIECEWISE
        rows = planned.make_schedule(lengths, scenario["seats"])
        config.speculative_config.num_speculative_tokens_per_batch_size = rows
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=8, dtype=torch.float32)
    blocks = scenario.get("blocks", 512)
    groups = [KVCacheGroupSpec(["layer"], spec)]
    if scenario.get("hybrid"):
        config.cache_config.mamba_cache_mode = "align"
        states = MambaSpec(
            block_size=BLOCK,
            shapes=((8,),),
            dtypes=(torch.float32,),
            mamba_cache_mode="align",
            page_size_padded=spec.page_size_bytes,
        )
        groups.append(KVCacheGroupSpec(["recurrent layer"], states))
    os.environ["SLIPSTREAM_GATE"] = str(folder / "gate.json")
    os.environ["SLIPSTREAM_COPY"] = str(scenario.get("copied", 0))
    config.cache_config.num_gpu_blocks = blocks
    return ours.make(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(blocks, [], groups),
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK,
        log_stats=True,
    )


def take_drafts(scheduler: Any, drafts: DraftTokenIds) -> None:
    """Hand drafts to the method that this version has for it."""
    from vllm.v1.core.sched.scheduler import Scheduler

    from slipstream.vllm_plugin.steering.scheduler import TOUCHED

    there = [name for name in TOUCHED if name in vars(Scheduler)]
    (name,) = (name for name in there if name.endswith("_draft_token_ids"))
    getattr(scheduler, name)(drafts)


def make_request(name: str, prompt: list[int], tokens: int, hasher: Any) -> Request:
    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
    params.update_from_generation_config({}, 0)
    return Request(name, prompt, params, None, block_hasher=hasher)


def drive(job: dict[str, Any], scenario: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Run one scenario to its end, and return what was counted."""
    scheduler = make_scheduler(job, scenario, folder)
    is_steered = type(scheduler).__name__.startswith("Steered")
    period = scenario.get("period", 0)
    model = Model(scenario.get("seed", 1), scenario.get("rate", 0.5), period)
    hasher = get_request_block_hasher(BLOCK, sha256)
    chance = random.Random(7)
    arrivals: dict[int, list[Request]] = defaultdict(list)
    shared = [chance.randrange(VOCABULARY) for _ in range(3 * BLOCK)]
    for number, (step, prompt, tokens) in enumerate(scenario["requests"]):
        ids = [chance.randrange(VOCABULARY) for _ in range(prompt)]
        if scenario.get("shared"):
            ids = shared + ids
        if period:
            ids = [ids[at % period] for at in range(prompt)]
        arrivals[step].append(make_request(f"r{number}", ids, tokens, hasher))
    aborts = {step: name for step, name in scenario.get("aborts", ())}
    stats = {"drafts": 0, "drafted": 0, "accepted": 0, "tokens": 0}
    preempted: set[str] = set()
    lengths: dict[int, set[int]] = defaultdict(set)
    flying: deque[tuple[Any, ModelRunnerOutput]] = deque()
    depth, step = 2 if scenario.get("asynchronous") else 1, 0
    while step < 3000:
        for request in arrivals.pop(step, ()):
            scheduler.add_request(request)
        if step in aborts and aborts[step] in scheduler.requests:
            scheduler.finish_requests(aborts[step], RequestStatus.FINISHED_ABORTED)
        output = scheduler.schedule()
        preempted |= output.preempted_req_ids or set()
        if output.num_scheduled_tokens:
            flying.append((output, model.run(output, scheduler.requests)))
            lengths[len(scheduler.running)].add(output.num_spec_tokens_to_schedule)
        elif not arrivals and not flying and not scheduler.has_unfinished_requests():
            break
        if len(flying) >= depth or (flying and not output.num_scheduled_tokens):
            done, sampled = flying.popleft()
            results = scheduler.update_from_output(done, sampled)
            if depth == 1:
                width = done.num_spec_tokens_to_schedule
                take_drafts(scheduler, model.draft(sampled.req_ids, width))
            for outputs in results.values():
                stats["tokens"] += sum(len(one.new_token_ids) for one in outputs.outputs)
                if (said := outputs.scheduler_stats) is not None and said.spec_decoding_stats:
                    counted = said.spec_decoding_stats
                    stats["drafts"] += counted.num_drafts
                    stats["drafted"] += counted.num_draft_tokens
                    stats["accepted"] += counted.num_accepted_tokens
        step += 1
    scheduler.shutdown()
    lines = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    ledger = {
        "drafts": sum(line["drafts"] + line["copies"] for line in lines),
        "drafted": sum(line["drafted"] + line["copied"] for line in lines),
        "accepted": sum(sum(line["accepted"]) + line["copied_accepted"] for line in lines),
        "tokens": sum(line["tokens"] for line in lines),
    }
    return {
        "class": type(scheduler).__mro__[2].__name__,
        "steered": is_steered,
        "ended": step < 3000,
        "steps": step,
        "ledger": ledger,
        "stats": stats,
        "preempted": len(preempted),
        "lines": len(lines),
        "copied": sum(line["copied"] for line in lines),
        "endings": sorted({line["ended"] for line in lines}),
        "cached": sum(line["cached_tokens"] for line in lines),
        "lengths": {str(batch): sorted(found) for batch, found in sorted(lengths.items())},
    }


def main() -> None:
    job = json.load(sys.stdin)
    init_none_hash(sha256)
    outcome = {}
    for scenario in job["scenarios"]:
        with tempfile.TemporaryDirectory() as folder:
            outcome[scenario["name"]] = drive(job, scenario, Path(folder))
    import vllm

    found = {"version": vllm.__version__, "scenarios": outcome}
    Path(job["outcome"]).write_text(json.dumps(found))


main()
