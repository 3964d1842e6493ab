"""A bed for runner V2's DFlash speculator of one build of vLLM, on CPU tensors.

Of vLLM are the request states, the speculator, rejection sampling and their kernels, in Triton's
interpreter. Stand-ins are the two models, the drafter's attention (no groups, so no metadata), the
choice of a CUDA graph (none), pinned memory (not there), and in kernels `log1p`, which the
interpreter lacks.
"""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from vllm.config import CUDAGraphMode
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.models import registry
from vllm.platforms import current_platform
from vllm.triton_utils import tl
from vllm.utils import torch_utils
from vllm.v1.worker.gpu import buffer_utils
from vllm.v1.worker.gpu.cudagraph_utils import BatchExecutionDescriptor
from vllm.v1.worker.gpu.input_batch import get_num_sampled_and_rejected, post_update
from vllm.v1.worker.gpu.spec_decode import rejection_sampler_utils
from vllm.v1.worker.gpu.states import RequestState

WIDTH, SLOTS, CONTEXT, VOCABULARY = 7, 4, 512, 512
CPU = torch.device("cpu")
# One request repeats twelve tokens from its prompt on, another nothing.
TEXTS = [
    [100 + at % 12 for at in range(60)],
    [(13 * at * at + 7 * at) % 509 for at in range(48)],
]
PROMPT = 20
Make = Callable[[Any, torch.device, RequestState], Any]


def is_right(position: int) -> bool:
    """Return whether the drafter knows the token at a position: in every third, not."""
    return position % 3 != 0


class Drafter:
    """Knows some tokens of the texts by their positions; its states are place and request."""

    def __init__(self, texts: list[list[int]]) -> None:
        self.texts, self.stored, self.passes = texts, 0, 0

    def combine_hidden_states(self, states: torch.Tensor) -> torch.Tensor:
        return states

    def precompute_and_store_context_kv(self, *arguments: Any) -> None:
        """Store nothing, and count."""
        self.stored += 1

    def __call__(self, input_ids: Any, positions: torch.Tensor, inputs_embeds: None) -> Any:
        self.passes += 1
        rows = torch.arange(len(positions)) // (WIDTH + 1)
        return torch.stack((positions, rows), 1)

    def compute_logits(self, states: torch.Tensor) -> torch.Tensor:
        logits = torch.zeros(len(states), VOCABULARY, dtype=torch.bfloat16)
        for at, (position, row) in enumerate(states.tolist()):
            text = self.texts[min(row, len(self.texts) - 1)]
            known = text[position] if position < len(text) else 0
            logits[at, known if is_right(position) else (known + 1) % VOCABULARY] = 9.0
        return logits


class Runner:
    """Steps of the runner for some requests, from what the target will say of each."""

    def __init__(self, config: Any, make: Make, texts: list[list[int]], temperature: float) -> None:
        self.texts, self.length = texts, WIDTH
        self.states = RequestState(SLOTS, CONTEXT, CONTEXT, WIDTH, VOCABULARY, CPU)
        self.speculator = make(config, CPU, self.states)
        prepare(self.speculator, Drafter(texts))
        for at, text in enumerate(texts):
            self.states.add_request(str(at), PROMPT, text[:PROMPT], 0, CONTEXT)
        self.states.apply_staged_writes()
        slots = [self.states.req_id_to_index[str(at)] for at in range(len(texts))]
        self.slots = torch.tensor(slots, dtype=torch.int32)
        self.temperature = torch.full((SLOTS,), temperature)
        self.seeds = torch.arange(SLOTS, dtype=torch.int64)

    def read(self) -> list[list[int]]:
        """Return the tokens so far, of every request."""
        lengths = self.states.total_len.gpu[self.slots].tolist()
        rows = self.states.all_token_ids.gpu[self.slots].tolist()
        return [row[:length] for row, length in zip(rows, lengths, strict=True)]

    def begin(self) -> None:
        """Read the prompts, and draft."""
        first = torch.tensor([[text[PROMPT]] for text in self.texts])
        self.finish(first, torch.ones(len(self.texts), dtype=torch.int32), PROMPT)

    def count_steps(self) -> list[int]:
        """Verify and draft until every text is there; return the steps that each one took."""
        self.begin()
        steps, missing = [0] * len(self.texts), True
        while missing:
            self.finish(*self.verify(), WIDTH + 1)
            lacks = [
                len(got) < len(text) for got, text in zip(self.read(), self.texts, strict=True)
            ]
            steps = [count + lack for count, lack in zip(steps, lacks, strict=True)]
            missing = any(lacks)
        return steps

    def verify(self) -> tuple[torch.Tensor, torch.Tensor]:
        count, each = len(self.texts), WIDTH + 1
        begin = self.states.num_computed_tokens.gpu[self.slots].tolist()
        positions = torch.tensor([at + step for at in begin for step in range(each)])
        logits = torch.zeros(count * each, VOCABULARY)
        for row, position in enumerate(positions.tolist()):
            text = self.texts[row // each]
            logits[row, text[position + 1] if position + 1 < len(text) else 0] = 30.0
        tokens = [self.states.last_sampled_tokens[self.slots], self.states.draft_tokens[self.slots]]
        return verify_rows(
            logits,
            self.speculator.draft_logits,
            torch.cat(tokens, 1).flatten(),
            positions,
            self.slots,
            self.temperature,
        )

    def finish(self, sampled: torch.Tensor, num_sampled: torch.Tensor, each: int) -> None:
        """Take what was sampled and draft, as the runner does after a step."""
        states, count = self.states, len(self.texts)
        begin = states.num_computed_tokens.gpu[self.slots].to(torch.int32)
        starts = torch.arange(count + 1, dtype=torch.int32)
        logits = starts * (1 if sampled.shape[1] == 1 else each)
        num_sampled, num_rejected = get_num_sampled_and_rejected(
            num_sampled, begin + each, logits, self.slots, states.prefill_len.gpu
        )
        post_update(
            self.slots,
            states.num_computed_tokens.gpu,
            states.last_sampled_tokens,
            None,
            sampled,
            num_sampled,
            num_rejected,
            starts * each,
            states.all_token_ids.gpu,
            states.total_len.gpu,
        )
        self.speculator.observe_verification(self.slots, num_sampled, num_rejected)
        batch = SimpleNamespace(
            num_reqs=count,
            num_tokens=count * each,
            idx_mapping=self.slots,
            positions=torch.cat([at + torch.arange(each) for at in begin.tolist()]),
            query_start_loc=starts * each,
            num_scheduled_tokens=torch.full((count,), each).numpy(),
            seq_lens_cpu_upper_bound=begin + each,
        )
        drafts = self.speculator.propose(
            *(batch, {}, {}, torch.zeros(count * each, self.speculator.hidden_size), None),
            *(num_sampled, num_rejected, states.last_sampled_tokens, states.next_prefill_tokens),
            *(self.temperature, self.seeds),
            num_speculative_tokens=self.length,
        )
        # The runner gives as many to the scheduler as that one asked for.
        states.draft_tokens[self.slots, : drafts.shape[1]] = drafts


def prepare(speculator: Any, drafter: Drafter) -> None:
    """Give a speculator its model, and what `set_attn` would on a GPU."""
    speculator.model = drafter
    speculator.attn_groups, speculator._layer_group_idx = [[]], None
    group = SimpleNamespace(layer_names=[])
    speculator.kv_cache_config = SimpleNamespace(kv_cache_groups=[group])
    speculator.draft_kv_cache_group_ids, speculator.draft_kv_cache_group_id = [0], 0
    speculator._context_slot_mappings = torch.zeros(1, CONTEXT, dtype=torch.int64)
    speculator._group_causal = False
    speculator.block_tables = SimpleNamespace(
        slot_mappings=torch.zeros(1, CONTEXT, dtype=torch.int64),
        input_block_tables=[torch.ones(SLOTS, CONTEXT // 16, dtype=torch.int32)],
        **{"block_sizes": [16], "cp_rank": 0, "cp_size": 1, "cp_interleave": 1},
    )

    def dispatch(num_reqs: int, num_tokens: int, *_: Any, **__: Any) -> Any:
        return BatchExecutionDescriptor(CUDAGraphMode.NONE, num_tokens, num_reqs)

    speculator.query_cudagraph_manager = SimpleNamespace(dispatch=dispatch)


def verify_rows(
    logits: torch.Tensor,
    draft_logits: torch.Tensor | None,
    tokens: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    temperature: torch.Tensor,
    seeds: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Verify rows of `WIDTH` drafts, each after the last token of its request."""
    count, each = len(slots), WIDTH + 1
    seeds = torch.arange(len(temperature), dtype=torch.int64) if seeds is None else seeds
    sampled, num_sampled = rejection_sampler_utils.rejection_sample(
        logits,
        draft_logits,
        tokens.to(torch.int32),
        torch.arange(count + 1, dtype=torch.int32) * each,
        positions,
        slots,
        slots.repeat_interleave(each),
        torch.arange(each, dtype=torch.int32).repeat(count),
        temperature,
        seeds,
        WIDTH,
    )
    return sampled, num_sampled


def put_on_cpu() -> None:
    """Have vLLM do without what needs a GPU, and inspect classes of models in this process."""
    registry._run_in_subprocess = lambda inspect: inspect()
    buffer_utils.is_uva_available = lambda: False
    torch_utils.is_pin_memory_available = lambda: False  # 0.32 asks this, 0.33 the next.
    torch_utils.PIN_MEMORY = False
    rejection_sampler_utils.tldevice = SimpleNamespace(log1p=lambda x: tl.log(1 + x))


def shrink(folder: str) -> None:
    """Give a checkpoint a small vocabulary, since the interpreter goes through all of it."""
    file = Path(folder) / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "vocab_size": VOCABULARY}))


def make_config(job: dict[str, str], **speculation: Any) -> Any:
    """Make the engine's config, and then let buffers be on the CPU."""
    current_platform.device_type = "cuda"
    drafter = {"method": "dflash", "model": job["drafter"], "num_speculative_tokens": WIDTH}
    config = EngineArgs(
        model=job["target"],
        max_model_len=CONTEXT,
        max_num_seqs=SLOTS,
        max_num_batched_tokens=CONTEXT,
        enforce_eager=True,
        speculative_config={**drafter, "attention_backend": "FLASH_ATTN", **speculation},
    ).create_engine_config()
    current_platform.device_type = "cpu"
    return config
