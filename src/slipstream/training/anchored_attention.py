"""Attention of draft blocks to the context before their anchors, for machines without a GPU.

speculators hides other blocks behind a mask over [queries, context and every block]; its
flex attention has no backward pass on a CPU, and PyTorch's own takes a third of a step there.
Here a block is only multiplied with the context and with itself, so nothing is masked away
but the context from the anchor on.
"""

from typing import Any

HIDDEN = float("-inf")
NAME = "slipstream_anchored_blocks"


def register_attention() -> str:
    """Register the attention with transformers, and return its name."""
    from transformers.modeling_utils import AttentionInterface

    AttentionInterface.register(NAME, attend)
    return NAME


def attend(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    scaling: float,
    **_: Any,
) -> tuple[Any, None]:
    """Attend from blocks to context and block, as `transformers` calls it.

    query is [rows, heads, anchors * block, size]; key and value hold the context's tokens and
    then the blocks'; attention_mask is [rows, anchors, context], 0 where an anchor's block sees
    a token and -inf where not.
    """
    import torch

    rows, heads, length, size = query.shape
    groups, anchors, context = key.shape[1], attention_mask.shape[1], attention_mask.shape[2]
    shape = (rows, groups, heads // groups, anchors, length // anchors)
    query = query.reshape(*shape, size) * scaling

    seen = query.reshape(rows, groups, -1, size) @ key[:, :, :context].transpose(-1, -2)
    seen = seen.reshape(*shape, context) + attention_mask[:, None, None, :, None]
    own = query @ _as_blocks(key[:, :, context:], shape).transpose(-1, -2)
    weights = torch.softmax(torch.cat([seen, own], -1).float(), -1).to(query.dtype)

    mixed = weights[..., :context].reshape(rows, groups, -1, context) @ value[:, :, :context]
    mixed = mixed.reshape(*shape, size)
    mixed = mixed + weights[..., context:] @ _as_blocks(value[:, :, context:], shape)
    return mixed.reshape(rows, heads, length, size).transpose(1, 2), None


def _as_blocks(states: Any, shape: tuple[int, ...]) -> Any:
    rows, groups, _, anchors, block = shape
    return states.reshape(rows, groups, 1, anchors, block, states.shape[-1])
