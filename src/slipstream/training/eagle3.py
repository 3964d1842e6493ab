"""EAGLE-3 heads for the CPU lane: speculators' model, run from anchors only.

A head reads a token beside the target's state of the token before it, and drafts the next token;
for the one after it reads its own output in place of the target's state
(https://arxiv.org/abs/2503.01840). speculators runs every position of a text through every step,
with a flex attention that has no backward pass on a CPU. Here only the anchors are run; the other
positions give no more than a key and a value. With one layer both compute the same, and a test
holds this to speculators' own forward pass.
"""

from pathlib import Path
from typing import Any

from slipstream.training.settings import DrafterDesign

# speculators sets up its attention by this name; it is not called here.
ATTENTION = "sdpa"


def describe_layers(text: Any, design: DrafterDesign) -> dict[str, Any]:
    """Return the configuration of a drafter's layers: the target's widths, the design's size."""
    return {
        "vocab_size": text.vocab_size,
        "hidden_size": text.hidden_size,
        "intermediate_size": design.intermediate_size,
        "num_hidden_layers": design.layers,
        "num_attention_heads": text.num_attention_heads,
        "num_key_value_heads": text.num_key_value_heads,
        "head_dim": getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads,
        "max_position_embeddings": text.max_position_embeddings,
        "rms_norm_eps": text.rms_norm_eps,
        "rope_parameters": text.rope_parameters,
        "tie_word_embeddings": False,
    }


def build_eagle3(library: Any, target: Path, text: Any, design: DrafterDesign) -> Any:
    """Return speculators' EAGLE-3 model of this design, with the target's embedding and head."""
    from transformers.models.llama.configuration_llama import LlamaConfig

    layers = LlamaConfig(**describe_layers(text, design))
    model = library.Eagle3DraftModel.from_training_args(
        layers,
        draft_vocab_size=text.vocab_size,
        norm_before_residual=True,
        ttt_steps=design.block_size - 1,
        verifier_name_or_path=str(target),
        target_layer_ids=list(design.target_layer_ids),
        draft_attn_impl=ATTENTION,
    )
    return _share_with_target(model)


def load_eagle3(library: Any, folder: Path, target: Path) -> Any:
    """Load a head; speculators' own loader would make up the weights that the target shares."""
    from safetensors.torch import load_file

    config = library.Eagle3SpeculatorConfig.from_pretrained(folder)
    config.speculators_config.verifier.name_or_path = str(target)
    config.transformer_layer_config._attn_implementation = ATTENTION
    model = library.Eagle3DraftModel(config)
    model.load_verifier_weights()
    model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
    return _share_with_target(model)


def _share_with_target(model: Any) -> Any:
    """Leave embedding and head out of the file, so that vLLM uses the target's."""
    ignored = [*type(model)._keys_to_ignore_on_save, "embed_tokens.weight", "lm_head.weight"]
    model.__dict__["_keys_to_ignore_on_save"] = ignored
    return model


def run_steps(
    model: Any, states: Any, next_tokens: Any, blocks: Any, mask: Any, positions: Any
) -> Any:
    """Draft from every anchor: [rows, anchors * block, hidden], zero in each block's first slot.

    `blocks` holds the text from the anchor on, so that each step is judged on a correct prefix.
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
        mixed = _attend(query, keys, values, mask + behind, own, layer.self_attn.scaling)
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
    attention = model.layers[0].self_attn
    cosine, sine = (part[:, :, None] for part in model.rotary_emb(pair, positions))
    query, key, value = (
        projection(pair).unflatten(-1, (-1, attention.head_dim))
        for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    return _rotate(query, cosine, sine), _rotate(key, cosine, sine), value


def _rotate(states: Any, cosine: Any, sine: Any) -> Any:
    import torch

    first, second = states.chunk(2, -1)
    return states * cosine + torch.cat([-second, first], -1) * sine


def _attend(query: Any, keys: Any, values: Any, mask: Any, own: Any, scaling: float) -> Any:
    """Attend from each anchor to the context before it and to its own steps."""
    import torch

    rows, anchors, heads, size = query.shape
    groups, context = keys.shape[1], keys.shape[2]
    query = query.reshape(rows, anchors, groups, -1, size).transpose(1, 2) * scaling
    seen = query.reshape(rows, groups, -1, size) @ keys.transpose(-1, -2)
    seen = seen.reshape(rows, groups, anchors, -1, context) + mask[:, None, :, None]
    own_keys, own_values = (torch.stack(part, 3).transpose(1, 2) for part in zip(*own, strict=True))
    weights = torch.cat([seen, query @ own_keys.transpose(-1, -2)], -1)
    weights = torch.softmax(weights.float(), -1).to(query.dtype)
    mixed = weights[..., :context].reshape(rows, groups, -1, context) @ values
    mixed = mixed.reshape(rows, groups, anchors, -1, size)
    mixed = mixed + weights[..., context:] @ own_values
    return mixed.transpose(1, 2).reshape(rows, anchors, heads * size)
