"""DFlash drafters with random weights, of any shape, for a given target.

vLLM loads them like trained ones; their drafts are noise. A small `weight_scale` leaves the
mask token's own embedding in charge of every draft, so the drafter proposes that one token
over and over: with a frequent token as mask, some drafts are accepted without any training.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.atomic_files import make_folder_once, write_atomically
from slipstream.training.design import spread_evenly

TARGET: dict[str, Any] = {
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_theta": 100000.0, "rope_type": "default"},
}


@dataclass(frozen=True, slots=True)
class DrafterShape:
    """The parts of a drafter's shape that are free for a given target; None follows the target."""

    layers: int = 1
    block_size: int = 8
    target_layer_ids: tuple[int, ...] | None = None
    mask_token_id: int = 3
    attention_heads: int | None = None
    key_value_heads: int | None = None
    head_size: int | None = None
    intermediate_size: int | None = None
    context: int | None = None
    weight_scale: float = 0.02


def make_untrained_drafter(
    target: Path, folder: Path, shape: DrafterShape, *, seed: int = 0
) -> Path:
    """Return `folder` with a drafter for `target` in it, making it if it is not there yet."""
    return make_folder_once(folder, lambda partial: _build(target, partial, shape, seed))


def _build(target: Path, folder: Path, shape: DrafterShape, seed: int) -> None:
    import torch
    from safetensors.torch import save_file

    config = drafter_config(json.loads((target / "config.json").read_text()), shape)
    generator = torch.Generator().manual_seed(seed)
    weights = {
        name: torch.ones(size, dtype=torch.bfloat16)
        if len(size) == 1
        else (torch.randn(size, generator=generator) * shape.weight_scale).to(torch.bfloat16)
        for name, size in weight_shapes(config).items()
    }
    save_file(weights, folder / "model.safetensors")
    write_atomically(folder / "config.json", json.dumps(config, indent=2).encode())


def drafter_config(target: dict[str, Any], shape: DrafterShape) -> dict[str, Any]:
    """Return the config.json of a drafter of this shape for a target with this config.json."""
    target_layers = int(target["num_hidden_layers"])
    heads = shape.attention_heads or target["num_attention_heads"]
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "dtype": "bfloat16",
        "hidden_act": "silu",
        "hidden_size": target["hidden_size"],
        "num_hidden_layers": shape.layers,
        "num_attention_heads": heads,
        "num_key_value_heads": shape.key_value_heads or target["num_key_value_heads"],
        "head_dim": shape.head_size
        or target.get("head_dim")
        or target["hidden_size"] // target["num_attention_heads"],
        "intermediate_size": shape.intermediate_size or target["intermediate_size"],
        "vocab_size": target["vocab_size"],
        "max_position_embeddings": shape.context or target["max_position_embeddings"],
        "rms_norm_eps": target["rms_norm_eps"],
        "rope_parameters": target["rope_parameters"],
        "attention_bias": False,
        "tie_word_embeddings": False,
        "block_size": shape.block_size,
        "num_target_layers": target_layers,
        "dflash_config": {
            "mask_token_id": shape.mask_token_id,
            # As z-lab does: from the second layer to the third last.
            "target_layer_ids": list(shape.target_layer_ids or spread_evenly(1, target_layers - 3)),
        },
    }


def weight_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor that vLLM loads; embedding and head are the target's."""
    hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    query = config["num_attention_heads"] * head
    key_value = config["num_key_value_heads"] * head
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, hidden * len(config["dflash_config"]["target_layer_ids"])),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
    }
    layer_shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (query, hidden),
        "self_attn.k_proj.weight": (key_value, hidden),
        "self_attn.v_proj.weight": (key_value, hidden),
        "self_attn.o_proj.weight": (hidden, query),
        "self_attn.q_norm.weight": (head,),
        "self_attn.k_norm.weight": (head,),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    for layer in range(config["num_hidden_layers"]):
        shapes |= {f"layers.{layer}.{name}": size for name, size in layer_shapes.items()}
    return shapes
