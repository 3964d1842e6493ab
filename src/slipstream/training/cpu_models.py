"""Drafters on a CPU: speculators' own models, built, loaded, saved and run over batches.

A model computes in the dtype that the processor has instructions for, and is saved in bfloat16.
"""

import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.atomic_files import write_atomically
from slipstream.training.anchored_attention import HIDDEN, register_attention
from slipstream.training.batches import Batch, States, TrainSample
from slipstream.training.eagle3 import build_eagle3, describe_layers, load_eagle3, run_steps
from slipstream.training.settings import DrafterDesign

SAMPLES_FOR_SCALE = 64


def build_model(
    target: Path, design: DrafterDesign, dtype: str = "bfloat16", *, seed: int = 0
) -> Any:
    """Return speculators' model of this design, with the target's embedding and head."""
    import torch
    from transformers import AutoConfig

    library = _import_quietly(design.method)
    verifier = AutoConfig.from_pretrained(target)
    text = getattr(verifier, "text_config", verifier)
    torch.manual_seed(seed)
    build = build_eagle3 if design.method == "eagle3" else _build_dflash
    return _with_scale(build(library, target, text, design), dtype)


def _build_dflash(library: Any, target: Path, text: Any, design: DrafterDesign) -> Any:
    from transformers.models.qwen3.configuration_qwen3 import Qwen3Config

    layers = Qwen3Config(
        **describe_layers(text, design), layer_types=["full_attention"] * design.layers
    )
    return library.DFlashDraftModel.from_training_args(
        layers,
        draft_vocab_size=text.vocab_size,
        block_size=design.block_size,
        verifier_name_or_path=str(target),
        target_layer_ids=list(design.target_layer_ids),
        mask_token_id=design.mask_token_id,
        draft_attn_impl=register_attention(),
        # Unless told so, vLLM 0.32 serves even full attention causal: vllm#56692.
        sliding_window_non_causal=True,
    )


def load_model(folder: Path, target: Path, dtype: str = "bfloat16") -> Any:
    """Load a drafter in speculators' layout, to go on training it or to judge it."""
    method = json.loads((folder / "config.json").read_text())["speculators_model_type"]
    library = _import_quietly(method)
    if method == "eagle3":
        return _with_scale(load_eagle3(library, folder, target), dtype)
    config = library.DFlashSpeculatorConfig.from_pretrained(folder)
    config.speculators_config.verifier.name_or_path = str(target)
    config.transformer_layer_config._attn_implementation = register_attention()
    return _with_scale(library.DFlashDraftModel.from_pretrained(folder, config=config), dtype)


def even_out(model: Any, scale: Any) -> None:
    """Let the drafter read evened states from here on; what it computes stays the same.

    The deep layers' states are larger than the first ones' by an order of magnitude, and as
    much faster would their weights take effect.
    """
    import torch

    with torch.no_grad():
        model.fc.weight.mul_(model.feature_scale / scale)
    model.feature_scale = scale


def measure_scale(states: States, samples: Sequence[TrainSample]) -> Any:
    """Return one over the size of every feature, the usual token's, not the few huge ones'."""
    import torch

    chosen = samples[:: max(1, len(samples) // SAMPLES_FOR_SCALE)]
    read = np.concatenate([states.read(sample.number)[1::4] for sample in chosen])
    sizes = torch.from_numpy(read).view(torch.bfloat16).float().abs()
    return (1 / sizes.quantile(0.5, dim=0).clamp(min=1e-3)).to(torch.bfloat16)


def save_model(model: Any, folder: Path, *, verifier: str) -> None:
    """Save a drafter for vLLM, in bfloat16 and under its target's name, not its place here."""
    import torch

    dtype = model.fc.weight.dtype
    even_out(model, torch.ones_like(model.feature_scale))
    model.config.speculators_config.verifier.name_or_path = verifier
    _cast(model, torch.bfloat16)
    model.save_pretrained(folder)
    _cast(model, dtype)
    # speculators leaves its own code beside the weights, which vLLM does not need.
    (folder / "config.py").unlink(missing_ok=True)
    config = json.loads((folder / "config.json").read_text())
    config.pop("auto_map", None)
    write_atomically(folder / "config.json", json.dumps(config, indent=2).encode())


def _with_scale(model: Any, dtype: str) -> Any:
    import torch

    _cast(model, getattr(torch, dtype))
    model.feature_scale = torch.ones(model.fc.in_features, dtype=model.dtype)
    return model


def _cast(model: Any, dtype: Any) -> None:
    """Cast weights only: rounded rotary frequencies would differ from the engine's."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)


def _import_quietly(method: str) -> Any:
    """Import speculators' models without the messages of it and transformers."""
    from loguru import logger
    from transformers.utils import logging

    logger.disable("speculators")
    logging.disable_progress_bar()
    return importlib.import_module(f"speculators.models.{method}")


def draft(model: Any, batch: Batch) -> Any:
    """Run the drafter over a batch: [rows, anchors, block, hidden], before the head."""
    hidden = run_drafter(model, *to_tensors(batch, model.dtype))
    return hidden.reshape(*batch.targets.shape, -1)


def to_tensors(batch: Batch, dtype: Any) -> tuple[Any, ...]:
    """Return what `run_drafter` takes of a batch."""
    import torch

    visible = torch.from_numpy(batch.visible)
    return (
        torch.from_numpy(batch.states).view(torch.bfloat16).to(dtype),
        torch.from_numpy(batch.next_tokens),
        torch.from_numpy(batch.blocks),
        torch.zeros(visible.shape, dtype=dtype).masked_fill_(~visible, HIDDEN),
        torch.from_numpy(batch.positions),
    )


def run_drafter(
    model: Any, states: Any, next_tokens: Any, blocks: Any, mask: Any, positions: Any
) -> Any:
    """Run a drafter of either method: [rows, anchors * block, hidden], before the head."""
    if model.config.speculators_model_type == "eagle3":
        return run_steps(model, states, next_tokens, blocks, mask, positions)
    return run_layers(model, states, model.embed_tokens(blocks), mask, positions)


def run_layers(model: Any, states: Any, blocks: Any, mask: Any, positions: Any) -> Any:
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
