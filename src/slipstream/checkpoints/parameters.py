"""The number of a model's parameters by its shape, for weights that could not be looked at."""

from collections.abc import Mapping
from typing import Any

from slipstream.checkpoints.checkpoint import Layers

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


def count_parameters(config: Mapping[str, Any], layers: tuple[Layers, ...] | None) -> int | None:
    """Add up embedding, head, attention and feed-forward parts; norms and biases are left out."""
    hidden, vocabulary = config.get("hidden_size"), config.get("vocab_size")
    if not isinstance(hidden, int) or not isinstance(vocabulary, int) or layers is None:
        return None
    mixed = [_count_mixing(part, config, hidden) for part in layers if part.kind != "none"]
    forward = _count_forward(config, layers, hidden)
    if forward is None or None in mixed:
        return None
    tables = 1 if config.get("tie_word_embeddings") else 2
    return tables * hidden * vocabulary + sum(size or 0 for size in mixed) + forward


def _count_mixing(part: Layers, config: Mapping[str, Any], hidden: int) -> int | None:
    """Count what mixes tokens: attention of either kind, or a recurrence."""
    if part.kind == "recurrent":
        channels = part.convolution_channels
        # In: the convolution's input and as much again for the gate; out: half of it.
        return None if channels is None else part.count * hidden * channels * 5 // 2
    heads = config.get("num_attention_heads")
    if heads is None:
        return None
    if part.kind == "latent":
        return part.count * _count_latent(config, hidden, heads)
    if part.kind == "shared":
        size, keys = config.get("head_dim") or hidden // heads, 0
    else:
        size, keys = part.head_size or 0, part.key_value_heads or 0
    return int(part.count * 2 * hidden * size * (heads + keys))


def _count_latent(config: Mapping[str, Any], hidden: int, heads: int) -> int:
    rope, plain = config.get("qk_rope_head_dim", 0), config.get("qk_nope_head_dim", 0)
    value, rank = config.get("v_head_dim", 0), config["kv_lora_rank"]
    query = heads * (rope + plain)
    narrow = config.get("q_lora_rank")
    queries = narrow * (hidden + query) if narrow else hidden * query
    return int(
        queries + hidden * (rank + rope) + rank * heads * (plain + value) + heads * value * hidden
    )


def _count_forward(
    config: Mapping[str, Any], layers: tuple[Layers, ...], hidden: int
) -> int | None:
    """Count the feed-forward parts: of every layer, or of those that have nothing else."""
    stated = config.get("intermediate_size")
    dense = max(stated) if isinstance(stated, list) else stated
    width = config.get("moe_intermediate_size") or dense
    if width is None:
        return None
    alone = sum(part.count for part in layers if part.kind == "none")
    total = alone or sum(part.count for part in layers if not part.beside)
    experts = next((config[key] for key in _EXPERTS if config.get(key)), 0)
    sparse = _count_sparse(config, total) if experts else 0
    shared = config.get("n_shared_experts") or config.get("num_shared_experts") or 0
    extra = config.get("shared_expert_intermediate_size") or shared * width
    matrices = 2 if config.get("mlp_hidden_act") == "relu2" else 3
    wide = sparse * (experts * width + extra) + (total - sparse) * (dense or width)
    return int(matrices * hidden * wide)


def _count_sparse(config: Mapping[str, Any], total: int) -> int:
    """Count the layers with experts."""
    pattern = config.get("hybrid_override_pattern") or ""
    every = config.get("expert_layer_period") or config.get("interleave_moe_layer_step") or 1
    first = config.get("first_k_dense_replace") or 0
    return int(pattern.count("E") or (total - first) // every)
