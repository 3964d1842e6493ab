"""Drafters run over batches on a CPU: DFlash block by block, EAGLE-3 step by step.

speculators' models compute with an attention that has no backward pass here. For DFlash it hides
other blocks behind a mask over [queries, context and every block]; PyTorch's own attention takes
a third of a step with it. Here a block is only multiplied with the context and with itself, so
nothing is masked away but the context from the anchor on.

An EAGLE-3 head reads a token beside the target's state of the token before it, and drafts the
next token; for the one after it reads its own output in place of the target's state
(https://arxiv.org/abs/2503.01840). speculators runs every position of a text through every step;
here only the anchors are run, and the other positions give no more than a key and a value. With
one layer both compute the same. Tests hold both to speculators' own forward pass.
"""

from typing import Any

from slipstream.training.cpu.batches import Batch

ATTENTION = "slipstream_anchored_blocks"


def draft(model: Any, batch: Batch) -> Any:
    """Run the drafter over a batch: [rows, anchors, block, hidden], before the head."""
    hidden = run_drafter(model, *to_tensors(batch, model.dtype))
    return hidden.reshape(*batch.targets.shape, -1)


def to_tensors(batch: Batch, dtype: Any) -> tuple[Any, ...]:
    import torch

    visible = torch.from_numpy(batch.visible)
    return (
        torch.from_numpy(batch.states).view(torch.bfloat16).to(dtype),
        torch.from_numpy(batch.next_tokens),
        torch.from_numpy(batch.blocks),
        torch.zeros(visible.shape, dtype=dtype).masked_fill_(~visible, -torch.inf),
        torch.from_numpy(batch.positions),
    )


def run_drafter(
    model: Any, states: Any, next_tokens: Any, blocks: Any, mask: Any, positions: Any
) -> Any:
    """Run a drafter of either method: [rows, anchors * block, hidden], before the head."""
    if model.config.speculators_model_type == "eagle3":
        return _run_steps(model, states, next_tokens, blocks, mask, positions)
    return _run_layers(model, states, model.embed_tokens(blocks), mask, positions)


def _run_layers(model: Any, states: Any, blocks: Any, mask: Any, positions: Any) -> Any:
    """Run DFlash's layers as speculators does, row by row instead of packed in one."""
    context = model.hidden_norm(model.fc(states * model.feature_scale))
    rotary = model.rotary_emb(blocks, positions)
    for layer in model.layers:
        blocks = layer(
            hidden_states=blocks,
            target_hidden=context,
            attention_mask=mask,
            position_ids=positions,
            use_cache=False,
            position_embeddings=rotary,
        )
    return model.norm(blocks)


def register_attention() -> str:
    from transformers.modeling_utils import AttentionInterface

    AttentionInterface.register(ATTENTION, attend)
    return ATTENTION


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
    rows, heads, length, size = query.shape
    groups, anchors, context = key.shape[1], attention_mask.shape[1], attention_mask.shape[2]
    blocks = (rows, groups, -1, anchors, length // anchors, size)
    own_key, own_value = (part[:, :, context:].reshape(blocks) for part in (key, value))
    mixed = _attend(
        query.reshape(blocks) * scaling,
        key[:, :, :context],
        value[:, :, :context],
        attention_mask,
        own_key,
        own_value,
    )
    return mixed.reshape(rows, heads, length, size).transpose(1, 2), None


def _attend(query: Any, keys: Any, values: Any, mask: Any, own_keys: Any, own_values: Any) -> Any:
    """Attend from each block to the context before its anchor and to itself.

    query is [rows, groups, heads of a group, anchors, block, size]; keys and values of the context
    are [rows, groups, context, size], own ones [rows, groups, 1, anchors, own, size].
    """
    import torch

    *shape, size = query.shape
    groups, context = shape[:2], keys.shape[2]
    seen = query.reshape(*groups, -1, size) @ keys.transpose(-1, -2)
    seen = seen.reshape(*shape, context).float() + mask[:, None, None, :, None]
    own = (query @ own_keys.transpose(-1, -2)).float()
    # One softmax over both, with no copy of either.
    top = torch.maximum(seen.detach().amax(-1, True), own.detach().amax(-1, True))
    seen, own = torch.exp(seen - top), torch.exp(own - top)
    total = seen.sum(-1, True) + own.sum(-1, True)
    mixed = seen.to(query.dtype).reshape(*groups, -1, context) @ values
    return (mixed.reshape(*shape, size) + own.to(query.dtype) @ own_values) / total.to(query.dtype)


def _run_steps(
    model: Any, states: Any, next_tokens: Any, blocks: Any, mask: Any, positions: Any
) -> Any:
    """Draft from every anchor: [rows, anchors * block, hidden], zero in each block's first slot.

    `blocks` holds the text from the anchor on, so that each step is evaluated on a correct prefix.
    """
    import torch

    rows, context, _ = states.shape
    anchors = mask.shape[1]
    layer = model.layers[0]
    tokens = blocks.reshape(rows, anchors, -1)
    fused = model.fc(states * model.feature_scale)
    # The token beside a state is the next one, and so is its position.
    keys, values = _read_context(model, fused, next_tokens, positions[:, :context] + 1)
    places = positions[:, context:].reshape(tokens.shape)
    behind = torch.cat([mask[..., 1:], torch.full_like(mask[..., :1], -torch.inf)], -1)
    last = ((mask == 0) & (behind != 0)).to(torch.uint8).argmax(-1)
    hidden = torch.gather(fused, 1, last[..., None].expand(-1, -1, fused.shape[-1]))
    own: list[tuple[Any, Any]] = []
    drafted = [torch.zeros_like(hidden)]
    for step in range(tokens.shape[-1] - 1):
        pair = _pair(model, tokens[..., step], hidden)
        query, key, value = _project(model, pair, places[..., step])
        own.append((key, value))
        residual = pair[..., hidden.shape[-1] :] if layer.norm_before_residual else hidden
        # The last context state's key is the first own one.
        mixed = _attend_to_steps(query * layer.self_attn.scaling, keys, values, mask + behind, own)
        residual = residual + layer.self_attn.o_proj(mixed)
        hidden = residual + layer.mlp(layer.post_attention_layernorm(residual))
        drafted.append(model.norm(hidden))
    return torch.stack(drafted, 2).flatten(1, 2)


def _pair(model: Any, tokens: Any, hidden: Any) -> Any:
    import torch

    layer = model.layers[0]
    embedded = layer.input_layernorm(model.embed_tokens(tokens))
    return torch.cat([embedded, layer.hidden_norm(hidden)], -1)


def _read_context(model: Any, fused: Any, tokens: Any, positions: Any) -> tuple[Any, Any]:
    """Return key and value of every state: [rows, groups, context, size]."""
    _, key, value = _project(model, _pair(model, tokens, fused), positions)
    return key.transpose(1, 2), value.transpose(1, 2)


def _project(model: Any, pair: Any, positions: Any) -> tuple[Any, Any, Any]:
    """Return query, key and value as [rows, tokens, heads, size], rotated to their positions."""
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    attention = model.layers[0].self_attn
    query, key, value = (
        projection(pair).unflatten(-1, (-1, attention.head_dim))
        for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    rotary = model.rotary_emb(pair, positions)
    return (*apply_rotary_pos_emb(query, key, *rotary, unsqueeze_dim=2), value)


def _attend_to_steps(query: Any, keys: Any, values: Any, mask: Any, own: Any) -> Any:
    """Attend from each anchor, [rows, anchors, heads, size], to its context and its own steps."""
    import torch

    rows, anchors, heads, size = query.shape
    query = query.reshape(rows, anchors, keys.shape[1], -1, size).permute(0, 2, 3, 1, 4)
    own_keys, own_values = (
        torch.stack(part, 3).transpose(1, 2)[:, :, None] for part in zip(*own, strict=True)
    )
    mixed = _attend(query[..., None, :], keys, values, mask, own_keys, own_values)
    return mixed.squeeze(-2).permute(0, 3, 1, 2, 4).reshape(rows, anchors, heads * size)
