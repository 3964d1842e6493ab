"""The weights on one rank, as they are loaded: converted, quantized, spread, offloaded."""

from math import ceil

from slipstream.checkpoints.checkpoint import Checkpoint, Weights
from slipstream.planning.inputs import PlanInputs
from slipstream.planning.memory.cache import Ranks
from slipstream.planning.memory.estimates import Size, estimate_drafter, estimate_weights
from slipstream.planning.plan import MemoryItem
from slipstream.planning.settings import EngineSettings
from slipstream.units import show_bytes

GIB = 1 << 30
STORED_BYTES = {"F64": 8, "F32": 4}
# Bytes per parameter after vLLM has quantized bfloat16 as it loads it (config/quantization.py);
# bitsandbytes stores a float32 scale for every 64 weights of 4 bits. Embedding and head stay.
AT_LOAD = {"fp8": 1.0, "fp8_per_tensor": 1.0, "fp8_per_channel": 1.0, "fp8_per_block": 1.0}
AT_LOAD |= {"int8_per_channel_weight_only": 1.0, "mxfp8": 33 / 32, "bitsandbytes": 9 / 16}
TABLES = 2


def find_ranks(settings: EngineSettings) -> Ranks:
    tensor, pipeline = settings.tensor_parallel, settings.pipeline_parallel
    return Ranks(tensor.value if tensor else 1, pipeline.value if pipeline else 1)


def find_drafter_ranks(settings: EngineSettings) -> Ranks:
    """Return the ranks of a drafter: the target's, unless stated; the last stage has it whole."""
    rest = settings.speculation.rest if settings.speculation else {}
    stated = rest.get("draft_tensor_parallel_size")
    if stated is not None and isinstance(stated.value, int):
        return Ranks(stated.value)
    return Ranks(find_ranks(settings).tensor)


def weigh_target(inputs: PlanInputs, settings: EngineSettings) -> MemoryItem:
    """Return the target's weights on one rank, as loaded and without what is offloaded."""
    target, quantization = inputs.target, settings.quantization
    if (size := _find_published(target)) is None:
        because = "neither its size nor its number of parameters is known"
        return MemoryItem(name="target weights", size_bytes=None, because=because)
    if not target.quantized:
        size = _convert(size, target.weights, settings)
        if quantization is not None and quantization.value not in AT_LOAD:
            because = f"{size.because}; what --quantization {quantization.value} saves is unknown"
            return MemoryItem(name="target weights", size_bytes=None, because=because)
        if quantization is not None:
            size = _quantize(size, quantization.value, target)
    item = _make_item("target weights", _offload(_spread(size, settings.shards), settings))
    published = target.weights.total_bytes if target.weights else item.size_bytes
    if item.size_bytes == published:
        return item
    return item.model_copy(update={"because": f"{show_bytes(published)} {item.because}"})


def _find_published(checkpoint: Checkpoint) -> Size | None:
    if checkpoint.weights is None:
        return estimate_weights(checkpoint)
    total = checkpoint.weights.total_bytes
    known = "from the safetensors headers" if checkpoint.complete else "as published"
    return Size(total, total, known)


def _convert(size: Size, weights: Weights | None, settings: EngineSettings) -> Size:
    """Return unquantized weights in the type that they are served in."""
    stored = weights.bytes_by_dtype if weights else {}
    wide = sum(
        size_bytes - size_bytes * 2 // STORED_BYTES[dtype]
        for dtype, size_bytes in stored.items()
        if dtype in STORED_BYTES
    )
    factor = settings.element_bytes / 2
    named = "float32" if settings.element_bytes == 4 else "bfloat16"
    best, least = ceil((size.best - wide) * factor), int((size.least - wide) * factor)
    return size if best == size.best else size.change(best, least, f"served in {named}")


def _quantize(size: Size, method: str, target: Checkpoint) -> Size:
    """Shrink what is not embedding or head; whether these are one table is not known."""
    share = AT_LOAD[method] / 2
    table = (target.hidden_size or 0) * (target.vocabulary_size or 0) * 2
    plain = min(size.best, TABLES * table)
    best = ceil(plain + (size.best - plain) * share)
    return size.change(best, int(size.least * share), f"quantized to {method} at load")


def _spread(size: Size, parts: int) -> Size:
    if parts == 1:
        return size
    return size.change(ceil(size.best / parts), size.least // parts, f"one of {parts} parts")


def _offload(size: Size, settings: EngineSettings) -> Size:
    if (given := settings.rest.get("--cpu-offload-gb")) is None:
        return size
    away = int(float(str(given.value)) * GIB)
    words = f"{given.value} GiB of it in system memory"
    return size.change(max(0, size.best - away), max(0, size.least - away), words)


def weigh_drafter(inputs: PlanInputs, drafter: Checkpoint, settings: EngineSettings) -> MemoryItem:
    """Return the drafter's weights on one rank; it is spread over the ranks that it drafts on."""
    shared = "embedding and head are the target's" if inputs.draft else "with its own embedding"
    size = estimate_drafter(drafter, inputs.target)
    if drafter.weights is not None:
        size = Size(drafter.weights.total_bytes, drafter.weights.total_bytes, shared)
    if size is None:
        return MemoryItem(name="drafter weights", size_bytes=None, because=shared)
    if not drafter.quantized:
        size = _convert(size, drafter.weights, settings)
    return _make_item("drafter weights", _spread(size, find_drafter_ranks(settings).tensor))


def _make_item(name: str, size: Size) -> MemoryItem:
    least = None if size.best == size.least else size.least
    return MemoryItem(name=name, size_bytes=size.best, because=size.because, least_bytes=least)
