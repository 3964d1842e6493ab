"""Drafters on a CPU: speculators' own models, built, loaded, saved and run over batches.

A model computes in the dtype that the processor has instructions for, and is saved in bfloat16.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.atomic_files import write_atomically
from slipstream.training.cpu.batches import States, TrainSample
from slipstream.training.cpu.forward import register_attention
from slipstream.training.run import DrafterDesign
from slipstream.training.warm_start import import_quietly

SAMPLES_FOR_SCALE = 64
# speculators sets up its attention for EAGLE-3 by this name; it is not called here.
EAGLE3_ATTENTION = "sdpa"
# Of a layer: what reads the states behind its first norm, and the other weights.
READING = tuple(f"self_attn.{name}_proj" for name in ("q", "k", "v"))
NORMS = ("input_layernorm", "post_attention_layernorm")
OTHERS = ("self_attn.o_proj", *(f"mlp.{name}_proj" for name in ("gate", "up", "down")))


def build_model(
    target: Path, design: DrafterDesign, dtype: str = "bfloat16", *, seed: int = 0
) -> Any:
    """Return speculators' model of this design, with the target's embedding and head."""
    import torch
    from transformers import AutoConfig

    library = import_quietly(f"speculators.models.{design.method}")
    verifier = AutoConfig.from_pretrained(target)
    text = getattr(verifier, "text_config", verifier)
    torch.manual_seed(seed)
    build = _build_eagle3 if design.method == "eagle3" else _build_dflash
    return _with_scale(build(library, target, text, design), dtype)


def _build_dflash(library: Any, target: Path, text: Any, design: DrafterDesign) -> Any:
    from transformers.models.qwen3.configuration_qwen3 import Qwen3Config

    layers = Qwen3Config(
        **_describe_layers(text, design), layer_types=["full_attention"] * design.layers
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


def _build_eagle3(library: Any, target: Path, text: Any, design: DrafterDesign) -> Any:
    from transformers.models.llama.configuration_llama import LlamaConfig

    layers = LlamaConfig(**_describe_layers(text, design))
    model = library.Eagle3DraftModel.from_training_args(
        layers,
        draft_vocab_size=text.vocab_size,
        norm_before_residual=True,
        ttt_steps=design.block_size - 1,
        verifier_name_or_path=str(target),
        target_layer_ids=list(design.target_layer_ids),
        draft_attn_impl=EAGLE3_ATTENTION,
    )
    return _share_with_target(model)


def start_from_target(model: Any, target: Path, states: Any) -> bool:
    """Copy the target's last layers into a DFlash drafter; return whether they fit.

    They have heads that look at the last token of the context, which random ones learn late. The
    drafter reads the deepest of its states, `states` [tokens, features] of some text, through the
    norm of the layer that follows it there; each layer's own norm goes into its projections.
    """
    import torch
    from transformers import AutoModelForCausalLM

    whole = AutoModelForCausalLM.from_pretrained(target, dtype="auto").model
    config = whole.config.get_text_config()
    sources = getattr(whole, "layers", ())[-len(model.layers) :]
    pairs = list(zip(model.layers, sources, strict=False))
    if config.hidden_act != "silu" or not pairs or not all(_is_alike(*pair) for pair in pairs):
        return False
    read = _find_gain(whole.layers[model.config.aux_hidden_state_layer_ids[-1]].input_layernorm)
    deepest = torch.from_numpy(states.copy()).view(torch.bfloat16).float()[1:, -len(read) :]
    evened = deepest / deepest.pow(2).mean(-1, keepdim=True).sqrt()
    with torch.no_grad():
        model.hidden_norm.weight.copy_(read)
        model.norm.weight.copy_(_find_gain(whole.norm))
        model.fc.weight.zero_()
        model.fc.weight[:, -len(read) :] = torch.diag(1 / model.feature_scale[-len(read) :].float())
        for own, source in pairs:
            gain = _find_gain(source.input_layernorm)
            own.input_layernorm.weight.copy_(read)
            own.post_attention_layernorm.weight.copy_(_find_gain(source.post_attention_layernorm))
            for name in (*READING, *OTHERS):
                weight = source.get_submodule(name).weight.float()
                scale = gain / read if name in READING else 1
                own.get_submodule(name).weight.copy_(weight * scale)
            for name in ("q", "k"):
                norm = getattr(own.self_attn, f"{name}_norm")
                if (theirs := getattr(source.self_attn, f"{name}_norm", None)) is not None:
                    norm.weight.copy_(_find_gain(theirs))
                else:
                    weight = getattr(source.self_attn, f"{name}_proj").weight.float()
                    heads = ((evened * gain) @ weight.T).unflatten(-1, (-1, len(norm.weight)))
                    norm.weight.fill_(heads.pow(2).mean(-1).sqrt().mean())
    return True


def _find_gain(norm: Any) -> Any:
    """Return what a norm multiplies by, whether it keeps that or how far it is from one."""
    import torch

    with torch.no_grad():
        return norm(torch.ones_like(norm.weight)).float()


def _is_alike(own: Any, source: Any) -> bool:
    try:
        mine, theirs = (
            [one.get_submodule(name).weight.shape for name in (*READING, *OTHERS, *NORMS)]
            for one in (own, source)
        )
    except AttributeError:
        return False
    return bool(mine == theirs)


def _describe_layers(text: Any, design: DrafterDesign) -> dict[str, Any]:
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


def load_model(folder: Path, target: Path, dtype: str = "bfloat16") -> Any:
    """Load a drafter in speculators' layout, to go on training it or to evaluate it."""
    from safetensors.torch import load_file

    method = json.loads((folder / "config.json").read_text())["speculators_model_type"]
    library = import_quietly(f"speculators.models.{method}")
    if method != "eagle3":
        config = _read_config(library.DFlashSpeculatorConfig, folder, target, register_attention())
        return _with_scale(library.DFlashDraftModel.from_pretrained(folder, config=config), dtype)
    # speculators' own loader would make up the weights that the target shares.
    config = _read_config(library.Eagle3SpeculatorConfig, folder, target, EAGLE3_ATTENTION)
    model = library.Eagle3DraftModel(config)
    model.load_verifier_weights()
    model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
    return _with_scale(_share_with_target(model), dtype)


def _read_config(kind: Any, folder: Path, target: Path, attention: str) -> Any:
    config = kind.from_pretrained(folder)
    config.speculators_config.verifier.name_or_path = str(target)
    config.transformer_layer_config._attn_implementation = attention
    return config


def _share_with_target(model: Any) -> Any:
    """Leave embedding and head out of the file, so that vLLM uses the target's."""
    ignored = [*type(model)._keys_to_ignore_on_save, "embed_tokens.weight", "lm_head.weight"]
    model.__dict__["_keys_to_ignore_on_save"] = ignored
    return model


def even_out(model: Any, scale: Any) -> None:
    """Let the drafter read evened states from here on; what it computes stays the same.

    The deep layers' states are larger than the first ones' by an order of magnitude, and as
    much faster would their weights take effect.
    """
    import torch

    with torch.no_grad():
        model.fc.weight.mul_(model.feature_scale.float() / scale.float())
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
