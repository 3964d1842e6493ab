"""The memory of a plan: weights, drafter, cache, recurrent state, allowances, headroom.

Cache sizes follow vLLM's own specs (v1/kv_cache_interface.py), so they agree to the byte. A
figure that depends on an unknown fact is unknown.
"""

from math import ceil

from slipstream.checkpoints.checkpoint import Checkpoint, Layers

DTYPE_BYTES = {"auto": 2, "bfloat16": 2, "float16": 2, "float32": 4}
DTYPE_BYTES |= {"fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}
# Bits of keys and values; keys of 8 bits are stored without a norm (turboquant/config.py).
TURBOQUANT_BITS = {
    "turboquant_k8v4": (8, 4),
    "turboquant_4bit_nc": (4, 4),
    "turboquant_k3v4_nc": (3, 4),
    "turboquant_3bit_nc": (3, 3),
}
# A dense model keeps this many layers uncompressed at either end; a hybrid none.
TURBOQUANT_PLAIN_ENDS = 2


def slot_bytes(head_size: int, kv_dtype: str) -> int:
    """Return the bytes of one head's key and value for one token."""
    if kv_dtype in TURBOQUANT_BITS:
        key_bits, value_bits = TURBOQUANT_BITS[kv_dtype]
        key = head_size if key_bits == 8 else ceil(head_size * key_bits / 8) + 2
        slot = key + ceil(head_size * value_bits / 8) + 4
        return slot + slot % 2
    return 2 * head_size * DTYPE_BYTES[kv_dtype]


def layer_token_bytes(part: Layers, kv_dtype: str) -> int | None:
    """Return the bytes that one attention layer keeps of one token."""
    if part.key_value_heads is None or part.head_size is None:
        return None
    if kv_dtype not in DTYPE_BYTES and kv_dtype not in TURBOQUANT_BITS:
        return None
    if part.kind == "latent":
        return part.head_size * DTYPE_BYTES.get(kv_dtype, 2)
    return part.key_value_heads * slot_bytes(part.head_size, kv_dtype)


def token_bytes(checkpoint: Checkpoint, kv_dtype: str) -> int | None:
    """Return the bytes that all attention layers keep of one token while it is in their windows."""
    if checkpoint.layers is None:
        return None
    total = 0
    for part in checkpoint.layers:
        if part.kind in ("recurrent", "shared"):
            continue
        one = layer_token_bytes(part, kv_dtype)
        plain = layer_token_bytes(part, "bfloat16")
        if one is None or plain is None:
            return None
        kept = _count_plain_layers(checkpoint, part, kv_dtype)
        total += one * (part.count - kept) + plain * kept
    return total


def head_token_bytes(target: Checkpoint, kv_dtype: str) -> int | None:
    """Return the bytes that one predicting layer keeps of one token: those of a target's layer.

    vLLM builds it like the target's layers with full attention.
    """
    alike = [part for part in target.layers or () if part.kind in ("full", "latent")]
    return layer_token_bytes(alike[-1], kv_dtype) if alike else None


def _count_plain_layers(checkpoint: Checkpoint, part: Layers, kv_dtype: str) -> int:
    if kv_dtype not in TURBOQUANT_BITS or checkpoint.is_hybrid:
        return 0
    return 2 * min(TURBOQUANT_PLAIN_ENDS, part.count // 2)


def state_bytes(part: Layers, draft_length: int) -> int | None:
    """Return a recurrent layer's state for one sequence: one copy more for each draft token."""
    if None in (part.convolution_channels, part.convolution_width, part.state_elements):
        return None
    assert part.convolution_channels is not None
    assert part.convolution_width is not None
    assert part.state_elements is not None
    convolution = part.convolution_channels * (part.convolution_width - 1 + draft_length)
    element = part.state_element_bytes or 2
    return (convolution * 2 + part.state_elements * element) * (1 + draft_length)


def _share_pages(
    layers: tuple[Layers, ...], kv_dtype: str, draft_length: int, block_tokens: int
) -> tuple[int, int] | None:
    """Return a hybrid's block, long enough to hold a state, and the page that states are padded to.

    platforms/interface.py, _align_hybrid_block_size.
    """
    states = [state_bytes(part, draft_length) for part in layers if part.kind == "recurrent"]
    tokens = [
        layer_token_bytes(part, kv_dtype)
        for part in layers
        if part.kind not in ("recurrent", "shared")
    ]
    largest = max((size for size in states if size is not None), default=0) // (1 + draft_length)
    widest = max((size for size in tokens if size is not None), default=0)
    if None in (*states, *tokens):
        return None
    if widest == 0:
        return block_tokens, largest
    block = block_tokens * ceil(largest / (block_tokens * widest))
    return block, block * widest


def sequence_bytes(
    checkpoint: Checkpoint,
    *,
    context: int,
    kv_dtype: str,
    draft_length: int,
    in_flight_tokens: int,
    block_tokens: int,
) -> int | None:
    """Return what one sequence of full length keeps, in whole blocks."""
    if checkpoint.layers is None:
        return None
    state_page = 0
    if checkpoint.is_hybrid:
        shared = _share_pages(checkpoint.layers, kv_dtype, draft_length, block_tokens)
        if shared is None:
            return None
        block_tokens, state_page = shared
    total = 0
    for part in checkpoint.layers:
        if part.kind == "shared":
            continue
        if part.kind == "recurrent":
            total += state_page * (1 + draft_length) * part.count
            continue
        per_token = layer_token_bytes(part, kv_dtype)
        if per_token is None:
            return None
        plain = layer_token_bytes(part, "bfloat16") or 0
        kept = _count_plain_layers(checkpoint, part, kv_dtype)
        blocks = ceil(context / block_tokens)
        if part.kind == "sliding" and part.window is not None:
            blocks = ceil(min(part.window - 1 + in_flight_tokens, context) / block_tokens) + 1
        total += blocks * block_tokens * (per_token * (part.count - kept) + plain * kept)
    return total
