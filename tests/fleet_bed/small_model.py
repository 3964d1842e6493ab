"""A random Qwen3 and a random DFlash drafter for it, small enough for several ranks on two cores.

The target says one token more often than any other, and the drafter drafts only that one: so
some drafts are accepted, and the text is not that token alone.
"""

import json
import shutil
from pathlib import Path
from typing import Any

from slipstream.atomic_files import make_folder_once
from tests.untrained_drafter import (
    DrafterShape,
    make_untrained_drafter,
    weight_shapes,
)

FREQUENT_TOKEN = 260  # ' the' in SmolLM2's vocabulary
LAYERS = 4
HIDDEN = 256
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "dtype": "float32",
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "intermediate_size": 512,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 49152,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    "attention_bias": False,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
# How strongly the frequent token follows the direction that all tokens share: of 48 tokens after
# a prompt, 18 to 24 are it.
_FAVOUR = 0.52


def make_small_pair(smollm2: Path, folder: Path) -> tuple[Path, Path]:
    """Return the folders of the target and the drafter, made once; the tokenizer is SmolLM2's."""
    target = make_folder_once(folder / "small-qwen3", lambda partial: _build(smollm2, partial))
    shape = DrafterShape(
        mask_token_id=FREQUENT_TOKEN, target_layer_ids=(0, 1, 2), weight_scale=0.001
    )
    return target, make_untrained_drafter(target, folder / "small-drafter", shape)


def _build(smollm2: Path, folder: Path) -> None:
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(17)

    def draw(*size: int, scale: float = 0.05) -> Any:
        return torch.randn(size, generator=generator) * scale

    shared = draw(HIDDEN, scale=1.0)
    outputs = draw(CONFIG["vocab_size"], HIDDEN)
    outputs[FREQUENT_TOKEN] += _FAVOUR * shared / shared.norm()
    weights = {
        "model.embed_tokens.weight": draw(CONFIG["vocab_size"], HIDDEN, scale=1.0) + shared,
        "model.norm.weight": torch.ones(HIDDEN),
        "lm_head.weight": outputs,
    }
    for name, size in weight_shapes({**CONFIG, "dflash_config": {"target_layer_ids": ()}}).items():
        if name.startswith("layers."):
            weights[f"model.{name}"] = torch.ones(size) if len(size) == 1 else draw(*size)
    save_file(
        {name: one.contiguous() for name, one in weights.items()}, folder / "model.safetensors"
    )
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2))
    for name in _TOKENIZER:
        shutil.copy(smollm2 / name, folder / name)
